"""What the scheduler's side tells the workers' side in every step, and what it hears back."""
from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Optional

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.v1.metrics.utils import create_metric_per_engine

from ..layout import Layout
from .hints import Wishes


@dataclasses.dataclass
class Load:
    """Keys to be copied into the pages of a request that waits for them."""
    request: str
    keys: bytes
    pages: list[int]  # The request's page table.
    first_block: int  # Of the request: the one that the first key names.
    first_token: int  # The pages in front of it are others' too, and are left as they are.
    end: float  # By time.monotonic(), which is the same for all processes of a host: from then on it is late.


@dataclasses.dataclass
class Store:
    """Blocks that are computed, in pages that stay as they are until the store is done."""
    request: str
    keys: bytes
    parent: bytes
    pages: list[int]
    first_block: int
    wishes: Optional[Wishes] = None


@dataclasses.dataclass
class Note:
    """A request has ended: what is to be done with its blocks, once they are stored."""
    keys: bytes
    wishes: Wishes


@dataclasses.dataclass
class Prefill:
    """A step to be timed: it computed so many tokens of prompts, and little else."""
    tokens: int
    context: int  # In front of them, on an average: what attention costs grows with it.
    share: float  # Of the step's tokens.


class NothingToTell(KVConnectorMetadata):
    """What most steps are told. It is sent to every worker in each of them, so it has no fields but the class's."""
    preempted: ClassVar[tuple[str, ...]] = ()


@dataclasses.dataclass
class StepMetadata(KVConnectorMetadata):
    layout: Optional[Layout] = None  # Once it is known which model it is.
    socket: Optional[str] = None
    loads: list[Load] = dataclasses.field(default_factory=list)
    stores: list[Store] = dataclasses.field(default_factory=list)
    notes: list[Note] = dataclasses.field(default_factory=list)
    finished: list[str] = dataclasses.field(default_factory=list)  # Their pages wait for their stores.
    preempted: list[str] = dataclasses.field(default_factory=list)  # Theirs are used again in this step.
    void: list[str] = dataclasses.field(default_factory=list)  # Whatever they load is of no use any more.
    prefill: Optional[Prefill] = None


@dataclasses.dataclass(frozen=True)
class CameShort:
    """A load that brought fewer blocks than it should."""
    blocks: int
    avoid: bool  # The next block is to blame, and not the node.


@dataclasses.dataclass
class WorkerMetadata(KVConnectorWorkerMetadata):
    """Loads that came short, on any rank."""
    short: dict[str, CameShort]

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "WorkerMetadata":
        assert isinstance(other, WorkerMetadata)
        merged = dict(self.short)
        for request, came in other.short.items():
            if request not in merged or came.blocks < merged[request].blocks:
                merged[request] = came
        return WorkerMetadata(merged)


class Stats(KVConnectorStats):
    """Counters since the last step, added up over ranks and steps; and the scheduler's gauges, where they changed."""

    data: dict[str, Any]

    def add(self, name: str, value: float) -> None:
        if value:
            self.data[name] = self.data.get(name, 0) + value

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for name, value in other.data.items():
            self.data[name] = value if name in GAUGES else self.data.get(name, 0) + value
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
    "failed_blocks": "Blocks that were lost on the way to the node: to the GPU, to the node, or to the time.",
    "failed_stores": "Stores that failed as a whole.",
    "dropped_stores": "Stores that were given up since their pages were wanted for something else.",
    "failed_calls": "Calls of the node that failed, each of them a miss.",
    "invalid_params": "Values in kv_transfer_params and KV hints that could not be read.",
}

# The same; these come with an engine's step, too, so that an engine without requests keeps the last value.
GAUGES = {
    "node_up": "1 while the node answers, 0 while there is no node: nothing is stored or recalled then.",
    "unsupported": "1 where the engine's model is not known to the connector, which then does nothing.",
}


class PromMetrics(KVConnectorPromMetrics):
    """vllm:aquifer_*, one metric for each of the above."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any):
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)

        def made(kind: Any, name: str, said: str, **more: str) -> Any:
            metric = kind(name=f"vllm:aquifer_{name}", documentation=said, labelnames=labelnames, **more)
            return create_metric_per_engine(metric, per_engine_labelvalues)
        self._counters = {name: made(self._counter_cls, name, said) for name, said in COUNTERS.items()}
        self._gauges = {name: made(self._gauge_cls, name, said, multiprocess_mode="mostrecent")
                        for name, said in GAUGES.items()}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, value in transfer_stats_data.items():
            if name in self._counters:
                self._counters[name][engine_idx].inc(value)
            elif name in self._gauges:
                self._gauges[name][engine_idx].set(value)
