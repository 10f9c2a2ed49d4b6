"""The connector's half in the scheduler: names of blocks, what is there, and what is to be moved. All of it
runs on the scheduler's thread, and none of it waits, but for 0.2 ms for the answer to a match (inquiry.py)."""
from __future__ import annotations

import dataclasses
import hashlib
import time
import uuid
from array import array
from collections import deque
from typing import Any, Iterable, Optional, Union

from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from ..cache import Chain, Match, Pending, Tier
from ..errors import Error, Late
from ..layout import Extra, derive_keys
from .adapters import Adapters
from .hints import Warnings, Wishes, read_wishes
from .inquiry import Inquiry
from .items import Item, Items, may_be_named
from .messages import CameShort, Load, NothingToTell, Note, Prefill, Stats, StepMetadata, Store, WorkerMetadata
from .node_link import NodeLink, Reached
from .settings import Settings
from .shape import Shape

logger = init_logger("vllm." + __name__)  # vLLM shows what is below its own name.

_LEAST_DEADLINE = 0.05  # Seconds.
_UNKNOWN_DEADLINE = 1.0  # While nobody has reported how long computing takes.
_MOST_PRESTAGES = 64
_MOST_ROOTS = 4096
_AVOID_SECONDS = 30.0  # A block that was late or unreadable is not offered to anybody for so long.
_MOST_AVOIDED = 4096
_FREEING_SECONDS = 0.5  # Pages that are being stored come free soon, or the node is slow.
_NAMING_SECONDS = 1.0  # For so long a request waits until its images are named.
_MULTIMODAL = 1  # The tag of an extra.
_LEAST_PREFILL = 16  # Tokens; steps with fewer are decoding.
_NOTHING = NothingToTell()
_SOURCES = {Tier.DRAM: CacheHitSource.HOST, Tier.NVME: CacheHitSource.DISK, Tier.PEER: CacheHitSource.P2P,
            Tier.DURABLE: CacheHitSource.EXTERNAL_UNSPECIFIED}


class _Tracked:
    """One request, as far as its blocks are concerned."""

    def __init__(self, request: Any, root: bytes, adapter: Optional[bytes], items: tuple[Item, ...],
                 block_tokens: int):
        self.request = request
        self.root = root
        self.adapter = adapter
        self.items = items
        self._named_until = time.monotonic() + _NAMING_SECONDS
        self.wishes: Wishes = read_wishes(request)
        self.prefetch = self.wishes.prefetch  # Sessions that the node has not heard of yet.
        self.keys = b""
        self.submitted = 0  # Blocks that a worker was told to store, or that were there.
        self.limit: Optional[int] = None  # Blocks from here on failed to load, and are not offered again.
        self.loading: Optional[tuple[int, int]] = None  # First block, and how many are known to have come.
        self.stores_open = False  # A worker may be reading its pages.
        self.left_alone = False  # Nothing of it is stored or recalled any more.
        self.is_recalled = False  # Some of it was loaded, or was to be.
        self.inquiry = Inquiry()
        self.is_asked = False  # The node has heard of it.
        self.offered: Optional[tuple[int, int]] = None  # Tokens that the engine had, and that were offered on top.
        self._block = block_tokens

    def waits_for_names(self) -> bool:
        return not all(item.is_settled for item in self.items) and time.monotonic() < self._named_until

    def blocks_of(self, tokens: int) -> int:
        """Whole blocks in the first tokens, in front of what has no name; their keys are known then."""
        if self.items:
            tokens = min([tokens, *(item.first for item in self.items if item.name is None)])
        whole = tokens // self._block
        known = len(self.keys) // 32
        if whole > known:
            ids = array("I", self.request.all_token_ids[known * self._block:whole * self._block])
            self.keys += derive_keys(self.parent(known), ids, self._block, self._extras(known, whole))
        return whole

    def _extras(self, first: int, end: int) -> list[Extra]:
        """What these blocks depend on besides their tokens; `first` is the first of them."""
        return [Extra(block - first, _MULTIMODAL, item.extra()) for item in self.items
                for block in range(max(first, item.first // self._block), min(end, -(-item.end // self._block)))]

    def key(self, block: int) -> bytes:
        return self.keys[block * 32:(block + 1) * 32]

    def parent(self, block: int) -> bytes:
        return self.key(block - 1) if block > 0 else self.root


class _Avoided:
    """Blocks that failed to load a moment ago: the next request would wait for them as long."""

    def __init__(self) -> None:
        self._until: dict[bytes, float] = {}

    def add(self, key: bytes) -> None:
        now = time.monotonic()
        self._until.pop(key, None)
        while self._until:
            oldest = next(iter(self._until))
            if len(self._until) < _MOST_AVOIDED and self._until[oldest] > now:
                break
            del self._until[oldest]
        self._until[key] = now + _AVOID_SECONDS

    def first_of(self, tracked: _Tracked, first: int, end: int) -> int:
        """The first of these blocks that is to be avoided; `end`: none is."""
        if not self._until:
            return end
        now = time.monotonic()
        return next((block for block in range(first, end) if self._until.get(tracked.key(block), 0.0) > now), end)


class SchedulerSide:
    def __init__(self, vllm_config: Any, shape: Shape, settings: Settings, engine: str):
        self._settings = settings
        self._shape = shape
        self._link = NodeLink(vllm_config, shape.layout, settings, engine)
        self._stats = Stats()
        self._tracked: dict[str, _Tracked] = {}
        self._avoided = _Avoided()
        self._next: Optional[StepMetadata] = None  # What the workers are told with the next step; most are told nothing.
        self._freeing: dict[str, float] = {}  # Ended requests whose pages are being stored, and since when.
        # One that is dropped is cancelled, unless it is done.
        self._prestages: deque[Pending[tuple[int, int]]] = deque(maxlen=_MOST_PRESTAGES)
        lora_config = getattr(vllm_config, "lora_config", None)
        self._adapters = Adapters(lora_config)
        self._items = Items(may_be_named(vllm_config))
        transfer = getattr(vllm_config, "kv_transfer_config", None)
        self._loads_blocks = getattr(transfer, "is_kv_consumer", True)  # Not with "kv_role": "kv_producer".
        self._stores_blocks = getattr(transfer, "is_kv_producer", True)
        self._sends_again = bool(getattr(vllm_config, "use_v2_model_runner", False))  # What a resumed request has.
        # On CPUs, vLLM computes a request without an adapter as one with the last of them where both are in a batch.
        self._only_adapters_store = lora_config is not None and current_platform.is_cpu()
        self._warnings = Warnings()
        self._roots: dict[tuple[Optional[bytes], str], bytes] = {}
        self._layout_said = False
        self._said_up: Optional[bool] = None  # The last value of the gauge.
        self._epoch = ""

    # ---- Names ----

    def _track(self, request: Any) -> Optional[_Tracked]:
        """Null: its KV does not follow from names that we know."""
        found = self._tracked.get(request.request_id)
        if found is not None:
            return found
        adapter = self._adapter(request.lora_request)  # Also before anything is known: to see its files early.
        if self._link.known is None or request.prompt_embeds is not None or request.pooling_params is not None:
            return None
        if getattr(request.lora_request, "load_inplace", False):
            return None
        # Its user goes on writing while it runs: tokens that it has are taken back, and images may come.
        if getattr(request, "resumable", False):
            return None
        if request.lora_request is not None and adapter is None:
            return None
        salt = request.cache_salt or ""
        if self._epoch or len(salt.encode()) > 128 or "\0" in salt:
            salt = hashlib.sha256(f"{self._epoch}\0{salt}".encode()).hexdigest()
        root = self._root(adapter, salt)
        tracked = self._tracked[request.request_id] = _Tracked(
            request, root, adapter, self._items.of(request, adapter), self._shape.block_tokens)
        if tracked.wishes.mistakes:
            self._stats.add("invalid_params", len(tracked.wishes.mistakes))
            self._warnings.tell(tracked.wishes.mistakes)
            tracked.wishes = dataclasses.replace(tracked.wishes, mistakes=())  # The workers need not hear of them.
        if not self._stores_blocks or (self._only_adapters_store and request.lora_request is None):
            tracked.wishes = dataclasses.replace(tracked.wishes, store=False)
        return tracked

    def _root(self, adapter: Optional[bytes], salt: str) -> bytes:
        found = self._roots.get((adapter, salt))
        if found is None:
            known = self._link.known
            assert known is not None
            if len(self._roots) >= _MOST_ROOTS:
                self._roots.clear()
            found = self._roots[adapter, salt] = known.layout.root(self._settings.tenant, adapter, salt)
        return found

    def _adapter(self, lora: Any) -> Optional[bytes]:
        return None if lora is None else self._adapters.digest_of(lora)

    def _is_left_alone(self, tracked: _Tracked) -> bool:
        """Also from when its adapter's files are others: the engine may load those, and compute the rest with them."""
        if not tracked.left_alone and self._adapter(tracked.request.lora_request) != tracked.adapter:
            tracked.left_alone = True
        return tracked.left_alone

    def _to_tell(self) -> StepMetadata:
        """The next message to the workers, made with the first thing that there is to tell."""
        if self._next is None:
            self._next = StepMetadata()
        return self._next

    # ---- The scheduler's calls ----

    # None of them raises for what is in a request: that would be the end of the engine.

    def on_new_request(self, request: Any) -> None:
        try:
            self._prestage(request)
        except Exception:
            self._leave_alone(request)

    def _prestage(self, request: Any) -> None:
        tracked, reached = self._track(request), self._link.reached()
        if tracked is None or reached is None:
            return
        self._prefetch(tracked, reached)
        if self._may_load(request) and not tracked.waits_for_names():
            self._ask(tracked, reached)

    def _may_load(self, request: Any) -> bool:
        """Who wants something of every token of a prompt, its log-probability say, has all of them computed."""
        return self._loads_blocks and not request.skip_reading_prefix_cache

    def _prefetch(self, tracked: _Tracked, reached: Reached) -> None:
        """Other sessions' blocks, once, whatever becomes of the request's own."""
        if not tracked.prefetch or not self._loads_blocks:
            return
        sessions, tracked.prefetch = tracked.prefetch, ()
        try:
            for session in sessions:
                self._prestages.append(reached.cache.begin_prestage(session=session))
        except Error:
            self._stats.add("failed_calls", 1)

    def _ask(self, tracked: _Tracked, reached: Reached) -> None:
        tracked.is_asked = True
        blocks = tracked.blocks_of(tracked.request.num_prompt_tokens)
        try:
            if blocks:
                chain = Chain(reached.known, tracked.keys)
                tracked.inquiry.ask(reached, chain)
                self._prestages.append(reached.cache.begin_prestage(chain))
        except Error:
            self._stats.add("failed_calls", 1)

    def _leave_alone(self, request: Any) -> None:
        logger.exception("Aquifer: the request %s is left alone", request.request_id)
        self._stats.add("failed_calls", 1)
        tracked = self._tracked.get(request.request_id)
        if tracked is not None:
            tracked.left_alone = True

    def matched_tokens(self, request: Any, computed: int) -> Optional[int]:
        """Tokens behind the computed ones that are worth loading; None: to be asked for again in the next step."""
        try:
            return self._match(request, computed)
        except Exception:
            self._leave_alone(request)
            return 0

    def _match(self, request: Any, computed: int) -> Optional[int]:
        tracked, reached = self._track(request), self._link.reached()
        if tracked is None or self._is_left_alone(tracked):
            return 0
        if reached is not None:  # The node may have come since the request did.
            self._prefetch(tracked, reached)
        if tracked.waits_for_names():
            return None
        if reached is None or not self._may_load(request):
            return 0
        if not tracked.is_asked:
            self._ask(tracked, reached)
        have = computed // self._shape.block_tokens
        blocks = tracked.blocks_of(request.num_tokens)
        if tracked.limit is not None:
            blocks = min(blocks, tracked.limit)
        blocks = self._avoided.first_of(tracked, have, blocks)
        if blocks <= have:
            return 0
        try:
            match = tracked.inquiry.look(reached, tracked.keys[:blocks * 32])
        except Error as error:
            if isinstance(error, Late):
                self._link.was_silent()
            tracked.inquiry.forget()
            self._stats.add("failed_calls", 1)
            return 0
        if match is None:
            return None
        count = min(match.matched if self._settings.always else match.pays, blocks)
        # The last token is computed in any case: without it there is nothing to sample from.
        end = min(count * self._shape.block_tokens, request.num_tokens - 1)
        tracked.offered = (computed, max(end - computed, 0))
        return tracked.offered[1]

    def allocated(self, request: Any, pages: list[int], external: int) -> None:
        """There are pages for so many tokens behind those that the engine had when it was offered them."""
        tracked = self._tracked[request.request_id]
        assert tracked.offered is not None
        computed, offered = tracked.offered
        block = self._shape.block_tokens
        # What does not end where a block does is its beginning.
        first, end = computed // block, -(-(computed + min(external, offered)) // block)
        tracked.loading, tracked.is_recalled = (first, end - first), True
        self._to_tell().loads.append(Load(request.request_id, tracked.keys[first * 32:end * 32], pages, first, computed,
                                          time.monotonic() + self._load_seconds(tracked.inquiry.match, end - first)))
        self._stats.add("load_requests", 1)

    def _load_seconds(self, match: Optional[Match], blocks: int) -> float:
        """As long as computing them would take."""
        if self._settings.deadline_ms:
            return self._settings.deadline_ms / 1000
        if match is None or not match.recompute_ms:
            return _UNKNOWN_DEADLINE
        return max(match.recompute_ms / 1000 * blocks / max(match.pays, 1), _LEAST_DEADLINE)

    def hit_sources(self, request: Any, external: int) -> dict[CacheHitSource, int]:
        tracked = self._tracked.get(request.request_id)
        match = tracked.inquiry.match if tracked is not None else None
        if tracked is None or match is None or external <= 0:
            return {CacheHitSource.EXTERNAL_UNSPECIFIED: external} if external else {}
        computed = tracked.offered[0] if tracked.offered is not None else 0
        block, end, sources = self._shape.block_tokens, computed + external, dict[CacheHitSource, int]()
        for run in match.runs:
            tokens = min(end, (run.first + run.count) * block) - max(computed, run.first * block)
            if tokens > 0:
                sources[_SOURCES[run.tier]] = sources.get(_SOURCES[run.tier], 0) + tokens
        left = external - sum(sources.values())
        if left > 0:
            sources[CacheHitSource.EXTERNAL_UNSPECIFIED] = sources.get(CacheHitSource.EXTERNAL_UNSPECIFIED, 0) + left
        return sources

    def build_meta(self, output: Any) -> Union[StepMetadata, NothingToTell]:
        for new in output.scheduled_new_reqs:
            if new.mm_features:
                self._see_items(new)
        if output.preempted_req_ids:
            self._forget_stores(output.preempted_req_ids)
        self._submit_computed(output)
        if not self._layout_said and (known := self._link.known) is not None:
            self._layout_said = True
            told = self._to_tell()
            told.layout, told.socket = known.layout, self._link.socket
        if (prefill := _prefill_of(output)) is not None:
            self._to_tell().prefill = prefill
        message, self._next = self._next, None
        return message if message is not None else _NOTHING

    def _forget_stores(self, preempted: Iterable[str]) -> None:
        """The workers end them before anything else. Some may be dropped: they are stored when they are there again."""
        self._to_tell().preempted = list(preempted)
        for request_id in preempted:
            tracked = self._tracked.get(request_id)
            if tracked is not None:
                tracked.stores_open, tracked.submitted = False, 0
                tracked.inquiry.forget()  # By now it may have stored something itself.

    def _see_items(self, new: Any) -> None:
        """Of a request whose first step this is."""
        tracked = self._tracked.get(new.req_id)
        # What has no name yet may be computed, and taken for an earlier one, before its name shows that it is another.
        items = tracked.items if tracked is not None else (None,) * len(new.mm_features)
        for item, feature in zip(items, new.mm_features):
            if item is None or not item.is_settled:
                self._items.distrust(feature.identifier)
        if tracked is not None and tracked.is_recalled and not self._sends_again:
            # vLLM does not send a worker what is recalled, and the worker ends with the engine when the request is
            # preempted, and then has to compute it.
            new.mm_features = tracked.request.mm_features

    def _submit_computed(self, output: Any) -> None:
        """What earlier steps have computed for good."""
        block = self._shape.block_tokens
        for request_id in output.num_scheduled_tokens:
            tracked = self._tracked.get(request_id)
            if tracked is None:
                continue
            wanted, request = (tracked.submitted + 1) * block, tracked.request
            # In nearly every step all of them end here, by the first of these.
            if request.num_computed_tokens < wanted or not tracked.wishes.store or tracked.left_alone:
                continue
            sure = request.num_computed_tokens - request.num_in_flight_tokens
            if sure >= wanted and output.kv_connector_block_state is not None:
                pages = output.kv_connector_block_state.get_block_ids(request_id)
                if pages is not None:
                    self._submit(tracked, pages[0], sure)

    def _submit(self, tracked: _Tracked, pages: list[int], tokens: int) -> None:
        try:
            self._submit_blocks(tracked, pages, tokens)
        except Exception:
            self._leave_alone(tracked.request)

    def _submit_blocks(self, tracked: _Tracked, pages: list[int], tokens: int) -> None:
        end = tracked.blocks_of(self._items.trusted_tokens(tracked.items, min(tokens, tracked.request.num_tokens)))
        first = tracked.submitted
        needed = self._shape.pages_of(end)
        if end <= first or not tracked.wishes.store or len(pages) < needed or self._is_left_alone(tracked):
            return
        self._to_tell().stores.append(Store(
            tracked.request.request_id, tracked.keys[first * 32:end * 32], tracked.parent(first), pages[:needed],
            first, tracked.wishes if tracked.wishes.for_the_node else None))
        tracked.submitted = end
        tracked.stores_open = True

    def update(self, output: Any) -> None:
        """What the workers say: loads that are done, and those that came short."""
        heard = output.kv_connector_worker_meta
        if heard is not None and isinstance(heard, WorkerMetadata):  # In this order: most steps have none.
            for request_id, came in heard.short.items():
                tracked = self._tracked.get(request_id)
                if tracked is not None and tracked.loading is not None:
                    self._note_short(tracked, came)
        if output.finished_sending:
            for request_id in output.finished_sending:
                self._freeing.pop(request_id, None)
        for request_id in output.finished_recving or ():
            tracked = self._tracked.get(request_id)
            if tracked is None or tracked.loading is None:
                continue
            first, good = tracked.loading
            tracked.loading = None
            if request_id in (output.failed_recving or ()):
                tracked.limit = first + good
                self._stats.add("short_loads", 1)
            elif first <= tracked.submitted:
                tracked.submitted = max(tracked.submitted, first + good)  # They are there already.

    def _note_short(self, tracked: _Tracked, came: CameShort) -> None:
        assert tracked.loading is not None
        first, good = tracked.loading
        tracked.loading = (first, min(good, came.blocks))
        if came.avoid:
            self._avoided.add(tracked.key(first + came.blocks))

    def has_pending_block_frees(self) -> bool:
        """Whether pages will be free in a moment, so that nobody has to be preempted for them."""
        now = time.monotonic()
        return any(now - since < _FREEING_SECONDS for since in self._freeing.values())

    def finished(self, request: Any, pages: list[int]) -> bool:
        """Whether its pages must wait for its stores."""
        tracked = self._tracked.pop(request.request_id, None)
        if tracked is None or tracked.loading is not None:
            return False  # One that ends in mid-load is freed when the load is done.
        sure = max(0, request.num_computed_tokens - request.num_in_flight_tokens)
        self._submit(tracked, pages, sure)
        if tracked.wishes.for_the_node and tracked.submitted > 0 and not tracked.left_alone:
            self._to_tell().notes.append(Note(tracked.keys[:tracked.submitted * 32], tracked.wishes))
        if tracked.stores_open:
            self._to_tell().finished.append(request.request_id)
            self._freeing[request.request_id] = time.monotonic()
        return tracked.stores_open

    def reset(self) -> bool:
        """From now on nothing that was stored before is found. False: something of it is on its way still, and will
        be reported as failed."""
        self._epoch = uuid.uuid4().hex
        for request_id, tracked in self._tracked.items():
            tracked.left_alone = True  # Other weights may compute the rest of it.
            if tracked.loading is not None:
                self._to_tell().void.append(request_id)
        return self._next is None or not self._next.void

    def take_stats(self) -> Optional[Stats]:
        if self._link.is_up is not self._said_up:
            self._said_up = self._link.is_up
            self._stats.data["node_up"] = int(self._said_up)
        if not self._stats.data:
            return None
        taken, self._stats = self._stats, Stats()
        return taken

    def shutdown(self) -> None:
        self._prestages.clear()
        self._tracked.clear()
        self._items.close()
        self._link.close()


def _prefill_of(output: Any) -> Optional[Prefill]:
    """A step whose time is that of its prompts' tokens: what it does beside them is little, or nothing."""
    if max(output.num_scheduled_tokens.values(), default=0) < _LEAST_PREFILL:
        return None
    contexts = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
    cached = output.scheduled_cached_reqs
    contexts.update(zip(cached.req_ids, cached.num_computed_tokens))
    prompts = [(tokens, contexts.get(request_id, 0)) for request_id, tokens in output.num_scheduled_tokens.items()
               if tokens >= _LEAST_PREFILL]
    tokens = sum(count for count, _ in prompts)
    total = sum(output.num_scheduled_tokens.values())
    if tokens * 5 < total * 4 or output.scheduled_encoder_inputs:
        return None
    return Prefill(tokens, sum(count * context for count, context in prompts) // tokens, tokens / total)
