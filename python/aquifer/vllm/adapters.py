"""Which LoRA adapter a request names: a digest of the files that the engine has loaded it from.

The engine loads an adapter before a request names it, or when its turn comes, and once more when it had to make room:
in another process, and without a word to a connector. But files that are as they were when the engine started are what
it has loaded, whenever that was. Others are left alone."""
from __future__ import annotations

import hashlib
import os
import threading
from typing import Any, Optional

from vllm.logger import init_logger

from .identity import digest_as_at_start, names_of

logger = init_logger("vllm." + __name__)  # vLLM shows what is below its own name.

_MOST_ADAPTERS = 65536
_FILES = (".safetensors", ".bin", ".pt", ".json")


class _Adapter:
    """As it was when a request first named it."""

    def __init__(self, path: str, seen: str):
        self.path = path
        self.seen = seen
        self.changed = False  # Its files are others now.
        self.digest: Optional[bytes] = None  # Once they are read.


def _files_of(path: str) -> list[str]:
    """All that an adapter is loaded from."""
    return [os.path.join(path, name) for name in os.listdir(path) if name.endswith(_FILES)]


def _seen_of(path: str) -> str:
    """Another text when one of an adapter's files is another; "" when there are none."""
    try:
        return names_of(_files_of(path))
    except OSError:
        return ""


class Adapters:
    def __init__(self, dtype: str):
        """`dtype`: in which they are computed."""
        self._dtype = dtype
        self._known: dict[int, _Adapter] = {}

    def digest_of(self, lora: Any) -> Optional[bytes]:
        """Of one that a request names; None until it is known, and for good once its files have changed: the engine may
        go on with those that it has read, or read the new ones at any time."""
        seen = _seen_of(lora.lora_path)
        found = self._known.get(lora.lora_int_id)  # The engine goes by that number alone.
        if found is None:
            if len(self._known) >= _MOST_ADAPTERS:
                return None  # One that was forgotten could come back with other files.
            found = self._known[lora.lora_int_id] = _Adapter(lora.lora_path, seen)
            threading.Thread(target=self._read, args=(found,), name="aquifer-adapter", daemon=True).start()
        if found.seen != seen and not found.changed:
            found.changed = True
            logger.warning("Aquifer: the adapter %s has other files than before, and nothing of it is recalled now. "
                           "Load them as another adapter, from a path of their own.", lora.lora_path)
        return None if found.changed else found.digest

    def _read(self, adapter: _Adapter) -> None:
        try:
            digest = digest_as_at_start(adapter.path, _files_of(adapter.path))
            if adapter.seen and _seen_of(adapter.path) == adapter.seen:
                adapter.digest = hashlib.sha256(digest + self._dtype.encode()).digest()
                return
            why = "it has no files, or they are being written"
        except (OSError, ValueError) as error:
            why = str(error)
        logger.warning("Aquifer: nobody knows what the engine has loaded as the adapter %s, so nothing of it is "
                       "recalled: %s", adapter.path, why)
