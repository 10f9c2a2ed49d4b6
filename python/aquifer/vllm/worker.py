"""The connector's half in a worker: copies between the engine's pages and the node's slots, on two threads of
its own, one for loads and one for stores. The engine's thread only hands work over and takes results."""
from __future__ import annotations

import os
import queue
import threading
import time
from typing import Any, Callable, Optional

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
from vllm.logger import init_logger

from ..cache import Cache, Chain, Registered, SessionState, connect
from ..errors import Error
from ..layout import Heads, Layout
from ..tensors import Family, TensorMap
from .messages import Load, Stats, StepMetadata, Store, WorkerMetadata
from .settings import Settings
from .shape import Shape, map_tensors

logger = init_logger("vllm." + __name__)  # vLLM shows what is below its own name.

_CONNECT_SECONDS = 5.0
_WARNING_SECONDS = 10.0  # Between two of a kind: a node that is away fails every call.
_STORE_SECONDS = 5.0


def _leave_the_engines_core() -> None:
    """On a CPU the engine's thread is bound to one core, and this one with it, where it would get nothing while
    the engine computes. The process that started this one may run on all that there are."""
    try:
        os.sched_setaffinity(0, os.sched_getaffinity(os.getppid()))
    except OSError:
        pass


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
            self._known = self._cache.register(layout)
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
        self._tensors: Optional[TensorMap] = None
        self._pages: list[torch.Tensor] = []
        self._layout: Optional[Layout] = None
        self._socket: Optional[str] = None
        self._meta: Optional[StepMetadata] = None
        self._step_started = 0.0

        self._lock = threading.Condition()  # For all below.
        self._stats = Stats()
        self._received: set[str] = set()
        self._failed: set[str] = set()
        self._came_short: dict[str, int] = {}
        self._storing: dict[str, int] = {}  # Stores that are not done, by request.
        self._ending: set[str] = set()  # Finished, and to be reported when their stores are done.
        self._reports: list[tuple[int, int, float]] = []
        self._warned: dict[str, float] = {}  # Each text is one thread's.

        self._load_queue: queue.SimpleQueue[Optional[Load | Layout]] = queue.SimpleQueue()
        self._store_queue: queue.SimpleQueue[Optional[Store | Layout]] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._run, args=(client, waiting, work), daemon=True, name=name)
                         for name, client, waiting, work in (
                             ("aquifer-load", self._loader, self._load_queue, self._load),
                             ("aquifer-store", self._storer, self._store_queue, self._store))]
        for thread in self._threads:
            thread.start()

    def register(self, kv_caches: dict[str, torch.Tensor], page_count: int) -> None:
        self._tensors = map_tensors(self._shape, self._heads, kv_caches, page_count)
        self._pages = [kv_caches[name] for name in self._shape.layer_names]

    # ---- The engine's thread ----

    def bind(self, meta: StepMetadata) -> None:
        """Loads begin before the forward pass: their pages are nobody else's."""
        self._meta = meta
        self._step_started = time.perf_counter()
        if meta.layout is not None:  # Said once.
            self._layout, self._socket = meta.layout, meta.socket
            self._load_queue.put(meta.layout)  # To be connected before there is a deadline.
            self._store_queue.put(meta.layout)
        for load in meta.loads:
            self._load_queue.put(load)

    def after_forward(self) -> None:
        """What earlier steps computed is stored now, and this step, if it was one prefill, reported."""
        meta, self._meta = self._meta, None
        if meta is None or not (meta.stores or meta.finished or meta.prefill):
            return
        with self._lock:
            for store in meta.stores:
                self._storing[store.request] = self._storing.get(store.request, 0) + 1
            self._ending.update(meta.finished)
            if meta.prefill is not None and self._rank == 0:
                self._reports.append((*meta.prefill, (time.perf_counter() - self._step_started) * 1000))
                del self._reports[:-16]
        for store in meta.stores:
            self._store_queue.put(store)

    def finish_stores(self, requests: list[str]) -> None:
        """Before their pages are used for something else."""
        if not requests:
            return
        with self._lock:
            while any(self._storing.get(request) for request in requests):
                self._lock.wait()

    def take_results(self) -> KVConnectorTransferResults:
        if not (self._received or self._ending):
            return KVConnectorTransferResults()
        with self._lock:
            received, self._received = self._received, set()
            failed, self._failed = self._failed, set()
            sent = {request for request in self._ending if not self._storing.get(request)}
            self._ending -= sent
        return KVConnectorTransferResults(finished_sending=sent, finished_recving=received, failed_recving=failed)

    def take_worker_meta(self) -> Optional[WorkerMetadata]:
        if not self._came_short:
            return None
        with self._lock:
            short, self._came_short = self._came_short, {}
        return WorkerMetadata(short) if short else None

    def take_stats(self) -> Optional[Stats]:
        if self._stats.is_empty():
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

    def _warn(self, said: str, error: Exception) -> None:
        now = time.monotonic()
        if now - self._warned.get(said, -_WARNING_SECONDS) >= _WARNING_SECONDS:
            self._warned[said] = now
            logger.warning(said, error)

    def _run(self, client: _Client, waiting: "queue.SimpleQueue[Any]", work: Callable[[Any], None]) -> None:
        _leave_the_engines_core()
        while (item := waiting.get()) is not None:
            if isinstance(item, Layout):
                try:
                    client.use(self._socket, item, _CONNECT_SECONDS)
                except (Error, OSError) as error:  # A token's file that cannot be read is one.
                    self._warn("Aquifer: no cache for now, and it is tried again: %s", error)
            else:
                work(item)

    def _load(self, load: Load) -> None:
        wanted = len(load.keys) // 32
        blocks, started = 0, time.perf_counter()
        try:
            blocks = self._load_blocks(load)
        except Error as error:
            self._warn("Aquifer: a load failed, and is computed: %s", error)
        except Exception:  # An engine must not wait for ever for a load whose thread has died.
            logger.exception("Aquifer: a load failed, and is computed")
        with self._lock:
            self._stats.add("loaded_blocks", blocks)
            self._stats.add("load_seconds", time.perf_counter() - started)
            self._received.add(load.request)
            if blocks < wanted:
                self._failed.add(load.request)
                self._came_short[load.request] = blocks

    def _load_blocks(self, load: Load) -> int:
        """How many blocks came, from the front."""
        assert self._layout is not None and self._tensors is not None
        end = time.monotonic() + load.deadline
        cache, known = self._loader.use(self._socket, self._layout, load.deadline)
        chain = Chain(known, load.keys)
        done = 0
        shared = load.first_token // self._shape.page_tokens - load.first_block * self._shape.pages_per_block
        if shared > 0:
            done = self._load_beside(cache, chain.part_of(0, 1), load, shared)
            if done == 0:
                return 0
        if done < len(chain):
            loaded = cache.load(chain.part_of(done), self._tensors, load.pages, load.first_block + done,
                                timeout=max(end - time.monotonic(), 0.001))
            if loaded.why != "ok":
                logger.info("Aquifer: %d of %d blocks were loaded: %s", done + loaded.blocks, len(chain), loaded.why)
            done += loaded.blocks
        return done

    def _load_beside(self, cache: Cache, chain: Chain, load: Load, shared: int) -> int:
        """A block whose first pages the engine has already, and others may be reading: it is loaded beside
        them, and only its other pages are copied."""
        count = self._shape.pages_per_block
        beside = [torch.empty((count, *tensor.shape[1:]), dtype=tensor.dtype) for tensor in self._pages]
        tensors = TensorMap(self._shape.layout, Family.CPU_PACKED, beside, heads=self._heads)
        loaded = cache.load(chain, tensors, list(range(count)), timeout=load.deadline)
        if loaded.blocks == 1:
            first = load.first_block * count
            for source, target in zip(beside, self._pages):
                for page in range(shared, count):
                    target[load.pages[first + page]].copy_(source[page])
        return loaded.blocks

    def _store(self, store: Store) -> None:
        try:
            if self._heads.writes:
                self._store_blocks(store)
        except Error as error:
            with self._lock:
                self._stats.add("failed_stores", 1)
            self._warn("Aquifer: a store failed: %s", error)
        except Exception:
            logger.exception("Aquifer: a store failed")
        with self._lock:
            self._storing[store.request] -= 1
            if self._storing[store.request] == 0:
                del self._storing[store.request]
            self._lock.notify_all()

    def _store_blocks(self, store: Store) -> None:
        assert self._layout is not None and self._tensors is not None
        cache, known = self._storer.use(self._socket, self._layout, _STORE_SECONDS)
        started = time.perf_counter()
        chain = Chain(known, store.keys)
        stored = cache.store(chain, store.parent, self._tensors, store.pages, store.first_block, store.first_block,
                             timeout=_STORE_SECONDS)
        if self._rank == 0:
            self._tell(cache, known, chain, store)
        with self._lock:
            self._stats.add("stored_blocks", stored.stored)
            self._stats.add("stored_bytes", stored.bytes)
            self._stats.add("refused_blocks", stored.refused + stored.failed)
            self._stats.add("store_seconds", time.perf_counter() - started)

    def _tell(self, cache: Cache, known: Registered, chain: Chain, store: Store) -> None:
        """What else the node should know: whose chain it is, and how long computing takes."""
        if store.session is not None or store.priority or store.ttl_seconds:
            cache.hint(chain.part_of(len(chain) - 1), store.session or store.request, SessionState.WILL_CONTINUE,
                       max(-8, min(7, store.priority)), store.ttl_seconds)
        with self._lock:
            reports, self._reports = self._reports, []
        for tokens, context, milliseconds in reports:
            cache.report_prefill(known, tokens, context, milliseconds)
