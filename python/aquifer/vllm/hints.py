"""What a request asks of the cache beyond its own blocks, from the three places where an engine's user or an
orchestrator can say it: `kv_transfer_params` ({"aquifer": {...}}), vLLM's `session_id`, and the envelope of KV hints,
which is `request.kv_hints` or, through HTTP, `kv_transfer_params["kv_hint"]`. docs/engines/vllm.md lists them.

Actions that are not known are left out, and so is what makes no sense in one that is: a hint is never a reason to fail
a request.
"""
from __future__ import annotations

import dataclasses
import hashlib
from typing import Any, Iterator, Optional

from ..cache import SessionState

_LEAST_PRIORITY, _MOST_PRIORITY = -8, 7
_MOST_SECONDS = 10 * 365 * 24 * 3600
_MOST_SESSIONS = 16  # To be prefetched for one request.
_NAME_BYTES = 256


@dataclasses.dataclass(frozen=True)
class Wishes:
    session: Optional[str] = None  # Whose chain it is,
    state: SessionState = SessionState.WILL_CONTINUE  # and whether that goes on.
    priority: int = 0
    ttl_seconds: int = 0
    pin_seconds: int = 0
    store: bool = True
    prefetch: tuple[str, ...] = ()  # Sessions whose blocks will be wanted soon.
    return_seconds: int = 0  # When it goes on; 0: nobody knows.
    durable: bool = False  # To outlive the node, though the tenant's other blocks do not.

    @property
    def for_the_node(self) -> bool:
        """Whether there is anything to be told about the request's blocks."""
        return self.hinted or bool(self.pin_seconds)

    @property
    def hinted(self) -> bool:
        """Whether some of it is said in a hint."""
        return self.session is not None or self.durable or bool(
            self.priority or self.ttl_seconds or self.return_seconds)


def _name(value: Any) -> Optional[str]:
    if not isinstance(value, str) or not value or "\0" in value:  # The library would end it there.
        return None
    said = value.encode(errors="surrogatepass")
    if len(said) <= _NAME_BYTES and said.decode(errors="ignore") == value:  # It has no half of a character.
        return value
    # Two that begin alike are two: who forgets the one is not to forget the other.
    end = "~" + hashlib.sha256(said).hexdigest()[:32]
    return said[:_NAME_BYTES - len(end)].decode(errors="ignore") + end


def _number(value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        return 0
    return int(max(least, min(most, value)))


def _read(values: dict[str, Any]) -> dict[str, Any]:
    """The fields of Wishes that are named."""
    found: dict[str, Any] = {}
    if (session := _name(values.get("session"))) is not None:
        found["session"] = session
    if values.get("finished") is True:
        found["state"] = SessionState.FINISHED
    if values.get("store") is False:
        found["store"] = False
    if values.get("durable") is True:
        found["durable"] = True
    if priority := _number(values.get("priority"), _LEAST_PRIORITY, _MOST_PRIORITY):
        found["priority"] = priority
    for name in ("ttl_seconds", "pin_seconds", "return_seconds"):
        if seconds := _number(values.get(name), 0, _MOST_SECONDS):
            found[name] = seconds
    return found


def _get(of: Any, name: str) -> Any:
    """vLLM has structs where HTTP has objects."""
    return of.get(name) if isinstance(of, dict) else getattr(of, name, None)


def _actions(envelope: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    actions = _get(envelope, "actions")
    for action in actions if isinstance(actions, (list, tuple)) else ():
        kind, version, payload = (_get(action, name) for name in ("action_type", "action_version", "payload"))
        if isinstance(kind, str) and str(version).split(".")[0] == "1" and isinstance(payload, dict):
            yield kind, payload


_NONE = Wishes()


def read_wishes(request: Any) -> Wishes:
    """Of one of vLLM's requests. What `kv_transfer_params` says goes before an action of the envelope."""
    if not request.kv_transfer_params and request.session_id is None and getattr(request, "kv_hints", None) is None:
        return _NONE
    given = request.kv_transfer_params if isinstance(request.kv_transfer_params, dict) else {}
    fields: dict[str, Any] = {}
    if (session := _name(request.session_id)) is not None:
        fields["session"] = session
    sessions: list[str] = []
    for envelope in (getattr(request, "kv_hints", None), given.get("kv_hint")):
        for kind, payload in _actions(envelope):
            if kind == "aquifer.retain":
                fields.update(_read(payload))
            elif kind == "aquifer.pin":
                fields.update(_read({"pin_seconds": payload.get("seconds")}))
            elif kind == "aquifer.prefetch" and (other := _name(payload.get("session"))) is not None:
                sessions.append(other)
            # kv.fetch asks for the request's own blocks, which every request's arrival does.
    ours = given.get("aquifer")
    if isinstance(ours, dict):
        fields.update(_read(ours))
    if "session" not in fields:
        fields.pop("durable", None)  # Every store would be a session, by a name that nobody knows.
    return Wishes(**fields, prefetch=tuple(sessions[:_MOST_SESSIONS]))
