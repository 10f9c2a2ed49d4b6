"""The cache, as Python sees it: connect() reaches the host's node, open_cache() runs one in this process.

A Cache is one client, for one thread at a time: calls of several threads wait for each other, and join()
makes another client for a thread that should not. Whatever the name begins with `begin_` returns at once,
with a Pending; the others wait, and let other Python threads run. After a fork the child
makes its own.
"""
from __future__ import annotations

import ctypes
import dataclasses
import enum
import os
import select
import threading
import time
import weakref
from array import array
from typing import Any, Callable, Generic, Iterator, Optional, Sequence, TypeVar, Union

from . import _native
from ._native import KEY_BYTES, library
from .errors import Error, Invalid, Late, Unavailable, check, code_name, last_error
from .layout import Layout, text_bytes
from .tensors import TensorMap, Verify, page_array

T = TypeVar("T")

# select() waits by the microsecond, and takes descriptors below this; poll() waits by the millisecond.
_SELECTABLE = 1024
_MOST_SECONDS = 1e9  # What is longer, or infinite, is no number of nanoseconds.


class Tier(enum.IntEnum):
    """Where a block is, from near to far."""
    DRAM = 0
    NVME = 1
    PEER = 2
    DURABLE = 3


class RunState(enum.IntEnum):
    READY = 0
    BEING_FILLED = 1  # Another engine computes it right now. Ask again later.
    PENDING = 2  # A far tier must be asked first. Ask again later.


class Outcome(enum.IntEnum):
    """What became of a block that was to be reserved."""
    REFUSED = 0
    HAVE = 1
    BEING_FILLED = 2
    SLOT = 3


class SessionState(enum.IntEnum):
    UNKNOWN = 0
    WILL_CONTINUE = 1
    FINISHED = 2


@dataclasses.dataclass(frozen=True)
class Registered:
    """A layout that a client has made known. Good for that client only."""
    handle: int
    layout: Layout


@dataclasses.dataclass(frozen=True)
class Chain:
    """Which blocks a call speaks of: keys one after the other, 32 bytes each, in one group."""
    registered: Registered
    keys: bytes
    group: int = 0
    part: int = 0

    def __post_init__(self) -> None:
        if len(self.keys) % KEY_BYTES != 0:
            raise Invalid(f"keys have {KEY_BYTES} bytes each, and these are {len(self.keys)} in all")

    def __len__(self) -> int:
        return len(self.keys) // KEY_BYTES

    def part_of(self, first: int, end: Optional[int] = None) -> "Chain":
        """Blocks first up to, and without, end."""
        stop = None if end is None else end * KEY_BYTES
        return dataclasses.replace(self, keys=self.keys[first * KEY_BYTES:stop])

    def key(self, block: int) -> bytes:
        return self.keys[block * KEY_BYTES:(block + 1) * KEY_BYTES]

    def native(self) -> _native.Chain:
        return _native.Chain(layout=self.registered.handle, group=self.group, part=self.part,
                             keys=self.keys, key_count=len(self))


@dataclasses.dataclass(frozen=True)
class Run:
    """Neighbouring blocks in the same state and tier."""
    first: int
    count: int
    tier: Tier
    state: RunState
    estimated_ms: float


@dataclasses.dataclass(frozen=True)
class Match:
    matched: int  # Blocks that can be fetched, from the first that the engine lacks.
    pays: int  # So many of them are faster loaded than computed.
    load_ms: float  # For those.
    recompute_ms: float  # For the same; 0 while nothing was reported.
    runs: tuple[Run, ...]


@dataclasses.dataclass(frozen=True)
class Loaded:
    blocks: int  # From the front without a gap.
    bytes: int
    why: str  # Why the next block was not; "ok": all were.
    by_tier: dict[Tier, int]
    message: str = ""  # The same at length.

    @property
    def is_broken(self) -> bool:
        """Something is wrong, and not only a block that is not there or is late."""
        return self.why not in ("ok", "not found", "busy", "late")


@dataclasses.dataclass(frozen=True)
class Stored:
    stored: int
    published: int  # Of those, with all heads; the others wait for other ranks.
    had: int
    being_filled: int
    refused: int
    failed: int  # On the way: the GPU, the node, or the time.
    bytes: int
    refusal: str  # Of the last one that was refused.
    message: str = ""  # Why the last one failed that did.


@dataclasses.dataclass(frozen=True)
class Block:
    """A lent block; `data` is read-only, in place, and good until the Fetch is closed, or its cache."""
    why: str  # "ok", or why there is no data.
    tier: Tier
    data: memoryview


@dataclasses.dataclass(frozen=True)
class Slot:
    """A block to be written into `data`, where the outcome is SLOT."""
    outcome: Outcome
    refusal: str
    wait_ms: float
    reservation: int
    data: memoryview


@dataclasses.dataclass(frozen=True)
class TierStats:
    tier: Tier
    in_service: bool
    capacity_bytes: int
    used_bytes: int
    blocks: int
    tenant_bytes: int
    read_gbps: float


@dataclasses.dataclass(frozen=True)
class Stats:
    tiers: tuple[TierStats, ...]
    counters: dict[str, int]  # docs/operating/metrics.md lists them.


def _memory(address: Optional[int], count: int, lender: object = None) -> memoryview:
    """`lender` lives for as long as the view, or anything that was made of it."""
    if not address:
        return memoryview(b"")
    memory = (ctypes.c_uint8 * count).from_address(address)
    memory.lender = lender  # type: ignore[attr-defined]
    return memoryview(memory).cast("B")


def _nanos(seconds: Optional[float]) -> int:
    """0 is the library's default. A time that is over already is a very short one."""
    return 0 if seconds is None else max(int(min(seconds, _MOST_SECONDS) * 1e9), 1)


def _encoded(text: Optional[str]) -> Optional[bytes]:
    return None if text is None else text_bytes(text)


def _matched(request: Any) -> Match:
    found = _native.Matched(size=ctypes.sizeof(_native.Matched))
    check(library.aquifer_request_matched(request, ctypes.byref(found)))
    runs: Any = ()
    if found.run_count:
        runs = (_native.Run * found.run_count)()
        check(library.aquifer_request_runs(request, 0, runs, found.run_count))
    return Match(found.matched, found.pays, found.load_ms, found.recompute_ms,
                 tuple([Run(run.first, run.count, Tier(run.tier), RunState(run.state), run.estimated_ms) for run in runs]))


def _counts(request: Any) -> _native.Counts:
    counts = _native.Counts(size=ctypes.sizeof(_native.Counts))
    check(library.aquifer_request_counts(request, ctypes.byref(counts)))
    return counts


def _staged(request: Any) -> tuple[int, int]:
    counts = _counts(request)
    return counts.found, counts.staged


def _stats(request: Any) -> Stats:
    tiers, counters = ctypes.c_size_t(), ctypes.c_size_t()
    check(library.aquifer_request_stats(request, ctypes.byref(tiers), ctypes.byref(counters)))
    tier_items = (_native.TierStats * tiers.value)()
    check(library.aquifer_request_tiers(request, 0, tier_items, tiers.value))
    items = (_native.Counter * counters.value)()
    check(library.aquifer_request_counters(request, 0, items, counters.value))
    return Stats(
        tuple(TierStats(Tier(t.tier), t.in_service != 0, t.capacity_bytes, t.used_bytes, t.blocks, t.tenant_bytes,
                        t.read_gbps) for t in tier_items),
        {item.name.decode(): item.value for item in items})


class Pending(Generic[T]):
    """A call that is under way. One that is dropped is cancelled."""

    def __init__(self, cache: "Cache", request: Any, read: Callable[[Any], T]):
        self._cache = cache
        self._request = request
        self._read = read

    def done(self) -> bool:
        with self._cache._lock:
            if self._request is None or library.aquifer_request_done(self._request):
                return True
            check(library.aquifer_poll(self._cache._live(), None))
            return bool(library.aquifer_request_done(self._request))

    def result(self, timeout: Optional[float] = None) -> T:
        """Waits for the answer. Late: it is still under way, and can be waited for again."""
        with self._cache._lock:
            if self._request is None:
                raise Invalid("the answer was taken already")
            if not library.aquifer_request_done(self._request):
                nanos = -1 if timeout is None else _nanos(timeout)
                check(library.aquifer_wait(self._cache._live(), self._request, nanos))
            request, self._request = self._request, None
            try:
                check(library.aquifer_request_status(request))
                return self._read(request)
            finally:
                self._cache._spare.append(request)

    def cancel(self) -> None:
        """Answered soon, with what there is; it still has to be waited for."""
        with self._cache._lock:
            if self._request is not None and self._cache._handle:
                check(library.aquifer_cancel(self._cache._handle, self._request))

    def __del__(self) -> None:
        if getattr(self, "_request", None) is not None and self._cache._pid == os.getpid():
            with self._cache._lock:
                library.aquifer_request_free(self._request)
            self._request = None


class Fetch:
    """Blocks being lent, in the chain's order. Iterate to have each as soon as it is there:

        with cache.fetch(chain) as blocks:
            for block in blocks: ...

    One that is dropped gives back by itself, once no block's data is in use any more.
    """

    def __init__(self, cache: "Cache", request: Any, count: int):
        self._cache = cache
        self._request = request
        self._count = count
        self._next = 0
        self._leases: list[int] = []

    def __enter__(self) -> "Fetch":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Block]:
        while self._next < self._count and self._await_next():
            fetched = _native.Fetched()
            with self._cache._lock:
                check(library.aquifer_request_fetched(self._request, self._next, ctypes.byref(fetched), 1))
            self._next += 1
            if fetched.lease:
                self._leases.append(fetched.lease)
            yield Block(code_name(fetched.code), Tier(fetched.tier),
                        _memory(fetched.data, fetched.data_bytes, lender=self).toreadonly())

    def _await_next(self) -> bool:
        """False: the fetch as a whole came to an end before that."""
        while library.aquifer_request_completed(self._request) <= self._next:
            if library.aquifer_request_done(self._request):
                check(library.aquifer_request_status(self._request))
                return False
            moved = ctypes.c_size_t()
            with self._cache._lock:
                check(library.aquifer_poll(self._cache._live(), ctypes.byref(moved)))
            if moved.value == 0:
                self._cache.wait_for_events(0.1)
        return True

    def close(self) -> None:
        """Gives everything back: nobody may touch the data any more."""
        if self._request is None:
            return
        with self._cache._lock:
            try:
                leases = self._leases + self._unseen_leases() if self._cache._handle else []
                if leases:
                    ops = (_native.ReleaseOp * len(leases))()
                    for op, lease in zip(ops, leases):
                        op.lease = lease
                    check(library.aquifer_release(self._cache._handle, ops, len(leases)))
            finally:
                library.aquifer_request_free(self._request)
                self._request = None

    def _unseen_leases(self) -> list[int]:
        done = library.aquifer_request_done(self._request)
        unseen = library.aquifer_request_completed(self._request) - self._next
        if not done or unseen <= 0:
            return []  # A request that is not done gives back by itself when it is freed.
        blocks = (_native.Fetched * unseen)()
        check(library.aquifer_request_fetched(self._request, self._next, blocks, unseen))
        return [block.lease for block in blocks if block.lease]

    def __del__(self) -> None:
        if getattr(self, "_request", None) is None or self._cache._pid != os.getpid():
            return
        try:
            self.close()
        except Error:
            pass  # Its node is gone, and the leases with it.


_caches: "weakref.WeakSet[Cache]" = weakref.WeakSet()


def _renew_locks() -> None:
    """In the child of a fork: threads that held them are not there. The child may only close what it has, and hear
    that it is not its own."""
    for cache in list(_caches):
        cache._lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_locks)


class Cache:
    """One client of a cache: one tenant, and one engine or one rank of one. See connect() and
    open_cache()."""

    def __init__(self, handle: ctypes.c_void_p, tenant: str):
        self.tenant = tenant
        self._handle: Optional[ctypes.c_void_p] = handle
        self._lock = threading.RLock()  # Freeing a Pending can happen inside of any call.
        self._spare: list[Any] = []
        self._pid = os.getpid()
        _caches.add(self)

    # ---- Its life ----

    def __enter__(self) -> "Cache":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    def close(self) -> None:
        """Gives back all that this client holds."""
        with self._lock:
            handle, self._handle = self._handle, None
            if handle is None or self._pid != os.getpid():
                return
            for request in self._spare:
                library.aquifer_request_free(request)
            self._spare.clear()
            library.aquifer_close(handle)

    def join(self, engine: Optional[str] = None) -> "Cache":
        """Another client of the same cache and tenant, for another thread."""
        joined = ctypes.c_void_p()
        with self._lock:
            check(library.aquifer_join(self._live(), text_bytes(self.tenant), _encoded(engine),
                                       ctypes.byref(joined)))
        return Cache(joined, self.tenant)

    def fileno(self) -> int:
        """For select and epoll: readable when poll() has something to do."""
        return library.aquifer_event_fd(self._live())

    def wait_for_events(self, seconds: float) -> None:
        """Until poll() has something to do, or for so long."""
        descriptor = self.fileno()
        if descriptor < _SELECTABLE:
            select.select([descriptor], [], [], seconds)
        else:
            poller = select.poll()
            poller.register(descriptor, select.POLLIN)
            poller.poll(seconds * 1000)

    def poll(self) -> int:
        """Applies what has arrived; how many calls went on."""
        moved = ctypes.c_size_t()
        with self._lock:
            check(library.aquifer_poll(self._live(), ctypes.byref(moved)))
        return moved.value

    def _live(self) -> ctypes.c_void_p:
        if self._handle is None:
            raise Unavailable("the cache was closed")
        if self._pid != os.getpid():
            raise Invalid("the cache was made before a fork; make one in this process")
        return self._handle

    def _begin(self, read: Callable[[Any], T], call: Any, *args: Any) -> Pending[T]:
        with self._lock:
            handle = self._live()
            request = self._spare.pop() if self._spare else library.aquifer_request_new()
            try:
                check(call(handle, request, *args))
            except Error:
                self._spare.append(request)
                raise
        return Pending(self, request, read)

    # ---- Layouts ----

    def register(self, layout: Layout, timeout: Optional[float] = None) -> Registered:
        def read(request: Any) -> Registered:
            handle = ctypes.c_uint32()
            check(library.aquifer_request_layout(request, ctypes.byref(handle)))
            return Registered(handle.value, layout)
        native = layout.native()
        return self._begin(read, library.aquifer_register_layout, ctypes.byref(native)).result(timeout)

    # ---- Recall ----

    def begin_match(self, chain: Chain, have: int = 0) -> Pending[Match]:
        args = _native.MatchArgs(size=ctypes.sizeof(_native.MatchArgs), chain=chain.native(), have=have)
        return self._begin(_matched, library.aquifer_match, ctypes.byref(args))

    def match(self, chain: Chain, have: int = 0, timeout: Optional[float] = None) -> Match:
        """How much of the chain is there; the engine has the first `have` blocks itself. Raises Late where the node
        does not answer within the timeout; without one, a node that hangs is waited for until it counts as gone."""
        return self.begin_match(chain, have).result(timeout)

    def fetch(self, chain: Chain, timeout: Optional[float] = None) -> Fetch:
        """Lends blocks; every one is answered within the timeout (a second)."""
        args = _native.FetchArgs(size=ctypes.sizeof(_native.FetchArgs), chain=chain.native(),
                                 timeout_nanos=_nanos(timeout))
        with self._lock:
            request = library.aquifer_request_new()
            try:
                check(library.aquifer_fetch(self._live(), request, ctypes.byref(args)))
            except Error:
                library.aquifer_request_free(request)
                raise
        return Fetch(self, request, len(chain))

    def load(self, chain: Chain, tensors: TensorMap, pages: Union[Sequence[int], array],
             first_block: int = 0, timeout: Optional[float] = None,
             verify: Verify = Verify.COPYING) -> Loaded:
        """Copies blocks into the engine's pages, each while the next are being read, and checks them in
        the same pass. `pages` is a sequence's page table; the first key names its block `first_block`.
        Returns how many came, from the front: what lies behind is to be computed, and its pages may have
        been written to."""
        if tensors.is_read_only:
            raise Invalid("the tensors are read-only, and cannot be loaded into; give arrays that may be written to")
        table = page_array(pages)
        args = _native.LoadArgs(
            size=ctypes.sizeof(_native.LoadArgs), verify=verify, chain=chain.native(), map=tensors.native,
            pages=table.buffer_info()[0], page_count=len(table), first_block=first_block,
            timeout_nanos=_nanos(timeout))
        loaded = _native.Loaded(size=ctypes.sizeof(_native.Loaded))
        with self._lock:
            check(library.aquifer_load(self._live(), ctypes.byref(args), ctypes.byref(loaded)))
            message = last_error() if loaded.code else ""
        tiers = {tier: loaded.tier_blocks[tier] for tier in Tier if loaded.tier_blocks[tier]}
        return Loaded(loaded.blocks, loaded.bytes, code_name(loaded.code), tiers, message)

    # ---- Store ----

    def store(self, chain: Chain, parent: bytes, tensors: TensorMap, pages: Union[Sequence[int], array],
              first_block: int = 0, position: int = 0, engine_hashes: Optional[Sequence[int]] = None,
              timeout: Optional[float] = None) -> Stored:
        """Copies those blocks out of the engine's pages that are not there yet. `parent` is the key before
        the first one, or the root, and `position` the first one's place in its chain."""
        table = page_array(pages)
        names = array("Q", engine_hashes) if engine_hashes is not None else None
        if names is not None and len(names) != len(chain):
            raise Invalid("there is to be one engine hash a key")
        args = _native.StoreArgs(
            size=ctypes.sizeof(_native.StoreArgs), position=position, chain=chain.native(),
            engine_hashes=names.buffer_info()[0] if names else None, map=tensors.native,
            pages=table.buffer_info()[0], page_count=len(table), first_block=first_block,
            timeout_nanos=_nanos(timeout))
        self._set_parent(args, parent)
        stored = _native.Stored(size=ctypes.sizeof(_native.Stored))
        with self._lock:
            check(library.aquifer_store(self._live(), ctypes.byref(args), ctypes.byref(stored)))
            message = last_error() if stored.failed else ""
        return Stored(stored.stored, stored.published, stored.had, stored.being_filled, stored.refused,
                      stored.failed, stored.bytes, library.aquifer_refusal_name(stored.refusal).decode(), message)

    @staticmethod
    def _set_parent(args: Any, parent: bytes) -> None:
        if len(parent) != KEY_BYTES:
            raise Invalid(f"a key has {KEY_BYTES} bytes, not {len(parent)}")
        ctypes.memmove(ctypes.addressof(args.parent), parent, KEY_BYTES)

    def reserve(self, chain: Chain, parent: bytes, position: int = 0) -> list[Slot]:
        """Slots to write blocks into, for engines whose memory a TensorMap cannot describe."""
        def read(request: Any) -> list[Slot]:
            blocks = (_native.Reserved * len(chain))()
            check(library.aquifer_request_reserved(request, 0, blocks, len(chain)))
            return [Slot(Outcome(block.outcome), library.aquifer_refusal_name(block.refusal).decode(),
                         block.wait_ms, block.reservation, _memory(block.slot, block.slot_bytes))
                    for block in blocks]
        args = _native.ReserveArgs(size=ctypes.sizeof(_native.ReserveArgs), position=position,
                                   chain=chain.native())
        self._set_parent(args, parent)
        return self._begin(read, library.aquifer_reserve, ctypes.byref(args)).result()

    def commit(self, slots: Sequence[Slot]) -> list[bool]:
        """Publishes whole slots as they were written; which of them are now served."""
        ops = (_native.CommitOp * len(slots))()
        for op, slot in zip(ops, slots):
            memory = (ctypes.c_uint8 * len(slot.data)).from_buffer(slot.data)
            op.reservation = slot.reservation
            check(library.aquifer_sum_lanes(memory, len(slot.data), 0, ctypes.byref(op.sums)))

        def read(request: Any) -> list[bool]:
            blocks = (_native.Committed * len(slots))()
            check(library.aquifer_request_committed(request, 0, blocks, len(slots)))
            return [block.code == 0 and block.published != 0 for block in blocks]
        return self._begin(read, library.aquifer_commit, ops, len(slots)).result()

    def abort(self, slots: Sequence[Slot]) -> None:
        """Gives slots back that are not to be committed."""
        given = array("Q", [slot.reservation for slot in slots])
        with self._lock:
            check(library.aquifer_abort(self._live(), given.buffer_info()[0], len(given)))

    # ---- Care ----

    def begin_prestage(self, chain: Optional[Chain] = None, session: Optional[str] = None,
                       timeout: Optional[float] = None) -> Pending[tuple[int, int]]:
        """Brings blocks to memory ahead of a load; answers how many are known, and in memory now."""
        args = _native.PrestageArgs(size=ctypes.sizeof(_native.PrestageArgs), session=_encoded(session),
                                    timeout_nanos=_nanos(timeout))
        if chain is not None:
            args.chain = chain.native()
        return self._begin(_staged, library.aquifer_prestage, ctypes.byref(args))

    def prestage(self, chain: Optional[Chain] = None, session: Optional[str] = None,
                 timeout: Optional[float] = None) -> tuple[int, int]:
        return self.begin_prestage(chain, session, timeout).result()

    def flush(self, tier: Tier = Tier.NVME, timeout: Optional[float] = None) -> None:
        """Returns when all that this tenant committed before has reached the tier; else raises."""
        self._begin(lambda _: None, library.aquifer_flush, tier, _nanos(timeout)).result()

    def pin(self, chain: Chain, seconds: int, timeout: Optional[float] = None) -> int:
        """Keeps blocks from being evicted for so long, 0 takes it back; how many were there."""
        args = _native.PinArgs(size=ctypes.sizeof(_native.PinArgs), chain=chain.native(), seconds=seconds)
        return self._begin(lambda request: _counts(request).pinned, library.aquifer_pin,
                           ctypes.byref(args)).result(timeout)

    def evict(self, chain: Optional[Chain] = None, session: Optional[str] = None,
              everything: bool = False) -> int:
        """Deletes for good, from every tier: by chain, by session, or all that the tenant has."""
        args = _native.EvictArgs(size=ctypes.sizeof(_native.EvictArgs), everything=int(everything),
                                 session=_encoded(session))
        if chain is not None:
            args.chain = chain.native()
        return self._begin(lambda request: _counts(request).evicted, library.aquifer_evict,
                           ctypes.byref(args)).result()

    def hint(self, chain: Chain, session: str, state: SessionState = SessionState.UNKNOWN,
             priority: int = 0, ttl_seconds: int = 0, *, durable: bool = False, return_seconds: int = 0) -> None:
        """What the engine knows about a conversation: its chain (the last key is enough), whether it goes
        on, how much it matters (-8 to 7), when it is to be deleted, whether it is to outlive the node though
        its tenant's do not (where the node has a durable tier), and, of one that will continue, in how many
        seconds. Its name has at most 256 bytes of UTF-8; one with control characters is not remembered."""
        args = _native.HintArgs(size=ctypes.sizeof(_native.HintArgs), state=state, chain=chain.native(),
                                session=_encoded(session), ttl_seconds=ttl_seconds, priority=priority,
                                durability=int(durable), return_seconds=return_seconds)
        with self._lock:
            check(library.aquifer_hint(self._live(), ctypes.byref(args)))

    def report_prefill(self, registered: Registered, tokens: int, context_tokens: int,
                       milliseconds: float) -> None:
        """How long the engine took to compute, so that the cache can tell what pays."""
        with self._lock:
            check(library.aquifer_report_prefill(self._live(), registered.handle, tokens, context_tokens,
                                                 milliseconds))

    def begin_stats(self) -> Pending[Stats]:
        return self._begin(_stats, library.aquifer_stats)

    def stats(self, timeout: Optional[float] = None) -> Stats:
        return self.begin_stats().result(timeout)


def connect(socket: Optional[str] = None, *, tenant: str = "local", engine: Optional[str] = None,
            token: Optional[str] = None, observe: bool = False, timeout: Optional[float] = None) -> Cache:
    """The cache of the host's node (`aquifer serve`). Without `socket`: $AQUIFER_SOCKET, else where a node
    puts it. `engine` is one name for all ranks of an engine. `observe`: the node only records."""
    options = _native.ConnectOptions(
        size=ctypes.sizeof(_native.ConnectOptions), observe=int(observe), tenant=text_bytes(tenant),
        engine=_encoded(engine), socket=_encoded(socket), token=_encoded(token),
        timeout_nanos=_nanos(timeout))
    handle = ctypes.c_void_p()
    check(library.aquifer_connect(ctypes.byref(options), ctypes.byref(handle)))
    return Cache(handle, tenant)


def open_cache(*, dram_bytes: int = 0, nvme_directories: Sequence[str] = (), nvme_bytes: int = 0,
               tenant: str = "local", engine: Optional[str] = None, nvme_sync: bool = False,
               worker_threads: int = 0, keep_available_bytes: int = 0) -> Cache:
    """A cache inside this process, for an engine that shares it with nobody. 0 is the default."""
    directories = (ctypes.c_char_p * max(len(nvme_directories), 1))(
        *[text_bytes(os.fspath(directory)) for directory in nvme_directories])
    options = _native.OpenOptions(
        size=ctypes.sizeof(_native.OpenOptions), worker_threads=worker_threads, tenant=text_bytes(tenant),
        engine=_encoded(engine), dram_bytes=dram_bytes, keep_available_bytes=keep_available_bytes,
        nvme_directories=directories, nvme_directory_count=len(nvme_directories), nvme_bytes=nvme_bytes,
        nvme_sync=int(nvme_sync))
    handle = ctypes.c_void_p()
    check(library.aquifer_open(ctypes.byref(options), ctypes.byref(handle)))
    return Cache(handle, tenant)


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    """Raises Late unless the condition comes true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise Late(f"not within {seconds} s")
        time.sleep(0.01)
