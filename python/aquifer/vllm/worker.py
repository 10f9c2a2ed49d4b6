"""The connector's half in a worker: copies between the engine's pages and the node's slots, on two threads of
its own, one for loads and one for stores. The engine's thread only hands work over and takes results; it waits in one
case alone: a request is preempted, and a store of its pages is under way.

An engine on a GPU is ahead of it: pages to be stored may not be computed yet, and pages to be loaded may still be read
by what had them before. So a load waits until the GPU gets to the beginning of its step, and a store until it gets to
the end: vLLM lets a request share what another one computes in the same step."""
from __future__ import annotations

import dataclasses
import queue
import threading
import time
from typing import Optional, Sequence, Union

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
from vllm.logger import init_logger

from ..cache import Cache, Chain, Loaded, Registered, SessionState, connect
from ..errors import Error, Late
from ..layout import Heads, Layout
from ..moment import Moment
from .device import Device, HostDevice, device_of
from .hints import Wishes
from .messages import CameShort, Load, NothingToTell, Note, Prefill, Stats, StepMetadata, Store, WorkerMetadata
from .settings import Settings
from .shape import Pages, Shape, map_tensors, one_block_beside

logger = init_logger("vllm." + __name__)  # vLLM shows what is below its own name.

_CONNECT_SECONDS = 5.0
_WARNING_SECONDS = 10.0  # Between two of a kind: a node that is away fails every call.
_STORE_SECONDS = 5.0  # A node that does not answer costs a preemption as much, once.
_PREEMPTION_SECONDS = 0.05
_QUIET_SECONDS = 5.0  # For so long nothing is stored at a node that did not answer.
_CALL_SECONDS = 1.0
_MOST_REPORTS = 64
_NO_RESULTS = KVConnectorTransferResults()  # Nobody adds to it, and most steps have none.
# Why a load came short that says nothing about the block: it is not there, or nobody is.
_NOBODYS_FAULT = ("not found", "unavailable", "corrupt")


@dataclasses.dataclass(frozen=True)
class _Behind:
    """Pages to be read or written, when what the engine did to them is over."""
    moment: Moment
    work: Union[Load, Store]


@dataclasses.dataclass(frozen=True)
class _Report:
    """How long a step took."""
    prefill: Prefill
    begin: Moment
    end: Moment


_Work = Union[Layout, _Behind, Note, _Report]
_Step = Optional[Sequence[_Work]]  # What one brings, in its order; None: the end.


class _Client:
    """One thread's connection, made when it is first needed and again when the layout changes."""

    def __init__(self, settings: Settings, engine: str):
        self._settings = settings
        self._engine = engine
        self._cache: Optional[Cache] = None
        self._known: Optional[Registered] = None

    def use(self, socket: Optional[str], layout: Layout, timeout: float) -> tuple[Cache, Registered]:
        if self._cache is None:
            self._cache = connect(socket, tenant=self._settings.tenant, engine=self._engine,
                                  token=self._settings.token(), observe=self._settings.observe,
                                  timeout=min(timeout, _CONNECT_SECONDS))
        if self._known is None or self._known.layout != layout:
            self._known = self._cache.register(layout, min(timeout, _CONNECT_SECONDS))
        return self._cache, self._known

    def close(self) -> None:
        if self._cache is not None:
            self._cache.close()
            self._cache = None


class WorkerSide:
    def __init__(self, shape: Shape, settings: Settings, engine: str, rank: int):
        self._shape = shape
        self._heads: Heads = shape.heads(rank)
        self._rank = rank
        self._loader = _Client(settings, engine)
        self._storer = _Client(settings, engine)
        self._device: Device = HostDevice()
        self._pages: Optional[Pages] = None
        self._beside: Optional[Pages] = None  # The loading thread's, where a block has several pages.
        self._layout: Optional[Layout] = None
        self._socket: Optional[str] = None
        self._meta: Optional[StepMetadata] = None
        self._begin: Optional[Moment] = None  # Of the step, where somebody wants to know.

        self._lock = threading.Condition()  # For all below.
        self._stats = Stats()
        self._received: set[str] = set()
        self._failed: set[str] = set()
        self._came_short: dict[str, CameShort] = {}
        self._void: set[str] = set()  # Their loads are of no use, and fail.
        self._queued: dict[str, list[Store]] = {}  # Stores that have not begun; one that is taken out is dropped.
        self._storing: Optional[str] = None  # Whose pages are being read.
        self._ending: set[str] = set()  # Finished, and to be reported when their stores are done.
        self._warned: dict[str, float] = {}  # Each text is one thread's.
        self._quiet_until = 0.0  # The storing thread's.

        self._load_queue: queue.SimpleQueue[_Step] = queue.SimpleQueue()
        self._store_queue: queue.SimpleQueue[_Step] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def register(self, kv_caches: dict[str, torch.Tensor], page_count: int) -> None:
        self._pages = map_tensors(self._shape, self._heads, kv_caches, page_count)
        if self._pages.map.pages_per_block > 1:
            self._beside = one_block_beside(self._shape, self._heads, self._pages)
        self._device = device_of(self._pages.tensors[0])
        if self._threads:
            return
        self._threads = [threading.Thread(target=self._run, args=(client, waiting), daemon=True, name=name)
                         for name, client, waiting in (("aquifer-load", self._loader, self._load_queue),
                                                       ("aquifer-store", self._storer, self._store_queue))]
        for thread in self._threads:
            thread.start()

    # ---- The engine's thread ----

    def bind(self, meta: Union[StepMetadata, NothingToTell]) -> None:
        """Loads begin before the forward pass: their pages are nobody else's, once earlier steps are over."""
        self._meta, self._begin = None, None  # A step that failed may have left some.
        if not isinstance(meta, StepMetadata):
            return
        self._meta = meta
        self._begin = self._device.moment() if meta.loads or meta.prefill is not None else None
        if meta.layout is not None:  # Said once.
            self._layout, self._socket = meta.layout, meta.socket
            self._load_queue.put([meta.layout])  # To be connected before there is a deadline.
            self._store_queue.put([meta.layout])
        if meta.void:
            with self._lock:
                self._void.update(meta.void)
        if meta.loads:
            assert self._begin is not None
            self._load_queue.put([_Behind(self._begin, load) for load in meta.loads])

    def after_forward(self) -> None:
        """What is computed by now is stored, and this step's time is reported if it tells something."""
        meta, begin, self._meta, self._begin = self._meta, self._begin, None, None
        if meta is None or not (meta.stores or meta.finished or meta.notes or meta.prefill):
            return
        end = self._device.moment()
        with self._lock:
            for store in meta.stores:
                self._queued.setdefault(store.request, []).append(store)
            self._ending.update(meta.finished)
        work: list[_Work] = [_Behind(end, store) for store in meta.stores]
        if self._rank == 0:
            work += meta.notes
            if meta.prefill is not None and begin is not None and self._store_queue.qsize() < _MOST_REPORTS:
                work.append(_Report(meta.prefill, begin, end))
        if work:
            self._store_queue.put(work)  # In one piece: to wake the thread takes longer than the rest of this.

    def finish_stores(self, requests: list[str]) -> None:
        """Before their pages are used for something else. Stores take milliseconds, and are waited for; those that
        have not begun after a while are dropped, and the one that has, the library ends in time."""
        if not requests:
            return
        end = time.monotonic() + _PREEMPTION_SECONDS
        with self._lock:
            while any(map(self._is_stored, requests)) and (left := end - time.monotonic()) > 0:
                self._lock.wait(left)
            for request in requests:
                self._stats.add("dropped_stores", len(self._queued.pop(request, ())))
            while self._storing in requests:
                self._lock.wait()

    def _is_stored(self, request: str) -> bool:
        """Whether its pages are to be left as they are."""
        return request == self._storing or request in self._queued

    def take_results(self) -> KVConnectorTransferResults:
        if not (self._received or self._ending):
            return _NO_RESULTS
        with self._lock:
            received, self._received = self._received, set()
            failed, self._failed = self._failed | (received & self._void), set()
            self._void -= received
            sent = {request for request in self._ending if not self._is_stored(request)}
            self._ending -= sent
        return KVConnectorTransferResults(finished_sending=sent, finished_recving=received, failed_recving=failed)

    def take_worker_meta(self) -> Optional[WorkerMetadata]:
        if not self._came_short:
            return None
        with self._lock:
            short, self._came_short = self._came_short, {}
        return WorkerMetadata(short) if short else None

    def take_stats(self) -> Optional[Stats]:
        if not self._stats.data:
            return None
        with self._lock:
            taken, self._stats = self._stats, Stats()
            return taken

    def shutdown(self) -> None:
        self._load_queue.put(None)
        self._store_queue.put(None)
        for thread in self._threads:
            thread.join(10.0)
        self._loader.close()
        self._storer.close()

    # ---- Its own threads ----

    def _warn(self, said: str, error: Union[Exception, str]) -> None:
        now = time.monotonic()
        if now - self._warned.get(said, -_WARNING_SECONDS) >= _WARNING_SECONDS:
            self._warned[said] = now
            logger.warning(said, error)

    def _run(self, client: _Client, waiting: "queue.SimpleQueue[_Step]") -> None:
        try:
            self._device.enter_thread()
        except RuntimeError as error:
            self._warn("Aquifer: the GPU cannot be used: %s", error)
        while (items := waiting.get()) is not None:
            for item in items:
                try:
                    self._do(client, item)
                except Error as error:
                    self._warn("Aquifer: no cache for now, and it is tried again: %s", error)
                except Exception:  # An engine must not wait for ever for a thread that has died.
                    logger.exception("Aquifer: something failed that should not have")

    def _do(self, client: _Client, item: _Work) -> None:
        if isinstance(item, Layout):
            client.use(self._socket, item, _CONNECT_SECONDS)
        elif isinstance(item, _Behind) and isinstance(item.work, Load):
            self._load(item.work, item.moment)
        elif isinstance(item, _Behind) and isinstance(item.work, Store):
            self._store(item.work, item.moment)
        elif self._layout is not None and time.monotonic() >= self._quiet_until:
            cache, known = client.use(self._socket, self._layout, _CALL_SECONDS)
            if isinstance(item, Note):
                self._tell(cache, Chain(known, item.keys), item.wishes, item.wishes.state)
            elif isinstance(item, _Report):
                cache.report_prefill(known, item.prefill.tokens, item.prefill.context,
                                     item.end.milliseconds_since(item.begin) * item.prefill.share)

    def _load(self, load: Load, behind: Moment) -> None:
        wanted = len(load.keys) // 32
        blocks, why, started = 0, "unavailable", time.perf_counter()
        try:
            held = behind.wait()  # What the GPU had to do first would have held up computing as well.
            started = time.perf_counter()
            blocks, why = self._load_blocks(dataclasses.replace(load, end=load.end + held))
        except (Error, RuntimeError) as error:
            self._warn("Aquifer: a load failed, and is computed: %s", error)
        except Exception:
            logger.exception("Aquifer: a load failed, and is computed")
        with self._lock:
            self._stats.add("loaded_blocks", blocks)
            self._stats.add("load_seconds", time.perf_counter() - started)
            if blocks < wanted:
                self._failed.add(load.request)
                self._came_short[load.request] = CameShort(blocks, why not in _NOBODYS_FAULT)
            self._received.add(load.request)

    def _load_blocks(self, load: Load) -> tuple[int, str]:
        """How many blocks came, from the front, and why the next did not."""
        assert self._layout is not None and self._pages is not None
        left = load.end - time.monotonic()
        if left <= 0:
            return 0, "unavailable"  # It waited behind others: its blocks were not even asked for.
        cache, known = self._loader.use(self._socket, self._layout, left)
        chain = Chain(known, load.keys)
        table = self._pages.table(load.pages)
        done = 0
        shared = (load.first_token - load.first_block * self._shape.block_tokens) // self._pages.tokens
        if shared > 0:
            first = load.first_block * self._pages.map.pages_per_block
            loaded = self._load_beside(cache, chain.part_of(0, 1), load.end, table[first:], shared)
            if loaded.why != "ok":
                self._tell_short(loaded, 0, len(chain))
                return 0, loaded.why
            done = 1
        if done == len(chain):
            return done, "ok"
        loaded = cache.load(chain.part_of(done), self._pages.map, table, load.first_block + done,
                            timeout=max(load.end - time.monotonic(), 0.001))
        if loaded.why != "ok":
            self._tell_short(loaded, done + loaded.blocks, len(chain))
        return done + loaded.blocks, loaded.why

    def _tell_short(self, loaded: Loaded, blocks: int, wanted: int) -> None:
        if loaded.is_broken:
            self._warn("Aquifer: a load came short, and the rest is computed: %s", loaded.message)
        else:
            logger.info("Aquifer: %d of %d blocks were loaded: %s", blocks, wanted, loaded.message)

    def _load_beside(self, cache: Cache, chain: Chain, end: float, table: list[int], shared: int) -> Loaded:
        """A block, in the first pages of the table, some of which the engine has already, and others may be reading:
        it is loaded beside them, and only its other pages are copied."""
        assert self._pages is not None and self._beside is not None
        count = self._beside.map.pages_per_block
        loaded = cache.load(chain, self._beside.map, list(range(count)), timeout=max(end - time.monotonic(), 0.001))
        if loaded.blocks < 1:
            return loaded
        with torch.inference_mode(), self._device.copies():
            new = torch.tensor(table[shared:count], device=self._pages.tensors[0].device)
            for source, target in zip(self._beside.tensors, self._pages.tensors):
                target.index_copy_(0, new, source[shared:])
        return loaded

    def _store(self, store: Store, behind: Moment) -> None:
        # Waited for before it begins: a preemption drops it, and does not wait for the GPU as well.
        if not self._may_begin(store, self._is_over(behind)):
            return
        try:
            if self._heads.writes:  # Else another rank has the same heads.
                self._store_blocks(store)
        except Error as error:
            if isinstance(error, Late):
                self._quiet_until = time.monotonic() + _QUIET_SECONDS
            with self._lock:
                self._stats.add("failed_stores", 1)
            self._warn("Aquifer: a store failed: %s", error)
        except Exception:
            logger.exception("Aquifer: a store failed")
        with self._lock:
            self._storing = None
            self._lock.notify_all()

    def _is_over(self, behind: Moment) -> bool:
        try:
            behind.wait()
            return True
        except Exception as error:  # Whatever it is, somebody waits for this store to be done or dropped.
            self._warn("Aquifer: nothing is stored, since the GPU failed: %s", error)
            return False

    def _may_begin(self, store: Store, over: bool) -> bool:
        with self._lock:
            queued = self._queued.get(store.request)
            if queued is None or queued[0] is not store:
                return False  # It was dropped.
            del queued[0]
            if not queued:
                del self._queued[store.request]
            if over and time.monotonic() >= self._quiet_until:
                self._storing = store.request
                return True
            self._stats.add("dropped_stores", 1)
            self._lock.notify_all()
            return False

    def _store_blocks(self, store: Store) -> None:
        assert self._layout is not None and self._pages is not None
        cache, known = self._storer.use(self._socket, self._layout, _STORE_SECONDS)
        started = time.perf_counter()
        chain = Chain(known, store.keys)
        stored = cache.store(chain, store.parent, self._pages.map, self._pages.table(store.pages), store.first_block,
                             store.first_block, timeout=_STORE_SECONDS)
        if self._rank == 0 and store.wishes is not None:
            self._tell(cache, chain.part_of(len(chain) - 1), dataclasses.replace(store.wishes, pin_seconds=0))
        with self._lock:
            self._stats.add("stored_blocks", stored.stored)
            self._stats.add("stored_bytes", stored.bytes)
            self._stats.add("refused_blocks", stored.refused)
            self._stats.add("failed_blocks", stored.failed)
            self._stats.add("store_seconds", time.perf_counter() - started)
        if stored.failed:
            self._warn("Aquifer: blocks were not stored: %s", stored.message)

    @staticmethod
    def _tell(cache: Cache, chain: Chain, wishes: Wishes, state: SessionState = SessionState.WILL_CONTINUE) -> None:
        """What the node should know about blocks that it has: whose they are, how long they matter."""
        if wishes.hinted:
            cache.hint(chain.part_of(len(chain) - 1), wishes.session or chain.key(0).hex(), state, wishes.priority,
                       wishes.ttl_seconds, durable=wishes.durable, return_seconds=wishes.return_seconds)
        if wishes.pin_seconds:
            cache.pin(chain, wishes.pin_seconds, _CALL_SECONDS)
