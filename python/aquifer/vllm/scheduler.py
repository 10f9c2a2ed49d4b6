"""The connector's half in the scheduler: names of blocks, what is there, and what is to be moved. All of it
runs on the scheduler's thread, but for finding out which model it is."""
from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import threading
import time
import uuid
from array import array
from typing import Any, Optional

from vllm.logger import init_logger
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from ..cache import Cache, Chain, Match, Pending, Registered, Tier, connect
from ..errors import Error
from ..layout import Layout, derive_keys
from ..node import Node
from .identity import files_digest, model_digest, names_of
from .messages import Load, Stats, StepMetadata, Store, WorkerMetadata
from .settings import Settings
from .shape import Shape

logger = init_logger("vllm." + __name__)  # vLLM shows what is below its own name.

_LEAST_DEADLINE = 0.05  # Seconds.
_UNKNOWN_DEADLINE = 1.0  # While nobody has reported how long computing takes.
_RECONNECT_SECONDS = 2.0
_MOST_PRESTAGES = 64
_MOST_ROOTS = 4096
_MATCH_SECONDS = 0.25  # A match takes microseconds; a node that is silent for so long has nothing.
_YOUNG_SECONDS = 0.2  # An answer about a request that waited for longer is asked for again.
_SOURCES = {Tier.DRAM: CacheHitSource.HOST, Tier.NVME: CacheHitSource.DISK, Tier.PEER: CacheHitSource.P2P,
            Tier.DURABLE: CacheHitSource.EXTERNAL_UNSPECIFIED}


class _Tracked:
    """One request, as far as its blocks are concerned."""

    def __init__(self, request: Any, root: bytes, block_tokens: int):
        self.request = request
        self.root = root
        self.keys = b""
        self.submitted = 0  # Blocks that a worker was told to store, or that were there.
        self.limit: Optional[int] = None  # Blocks from here on failed to load, and are not offered again.
        self.loading: Optional[tuple[int, int]] = None  # First block, and how many are known to have come.
        self.stores_open = False  # A worker may be reading its pages.
        self.left_alone = False  # Nothing of it is stored or recalled any more.
        self.asked: Optional[Pending[Match]] = None  # When it arrived, about all of it,
        self.asked_at = 0.0  # which was then.
        self.match: Optional[Match] = None
        self.offered: Optional[tuple[int, int]] = None  # Tokens that the engine had, and that were offered on top.
        self._block = block_tokens

    def blocks_of(self, tokens: int) -> int:
        """Whole blocks in the first tokens; their keys are known then."""
        whole = tokens // self._block
        known = len(self.keys) // 32
        if whole > known:
            ids = array("I", itertools.islice(self.request.all_token_ids, known * self._block, whole * self._block))
            self.keys += derive_keys(self.parent(known), ids, self._block)
        return whole

    def parent(self, block: int) -> bytes:
        return self.keys[(block - 1) * 32:block * 32] if block > 0 else self.root


class SchedulerSide:
    def __init__(self, vllm_config: Any, shape: Shape, settings: Settings):
        self._vllm_config = vllm_config
        self._settings = settings
        self._shape = shape
        self._stats = Stats()
        self._tracked: dict[str, _Tracked] = {}
        self._loads: list[Load] = []
        self._stores: list[Store] = []
        self._finished: list[str] = []
        self._prestages: list[Pending[tuple[int, int]]] = []
        self._adapters: dict[str, Optional[bytes]] = {}
        self._roots: dict[tuple[Optional[bytes], str], bytes] = {}
        self._layout_said = False
        self._epoch = ""
        self._node: Optional[Node] = None
        self._cache: Optional[Cache] = None
        self._known: Optional[Registered] = None
        self._next_try = 0.0
        self._digest: Optional[bytes] = None
        if settings.spawn:
            self._node = Node(dram=settings.spawn_dram, nvme=settings.spawn_nvme)
            logger.info("Aquifer: a private node at %s", self._node.socket)
        threading.Thread(target=self._identify, name="aquifer-identify", daemon=True).start()
        self._connect()

    # ---- Its cache ----

    def _identify(self) -> None:
        started = time.monotonic()
        try:
            digest = model_digest(self._vllm_config)
        except Exception as error:  # Whatever is wrong with a checkpoint, the engine goes on without us.
            logger.error("Aquifer: the model's weights cannot be read, so nothing is recalled: %s", error)
            return
        logger.info("Aquifer: the model is %s, known after %.1f s", digest.hex()[:16], time.monotonic() - started)
        self._digest = digest

    @property
    def socket(self) -> Optional[str]:
        return self._node.socket if self._node is not None else self._settings.socket

    def _connect(self) -> None:
        self._next_try = time.monotonic() + _RECONNECT_SECONDS
        try:
            self._cache = connect(self.socket, tenant=self._settings.tenant, token=self._settings.token(),
                                  observe=self._settings.observe, timeout=1.0)
        except (Error, OSError) as error:  # A token's file that cannot be read is one.
            logger.warning("Aquifer: no cache for now, and it is tried again: %s", error)

    def _ready(self) -> Optional[Cache]:
        """The cache, once it is there and it is known which model it is for."""
        if self._cache is None and time.monotonic() >= self._next_try:
            self._connect()
        if self._cache is None or self._digest is None:
            return None
        if self._known is None:
            try:
                self._known = self._cache.register(dataclasses.replace(self._shape.layout, model=self._digest))
            except Error as error:
                self._stats.add("failed_calls", 1)
                logger.warning("Aquifer: %s", error)
                return None
        return self._cache

    # ---- Names ----

    def _track(self, request: Any) -> Optional[_Tracked]:
        """Null: its KV does not follow from names that we know."""
        found = self._tracked.get(request.request_id)
        if found is not None:
            return found
        if self._ready() is None or request.prompt_embeds is not None or request.pooling_params is not None:
            return None
        # An image is named by the engine or the client, and only sometimes by its bytes.
        if request.mm_features or getattr(request.lora_request, "load_inplace", False):
            return None
        adapter = self._adapter(request.lora_request)
        if request.lora_request is not None and adapter is None:
            return None
        salt = request.cache_salt or ""
        if self._epoch or len(salt.encode()) > 128:
            salt = hashlib.sha256(f"{self._epoch}\0{salt}".encode()).hexdigest()
        root = self._root(adapter, salt)
        tracked = self._tracked[request.request_id] = _Tracked(request, root, self._shape.block_tokens)
        return tracked

    def _root(self, adapter: Optional[bytes], salt: str) -> bytes:
        found = self._roots.get((adapter, salt))
        if found is None:
            assert self._known is not None
            if len(self._roots) >= _MOST_ROOTS:
                self._roots.clear()
            found = self._roots[adapter, salt] = self._known.layout.root(self._settings.tenant, adapter, salt)
        return found

    def _adapter(self, lora: Any) -> Optional[bytes]:
        """A digest of the adapter's files; None until it is known."""
        if lora is None:
            return None
        path = lora.lora_path
        try:
            files = [os.path.join(path, name) for name in os.listdir(path)
                     if name.endswith((".safetensors", ".bin", ".json"))]
            name = names_of(files)
        except OSError as error:
            logger.warning("Aquifer: the adapter %s cannot be read, so nothing of it is recalled: %s", path, error)
            return None
        if name not in self._adapters:
            if len(self._adapters) >= _MOST_ROOTS:
                self._adapters.clear()
            self._adapters[name] = None

            def read() -> None:
                try:
                    self._adapters[name] = files_digest(files)
                except OSError as error:
                    logger.warning("Aquifer: the adapter %s cannot be read: %s", path, error)
            threading.Thread(target=read, name="aquifer-adapter", daemon=True).start()
        return self._adapters[name]

    # ---- The scheduler's calls ----

    # None of them raises for what is in a request: that would be the end of the engine.

    def on_new_request(self, request: Any) -> None:
        try:
            self._prestage(request)
        except Exception:
            self._leave_alone(request)

    def _prestage(self, request: Any) -> None:
        tracked = self._track(request)
        if tracked is None or self._cache is None:
            return
        blocks = tracked.blocks_of(request.num_prompt_tokens)
        self._prestages = [pending for pending in self._prestages if not pending.done()][-_MOST_PRESTAGES:]
        if blocks:
            assert self._known is not None
            chain = Chain(self._known, tracked.keys)
            try:
                tracked.asked, tracked.asked_at = self._cache.begin_match(chain), time.monotonic()
                self._prestages.append(self._cache.begin_prestage(chain))
            except Error:
                self._stats.add("failed_calls", 1)

    def _leave_alone(self, request: Any) -> None:
        logger.exception("Aquifer: the request %s is left alone", request.request_id)
        self._stats.add("failed_calls", 1)
        tracked = self._tracked.get(request.request_id)
        if tracked is not None:
            tracked.left_alone = True

    def matched_tokens(self, request: Any, computed: int) -> int:
        """Tokens behind the computed ones that are worth loading."""
        try:
            return self._match(request, computed)
        except Exception:
            self._leave_alone(request)
            return 0

    def _match(self, request: Any, computed: int) -> int:
        tracked, cache = self._track(request), self._ready()
        if tracked is None or cache is None or self._known is None or tracked.left_alone:
            return 0
        blocks = tracked.blocks_of(request.num_tokens)
        if tracked.limit is not None:
            blocks = min(blocks, tracked.limit)
        have = computed // self._shape.block_tokens
        if blocks <= have:
            return 0
        asked, tracked.asked = tracked.asked, None
        try:
            young = time.monotonic() - tracked.asked_at < _YOUNG_SECONDS
            if asked is not None and young and have == 0 and tracked.limit is None:
                match = asked.result(_MATCH_SECONDS)  # It is there by now, or very soon.
            else:
                match = cache.begin_match(Chain(self._known, tracked.keys[:blocks * 32]), have).result(_MATCH_SECONDS)
        except Error:
            self._stats.add("failed_calls", 1)
            return 0
        tracked.match = match
        count = match.matched if self._settings.always else match.pays
        # The last token is computed in any case: without it there is nothing to sample from.
        end = min((have + count) * self._shape.block_tokens, request.num_tokens - 1)
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
        match = tracked.match
        seconds = self._settings.deadline_ms / 1000 or (
            max(match.recompute_ms / 1000, _LEAST_DEADLINE) if match and match.recompute_ms else _UNKNOWN_DEADLINE)
        tracked.loading = (first, end - first)
        self._loads.append(Load(request.request_id, tracked.keys[first * 32:end * 32], pages, first, computed, seconds))
        self._stats.add("load_requests", 1)

    def hit_sources(self, request: Any, external: int) -> dict[CacheHitSource, int]:
        tracked = self._tracked.get(request.request_id)
        if tracked is None or tracked.match is None or external <= 0:
            return {CacheHitSource.EXTERNAL_UNSPECIFIED: external} if external else {}
        left, sources = external, dict[CacheHitSource, int]()
        for run in tracked.match.runs:
            tokens = min(left, run.count * self._shape.block_tokens)
            if tokens > 0:
                source = _SOURCES[run.tier]
                sources[source] = sources.get(source, 0) + tokens
                left -= tokens
        if left > 0:
            sources[CacheHitSource.EXTERNAL_UNSPECIFIED] = left
        return sources

    def build_meta(self, output: Any) -> StepMetadata:
        preempted = list(output.preempted_req_ids or ())
        for request_id in preempted:
            tracked = self._tracked.get(request_id)
            if tracked is not None:
                tracked.stores_open = False  # The workers finish them before anything else.
        block = self._shape.block_tokens
        for request_id in output.num_scheduled_tokens:
            tracked = self._tracked.get(request_id)
            if tracked is None:
                continue
            # What earlier steps have computed for good.
            sure = tracked.request.num_computed_tokens - tracked.request.num_in_flight_tokens
            if sure >= (tracked.submitted + 1) * block and output.kv_connector_block_state is not None:
                pages = output.kv_connector_block_state.get_block_ids(request_id)
                if pages is not None:
                    self._submit(tracked, pages[0], sure)
        layout = self._known.layout if self._known is not None and not self._layout_said else None
        self._layout_said = self._known is not None
        meta = StepMetadata(
            layout=layout, socket=self.socket if layout is not None else None,
            loads=self._loads, stores=self._stores, finished=self._finished, preempted=preempted,
            prefill=self._prefill_of(output))
        self._loads, self._stores, self._finished = [], [], []
        return meta

    def _submit(self, tracked: _Tracked, pages: list[int], tokens: int) -> None:
        try:
            self._submit_blocks(tracked, pages, tokens)
        except Exception:
            self._leave_alone(tracked.request)

    def _submit_blocks(self, tracked: _Tracked, pages: list[int], tokens: int) -> None:
        if tracked.left_alone:
            return
        end = tracked.blocks_of(min(tokens, tracked.request.num_tokens))
        first = tracked.submitted
        params = self._params(tracked.request)
        if end <= first or params.get("store") is False or self._ready() is None:
            return
        needed = end * self._shape.pages_per_block
        if len(pages) < needed:
            return
        hint = params.get("session") or tracked.request.session_id
        self._stores.append(Store(
            tracked.request.request_id, tracked.keys[first * 32:end * 32], tracked.parent(first), pages[:needed],
            first, str(hint).encode()[:256].decode(errors="ignore") if hint else None, int(params.get("priority", 0)),
            int(params.get("ttl_seconds", 0))))
        tracked.submitted = end
        tracked.stores_open = True

    @staticmethod
    def _params(request: Any) -> dict[str, Any]:
        """{"aquifer": {"session", "priority", "ttl_seconds", "store"}} of kv_transfer_params."""
        given = request.kv_transfer_params
        ours = given.get("aquifer") if isinstance(given, dict) else None
        return ours if isinstance(ours, dict) else {}

    @staticmethod
    def _prefill_of(output: Any) -> Optional[tuple[int, int]]:
        if len(output.num_scheduled_tokens) != 1:
            return None
        (request_id, tokens), = output.num_scheduled_tokens.items()
        if tokens < 16:
            return None
        for new in output.scheduled_new_reqs:
            if new.req_id == request_id:
                return tokens, new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        for cached_id, computed in zip(cached.req_ids, cached.num_computed_tokens):
            if cached_id == request_id:
                return tokens, computed
        return None

    def update(self, output: Any) -> None:
        """What the workers say: loads that are done, and those that came short."""
        heard = output.kv_connector_worker_meta
        if isinstance(heard, WorkerMetadata):
            for request_id, blocks in heard.loaded.items():
                tracked = self._tracked.get(request_id)
                if tracked is not None and tracked.loading is not None:
                    first, good = tracked.loading
                    tracked.loading = (first, min(good, blocks))
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

    def finished(self, request: Any, pages: list[int]) -> bool:
        """Whether its pages must wait for its stores."""
        tracked = self._tracked.pop(request.request_id, None)
        if tracked is None or tracked.loading is not None:
            return False  # One that ends in mid-load is freed when the load is done.
        sure = max(0, request.num_computed_tokens - request.num_in_flight_tokens)
        self._submit(tracked, pages, sure)
        if tracked.stores_open:
            self._finished.append(request.request_id)
        return tracked.stores_open

    def reset(self) -> bool:
        """From now on nothing that was stored before is found."""
        self._epoch = uuid.uuid4().hex
        for tracked in self._tracked.values():
            tracked.left_alone = True  # Other weights may compute the rest of it.
        return True

    def take_stats(self) -> Optional[Stats]:
        if self._stats.is_empty():
            return None
        taken, self._stats = self._stats, Stats()
        return taken

    def shutdown(self) -> None:
        self._prestages.clear()
        if self._cache is not None:
            self._cache.close()
            self._cache = None
        if self._node is not None:
            self._node.close()
            self._node = None
