"""What the scheduler's side tells the workers' side in every step, and what it hears back."""
from __future__ import annotations

import dataclasses
from typing import Any, Optional

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.v1.metrics.utils import create_metric_per_engine

from ..layout import Layout


@dataclasses.dataclass
class Load:
    """Keys to be copied into the pages of a request that waits for them."""
    request: str
    keys: bytes
    pages: list[int]  # The request's page table.
    first_block: int  # Of the request: the one that the first key names.
    first_token: int  # The pages in front of it are others' too, and are left as they are.
    deadline: float  # Seconds.


@dataclasses.dataclass
class Store:
    """Blocks that are computed, in pages that stay as they are until the store is done."""
    request: str
    keys: bytes
    parent: bytes
    pages: list[int]
    first_block: int
    session: Optional[str] = None
    priority: int = 0
    ttl_seconds: int = 0


@dataclasses.dataclass
class StepMetadata(KVConnectorMetadata):
    layout: Optional[Layout] = None  # Once it is known which model it is.
    socket: Optional[str] = None
    loads: list[Load] = dataclasses.field(default_factory=list)
    stores: list[Store] = dataclasses.field(default_factory=list)
    finished: list[str] = dataclasses.field(default_factory=list)  # Their pages wait for their stores.
    preempted: list[str] = dataclasses.field(default_factory=list)  # Theirs are used again in this step.
    # A step that is one request's prefill and no more, to be timed: tokens, and those in front of them.
    prefill: Optional[tuple[int, int]] = None


@dataclasses.dataclass
class WorkerMetadata(KVConnectorWorkerMetadata):
    """How many blocks came of those loads that came short."""
    loaded: dict[str, int]

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "WorkerMetadata":
        assert isinstance(other, WorkerMetadata)
        merged = dict(self.loaded)
        for request, blocks in other.loaded.items():
            merged[request] = min(blocks, merged.get(request, blocks))
        return WorkerMetadata(merged)


class Stats(KVConnectorStats):
    """Counters since the last step, added up over ranks and steps."""

    data: dict[str, Any]

    def add(self, name: str, value: float) -> None:
        if value:
            self.data[name] = self.data.get(name, 0) + value

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for name, value in other.data.items():
            self.data[name] = self.data.get(name, 0) + value
        return self

    def reduce(self) -> dict[str, Any]:
        return {f"aquifer {name}": value for name, value in sorted(self.data.items())}

    def is_empty(self) -> bool:
        return not self.data


# Name in Stats: what Prometheus says about it.
COUNTERS = {
    "load_requests": "Requests whose beginning was to be loaded.",
    "loaded_blocks": "Blocks that were loaded, counted by every rank.",
    "load_seconds": "Time that loads took.",
    "short_loads": "Loads of which fewer blocks came than were promised; the rest was computed.",
    "stored_blocks": "Blocks that were stored, counted by every rank that wrote heads of them.",
    "stored_bytes": "Bytes of those blocks.",
    "store_seconds": "Time that stores took.",
    "refused_blocks": "Blocks that the node did not take.",
    "failed_stores": "Stores that failed as a whole.",
    "failed_calls": "Calls of the node that failed, each of them a miss.",
}


class PromMetrics(KVConnectorPromMetrics):
    """vllm:aquifer_*, one counter for each of the above."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any):
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {
            name: create_metric_per_engine(
                self._counter_cls(name=f"vllm:aquifer_{name}", documentation=said, labelnames=labelnames),
                per_engine_labelvalues)
            for name, said in COUNTERS.items()}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, value in transfer_stats_data.items():
            if name in self._counters:
                self._counters[name][engine_idx].inc(value)
