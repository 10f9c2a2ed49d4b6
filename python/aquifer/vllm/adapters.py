"""Which LoRA adapter a request names: a digest of the files that the engine has loaded it from.

The engine loads an adapter when it is told to (add_lora), or when a request's turn comes, and once more when it had to
make room: in another process, and without a word to a connector. It goes by an adapter's number alone. So a number is
believed while all that ever named it, requests and commands, named the same files; and files that are as they were when
the engine started are what it has loaded, whenever that was. Others are left alone."""
from __future__ import annotations

import functools
import hashlib
import json
import os
import threading
import weakref
from typing import Any, Optional

from vllm.logger import init_logger
from vllm.v1.executor.abstract import Executor

from .identity import digest_as_at_start, names_of

logger = init_logger("vllm." + __name__)  # vLLM shows what is below its own name.

_MOST_ADAPTERS = 65536
_FILES = (".safetensors", ".bin", ".pt", ".json")
# Settings of LoRA that say how many adapters there may be, and where: what one computes does not depend on them.
_OF_NO_CONSEQUENCE = frozenset(("max_loras", "max_cpu_loras", "max_lora_rank", "default_mm_loras",
                                "specialize_active_lora"))


class _Adapter:
    """As it was when it was first named."""

    def __init__(self, path: str, seen: str, way: str):
        self.path = path
        self.seen = seen
        self.way = way
        self.changed = False  # Its files are others now.
        self.digest: Optional[bytes] = None  # Once they are read.


def _files_of(path: str) -> list[str]:
    """All that an adapter is loaded from."""
    return [os.path.join(path, name) for name in os.listdir(path) if name.endswith(_FILES)]


def _seen_of(path: str) -> str:
    """Another text when one of an adapter's files is another; "" when there are none."""
    try:
        return names_of(_files_of(path))
    except (OSError, ValueError):
        return ""


def _way_of(lora: Any) -> str:
    """How its files are read: the engine has read them in the way that it was first told."""
    return f"3d={getattr(lora, 'is_3d_lora_weight', False)}"


def _settings_of(lora_config: Any) -> bytes:
    """What the engine makes of an adapter: to which modules it applies it, and in which type it computes, say."""
    told = {name: str(value) for name, value in vars(lora_config).items() if name not in _OF_NO_CONSEQUENCE}
    return json.dumps(told, sort_keys=True).encode()


class Adapters:
    def __init__(self, lora_config: Any):
        self._settings = b"" if lora_config is None else _settings_of(lora_config)
        self._known: dict[int, _Adapter] = {}
        if lora_config is not None:
            _listening.add(self)
            _listen()

    def digest_of(self, lora: Any) -> Optional[bytes]:
        """Of one that a request names, or that the engine is told to load; None until it is known, and for good once
        its number has stood for other files: the engine may go on with those that it has read, or read the new ones at
        any time."""
        seen, way = _seen_of(lora.lora_path), _way_of(lora)
        found = self._known.get(lora.lora_int_id)  # The engine goes by that number alone.
        if found is None:
            if len(self._known) >= _MOST_ADAPTERS:
                return None  # One that was forgotten could come back with other files.
            found = self._known[lora.lora_int_id] = _Adapter(lora.lora_path, seen, way)
            threading.Thread(target=self._read, args=(found,), name="aquifer-adapter", daemon=True).start()
        if (found.seen, found.way) != (seen, way) and not found.changed:
            found.changed = True
            logger.warning("Aquifer: the adapter %s has other files than what was loaded or named under its number, "
                           "%d, before, and nothing of that number is recalled now. Load them as another adapter, with "
                           "a number and a path of their own.", lora.lora_path, lora.lora_int_id)
        return None if found.changed else found.digest

    def _read(self, adapter: _Adapter) -> None:
        try:
            digest = digest_as_at_start(adapter.path, _files_of(adapter.path))
            if adapter.seen and _seen_of(adapter.path) == adapter.seen:
                adapter.digest = hashlib.sha256(b"\0".join((digest, adapter.way.encode(), self._settings))).digest()
                return
            why = "it has no files, or they are being written"
        except (OSError, ValueError) as error:
            why = str(error)
        logger.warning("Aquifer: nobody knows what the engine has loaded as the adapter %s, so nothing of it is "
                       "recalled: %s", adapter.path, why)


_listening: "weakref.WeakSet[Adapters]" = weakref.WeakSet()


@functools.cache
def _listen() -> None:
    """vLLM does not tell a connector that it is to load an adapter. But that command passes through one method, in the
    scheduler's process, and is heard there. (A release without that method would not start: better than a wrong
    name.)"""
    add = Executor.add_lora

    @functools.wraps(add)
    def add_lora(executor: Any, lora_request: Any) -> Any:
        for adapters in list(_listening):
            adapters.digest_of(lora_request)
        return add(executor, lora_request)
    setattr(Executor, "add_lora", add_lora)
