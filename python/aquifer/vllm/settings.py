"""What a user writes into kv_connector_extra_config."""
from __future__ import annotations

import dataclasses
import difflib
import pathlib
from typing import Any, Optional

from ..errors import Invalid

_MOST_DEADLINE_MS = 24 * 3600 * 1000


@dataclasses.dataclass(frozen=True)
class Settings:
    socket: Optional[str] = None  # The node's; None: where a node puts it.
    spawn: bool = False  # Start a private node, which ends with the engine.
    spawn_dram: str = "auto"  # As `aquifer serve --dram` and --nvme have it.
    spawn_nvme: tuple[str, ...] = ()
    tenant: str = "local"
    token_file: Optional[str] = None
    deadline_ms: float = 0.0  # For a load; 0: as long as computing would take, at least 50.
    always: bool = False  # Load also what would be computed faster.
    observe: bool = False  # Store and load nothing; the node only records.
    unsupported: str = "run"  # Or "fail": what an engine does whose model the connector does not know.

    def token(self) -> Optional[str]:
        """Read anew for every connection: it may have been replaced by another."""
        if self.token_file is None:
            return None
        try:
            return pathlib.Path(self.token_file).read_text().strip()
        except (OSError, ValueError) as error:
            raise Invalid(f"kv_connector_extra_config: token_file cannot be read: {error}") from None


def read_settings(given: dict[str, Any]) -> Settings:
    """Raises Invalid, naming the setting, for what is not known or not of its type."""
    known = {field.name: field for field in dataclasses.fields(Settings)}
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise Invalid(f"kv_connector_extra_config has no setting {name!r}"
                          + (f"; is it {near[0]!r}?" if near else f"; there are {', '.join(known)}"))
        kind = type(known[name].default)
        if kind is tuple:
            value = (value,) if isinstance(value, str) else value
            if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
                raise Invalid(f"kv_connector_extra_config: {name} is {value!r}, and should be a text or a list of them")
            value = tuple(value)
        elif kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        elif kind is not type(None) and not isinstance(value, kind):
            raise Invalid(f"kv_connector_extra_config: {name} is {value!r}, and should be of type {kind.__name__}")
        elif kind is type(None) and not isinstance(value, (str, type(None))):
            raise Invalid(f"kv_connector_extra_config: {name} is {value!r}, and should be a text")
        values[name] = value
    settings = Settings(**values)
    if not 0 <= settings.deadline_ms <= _MOST_DEADLINE_MS:
        raise Invalid(f"kv_connector_extra_config: deadline_ms is {settings.deadline_ms}, and should be from 0 to "
                      f"{_MOST_DEADLINE_MS}")
    if settings.unsupported not in ("fail", "run"):
        raise Invalid(f"kv_connector_extra_config: unsupported is {settings.unsupported!r}, and should be \"fail\" or "
                      '"run"')
    if settings.spawn and settings.socket is not None:
        raise Invalid("kv_connector_extra_config: spawn starts a node of its own, so there is no socket to name")
    if settings.spawn and (settings.tenant != "local" or settings.token_file is not None):
        raise Invalid("kv_connector_extra_config: a node that spawn starts has one tenant, local, so there is neither "
                      "tenant nor token_file to name")
    settings.token()  # Now, while somebody reads what is said.
    return settings
