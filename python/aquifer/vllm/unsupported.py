"""The connector in an engine whose model or KV it does not know: it does nothing, and the engine runs as without one."""
from __future__ import annotations

import dataclasses
from typing import Any, Optional

from vllm.distributed.kv_transfer.kv_connector.v1.base import (KVConnectorHandshakeMetadata,
                                                               KVConnectorTransferResults)

from .messages import NothingToTell, Stats

_NOTHING = NothingToTell()
_NO_RESULTS = KVConnectorTransferResults()


@dataclasses.dataclass
class Refusal(KVConnectorHandshakeMetadata):
    """A worker tells the scheduler, before the engine's first step, that it cannot read or write the KV."""
    why: str


class IdleSide:
    """Takes the place of the scheduler's half and of a worker's. Every call returns at once; no thread runs, and no
    node is asked."""

    def __init__(self, why: str, is_counted: bool):
        self.why = why
        self._stats: Optional[Stats] = Stats(data={"unsupported": 1}) if is_counted else None

    def take_stats(self) -> Optional[Stats]:
        taken, self._stats = self._stats, None  # Told once: the gauge keeps it.
        return taken

    def shutdown(self) -> None:
        pass

    # ---- In the scheduler ----

    def on_new_request(self, request: Any) -> None:
        pass

    def matched_tokens(self, request: Any, computed: int) -> int:
        return 0

    def allocated(self, request: Any, pages: list[int], external: int) -> None:
        pass

    def hit_sources(self, request: Any, external: int) -> dict[Any, int]:
        return {}

    def build_meta(self, output: Any) -> NothingToTell:
        return _NOTHING

    def update(self, output: Any) -> None:
        pass

    def finished(self, request: Any, pages: list[int]) -> bool:
        return False

    def has_pending_block_frees(self) -> bool:
        return False

    def reset(self) -> bool:
        return True

    # ---- In a worker ----

    def register(self, kv_caches: Any, page_count: int) -> None:
        pass

    def finish_stores(self, requests: Any) -> None:
        pass

    def bind(self, meta: Any) -> None:
        pass

    def after_forward(self) -> None:
        pass

    def take_results(self) -> KVConnectorTransferResults:
        return _NO_RESULTS

    def take_worker_meta(self) -> None:
        return None
