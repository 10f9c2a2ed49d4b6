"""What an engine has computed and the node does not have yet. It waits in the engine's own tensors, which on a GPU is
the GPU's memory, so its bytes have a cap; a thread stores it, and reports how long computing took."""
from __future__ import annotations

import collections
import dataclasses
import functools
import logging
import threading
import weakref
from typing import Optional, Protocol, Union

import torch

from .cache import Cache, Chain, Registered
from .layout import Layout
from .moment import Moment
from .tensors import Family, TensorMap

Layers = list[tuple[torch.Tensor, torch.Tensor]]  # Each one's keys and values.

_MOST_WAITING = 64  # Of stores, and of reports.


@functools.lru_cache(maxsize=256)
def warn_once(text: str) -> None:
    """Each text, once: whatever is wrong with a GPU or a node is so at every prompt."""
    logging.getLogger("aquifer").warning("Aquifer: %s", text)


@dataclasses.dataclass(frozen=True)
class RowToStore:
    index: int  # In the batch.
    padding: int
    first: int  # Block.
    keys: bytes  # From that one on.
    parent: bytes
    name: Optional[str]  # The session's.


@dataclasses.dataclass(frozen=True)
class Store:
    """Tensors that are as they are for good, and what of them is new."""
    known: Registered  # Whose they are: the model may be another by the time that they are stored.
    rows: list[RowToStore]
    layers: Layers
    origin: int  # The column that is the tensors' first.
    computed: Moment  # Behind the work that fills them.

    @functools.cached_property
    def bytes(self) -> int:
        """That cannot be used for anything else while it waits."""
        return sum(tensor.untyped_storage().nbytes() for layer in self.layers for tensor in layer)


@dataclasses.dataclass(frozen=True)
class Report:
    """How long a forward pass took, told by the client whose matches are to know it."""
    client: Cache
    known: Registered
    tokens: int
    context: int
    begin: Moment
    end: Moment


class Source(Protocol):
    """Whose blocks are stored; it is known by its identity."""
    plain: Optional[str]  # Not None: it wants nothing stored any more.

    def note_stored(self, row: RowToStore) -> None:
        """They are stored, or given up on. Called by the storing thread."""
        ...


class Counts(Protocol):
    """What is counted up."""
    stored_blocks: int
    failed_blocks: int
    dropped_stores: int


def row_map(layout: Layout, layers: Layers, row: int, column: int) -> TensorMap:
    return TensorMap(layout, Family.SEQUENCES, [keys[row:row + 1, :, column:] for keys, _ in layers],
                     [values[row:row + 1, :, column:] for _, values in layers])


class Storer:
    """Owns the client that it stores with, and the thread. Any thread may offer and report."""

    def __init__(self, client: Cache, counts: Counts, most_bytes: int):
        self.client = client
        self._counts = counts
        self._most_bytes = most_bytes
        self._lock = threading.Condition()  # For all below.
        self._waiting: dict[Source, Store] = {}  # In the order in which they came.
        self._reports: collections.deque[Report] = collections.deque()
        self._busy = False  # With either.
        self._storing: Optional[Source] = None
        self._storing_bytes = 0
        self._turned_away: weakref.WeakSet[Source] = weakref.WeakSet()  # Counted, until they are taken again.
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="aquifer-store", daemon=True)
        self._thread.start()

    def offer(self, source: Source, work: Store) -> None:
        """Takes the place of what waits of the same source: it holds all of that. What is over the cap is not taken,
        unless it is all that there is; a source that goes on offers it again."""
        with self._lock:
            others = [other.bytes for known, other in self._waiting.items() if known is not source]
            held = self._storing_bytes + sum(others)
            if (held and held + work.bytes > self._most_bytes) or len(others) >= _MOST_WAITING:
                self._turn_away(source)
                return
            self._turned_away.discard(source)
            self._waiting[source] = work
            self._lock.notify_all()

    def _turn_away(self, source: Source) -> None:
        """One that is in line has most of what it offers stored all the same."""
        if source is not self._storing and source not in self._waiting and source not in self._turned_away:
            self._turned_away.add(source)
            self._counts.dropped_stores += 1

    def report(self, report: Report) -> None:
        with self._lock:
            if len(self._reports) < _MOST_WAITING:
                self._reports.append(report)
                self._lock.notify_all()

    def flush(self, timeout: float) -> bool:
        """Whether everything was stored or given up on within the time."""
        with self._lock:
            return self._lock.wait_for(self._is_idle, timeout)

    def _is_idle(self) -> bool:
        return not (self._busy or self._waiting or self._reports)

    def end(self) -> None:
        """After what it is doing; it is not waited for."""
        with self._lock:
            self._ended = True
            self._lock.notify_all()

    def close(self) -> None:
        self.end()
        self._thread.join(10.0)
        self.client.close()

    # ---- Its thread ----

    def _run(self) -> None:
        while self._do_next():
            pass

    def _do_next(self) -> bool:
        """False: it has ended. Holds nothing of what it has done when it returns."""
        taken = self._take()
        if taken is None:
            return False
        if isinstance(taken, Report):
            self._tell(taken)
        else:
            self._store(*taken)
        with self._lock:
            self._busy, self._storing, self._storing_bytes = False, None, 0
            self._lock.notify_all()
        return True

    def _take(self) -> Union[Report, tuple[Source, Store], None]:
        with self._lock:
            self._lock.wait_for(lambda: self._ended or self._reports or self._waiting)
            if self._ended:
                return None
            self._busy = True
            if self._reports:
                return self._reports.popleft()
            source = next(iter(self._waiting))
            work = self._waiting.pop(source)
            self._storing, self._storing_bytes = source, work.bytes
            return source, work

    @staticmethod
    def _tell(report: Report) -> None:
        try:
            report.client.report_prefill(report.known, report.tokens, report.context,
                                         report.end.milliseconds_since(report.begin))
        except Exception:
            pass  # Whoever computes hears of a GPU that has failed, and the next report comes with the next prompt.

    def _store(self, source: Source, work: Store) -> None:
        if source.plain is not None:
            return
        for row in work.rows:
            try:
                self._store_row(work, row)
            except Exception as error:  # Whatever it was: the next row's blocks are others.
                self._counts.dropped_stores += 1
                warn_once(f"a store failed: {error}")
            source.note_stored(row)

    def _store_row(self, work: Store, row: RowToStore) -> None:
        work.computed.wait()
        layout = work.known.layout
        column = row.padding + row.first * layout.tokens_per_block - work.origin
        tensors = row_map(layout, work.layers, row.index, column)
        chain = Chain(work.known, row.keys)
        stored = self.client.store(chain, row.parent, tensors, [0], position=row.first)
        self._counts.stored_blocks += stored.stored
        self._counts.failed_blocks += stored.failed
        if stored.failed:
            warn_once(f"blocks were not stored: {stored.message}")
        if row.name is not None:
            self.client.hint(chain.part_of(len(chain) - 1), row.name)
