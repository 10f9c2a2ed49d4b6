"""The connector's half in a worker with KV on a GPU, driven as vLLM drives it: on a stream of its own, and ahead of the
GPU. An engine is not needed, and where vLLM is not installed, a few names stand in for it:

    AQUIFER_LIBRARY=... AQUIFER_PROGRAM=... PYTHONPATH=python python python/tests/test_vllm_gpu.py

runs all of it without pytest, from a library that was built with CUDA (tools/gpu-check --build makes one)."""
import contextlib
import dataclasses
import enum
import hashlib
import importlib.util
import logging
import random
import sys
import time
import traceback
import types


def stand_in():
    """What the connector's modules import of vLLM."""
    def module(name, **names):
        made = sys.modules[name] = types.ModuleType(name)
        made.__dict__.update(names)

    @dataclasses.dataclass
    class Results:
        finished_sending: set = dataclasses.field(default_factory=set)
        finished_recving: set = dataclasses.field(default_factory=set)
        failed_recving: set = dataclasses.field(default_factory=set)

    @dataclasses.dataclass
    class Stats:
        data: dict = dataclasses.field(default_factory=dict)
    classes = {name: type(name, (), {}) for name in (
        "KVConnectorBase_V1", "KVConnectorRole", "SupportsHMA", "KVConnectorMetadata", "KVConnectorWorkerMetadata",
        "KVConnectorPromMetrics", "FullAttentionSpec", "MLAAttentionSpec")}
    for package in ("distributed", "distributed.kv_transfer", "distributed.kv_transfer.kv_connector",
                    "distributed.kv_transfer.kv_connector.v1", "v1", "v1.metrics"):
        module(f"vllm.{package}")
    module("vllm", __version__="none")
    module("vllm.platforms", current_platform=types.SimpleNamespace(is_cpu=lambda: False, is_cuda=lambda: True))
    module("vllm.logger", init_logger=logging.getLogger)
    module("vllm.distributed.kv_transfer.kv_connector.v1.base", KVConnectorTransferResults=Results, **classes)
    module("vllm.distributed.kv_transfer.kv_connector.v1.metrics", KVConnectorStats=Stats, **classes)
    module("vllm.v1.metrics.utils", create_metric_per_engine=None)
    module("vllm.v1.metrics.cache_hit_source",
           CacheHitSource=enum.Enum("CacheHitSource", "HOST DISK P2P EXTERNAL_UNSPECIFIED"))
    module("vllm.v1.kv_cache_interface", **classes)


if __name__ == "__main__":
    if importlib.util.find_spec("vllm") is None:
        stand_in()
else:
    import pytest
    pytest.importorskip("vllm")

import torch  # noqa: E402

import aquifer  # noqa: E402
from aquifer.tensors import Family  # noqa: E402
from aquifer.vllm.messages import Load, Prefill, StepMetadata, Store  # noqa: E402
from aquifer.vllm.settings import Settings  # noqa: E402
from aquifer.vllm.shape import Shape  # noqa: E402
from aquifer.vllm.worker import WorkerSide  # noqa: E402

if __name__ != "__main__":
    pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

GPU = "cuda:0"
LAYERS, HEADS, DIM, DTYPE = 8, 8, 128, torch.bfloat16
GROUP = aquifer.KvGroup(layers=LAYERS, kv_heads=HEADS, key_dim=DIM, value_dim=DIM, dtype=aquifer.DType.BFLOAT16)
LAYOUT = aquifer.Layout(model=hashlib.sha256(b"a model").digest(), kv_format="test", groups=(GROUP,))
BLOCK = LAYOUT.tokens_per_block
ROOM = 32 * BLOCK  # Tokens that fit into an engine's pages.
NAMES = tuple(f"model.layers.{n}.self_attn" for n in range(LAYERS))
# Where in memory layer, page, head, token and vector are: as vLLM names its layouts.
ORDERS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")


def allocate(order, pages, heads, tokens):
    """A tensor a layer, [B, H, N, C], all in one allocation."""
    sizes = dict(L=LAYERS, B=pages, H=heads, N=tokens, C=2 * DIM)
    raw = torch.zeros(LAYERS * pages * heads * tokens * 2 * DIM * DTYPE.itemsize, dtype=torch.int8, device=GPU)
    shaped = raw.view(DTYPE).view([sizes[dim] for dim in order])
    return dict(zip(NAMES, shaped.permute([order.index(dim) for dim in "LBHNC"]).unbind(0)))


class Rank:
    """One rank of an engine: its pages, its stream, and steps that the test fills with work."""

    def __init__(self, node, order="BLNHC", page=16, kernel_page=None, ranks=1, rank=0, engine="one"):
        self.page, self.parts = page, page // (kernel_page or page)
        shape = Shape(LAYOUT, page, NAMES, ranks, Family.FUSED)
        heads = shape.heads(rank)
        self.tensors = allocate(order, ROOM // page * self.parts, heads.end - heads.begin, page // self.parts)
        self.stream = torch.cuda.Stream(GPU)  # As vLLM has one, which is not the default.
        self.worker = WorkerSide(shape, Settings(), engine, rank)
        self.worker.register(self.tensors, ROOM // page)
        self._said = dict(layout=LAYOUT, socket=node.socket)
        self._known = {}

    def kv(self, table):
        """[layer, token, head, C] of those pages, as they are when the stream gets there."""
        page, token = self._places(tuple(table))
        with torch.cuda.stream(self.stream):
            return torch.stack([tensor[page, :, token] for tensor in self.tensors.values()])

    def fill(self, table, seed=0, value=None):
        """Queues random numbers, or one number, into those pages."""
        page, token = self._places(tuple(table))
        with torch.cuda.stream(self.stream):
            numbers = torch.Generator(GPU).manual_seed(seed)
            for tensor in self.tensors.values():
                shape = (len(page), tensor.shape[1], tensor.shape[3])
                tensor[page, :, token] = (torch.randn(shape, dtype=DTYPE, device=GPU, generator=numbers)
                                          if value is None else torch.full(shape, value, dtype=DTYPE, device=GPU))

    def _places(self, table):
        """Of each token: its page, and its place in there. Kept: a copy to the GPU would wait for the stream."""
        if table not in self._known:
            size = self.page // self.parts
            token = torch.arange(self.page).repeat(len(table))
            page = torch.tensor(table).repeat_interleave(self.page) * self.parts + token // size
            self._known[table] = page.to(GPU), (token % size).to(GPU)
            torch.cuda.synchronize()
        return self._known[table]

    def step(self, forward=None, **work):
        with torch.cuda.stream(self.stream):
            meta = StepMetadata(**self._said, **work)
            self._said = {}
            self.worker.finish_stores(meta.preempted)
            self.worker.bind(meta)
            if forward is not None:
                forward()
            self.worker.after_forward()
        return self.worker.take_results()

    def until(self, names):
        """Steps until all of them are reported; those that failed."""
        left, failed = set(names), set()

        def done():
            results = self.step()
            left.difference_update(results.finished_sending or (), results.finished_recving or ())
            failed.update(results.failed_recving or ())
            return not left
        aquifer.cache.wait_for(done, 30)
        return failed

    def store(self, request, table, keys, first=0):
        with_parent = Store(request, keys, parent_of(keys), table, first)
        return dict(stores=[with_parent], finished=[request])

    def load(self, request, table, keys, seconds=20.0, first_token=0):
        return dict(loads=[Load(request, keys, table, 0, first_token, time.monotonic() + seconds)])

    def pages(self, first, blocks):
        """The page table of a request with so many blocks, from that page on, in no order."""
        count = -(-blocks * BLOCK // self.page)
        table = list(range(first, first + count))
        random.Random(first).shuffle(table)
        return table

    def counts(self):
        stats = self.worker.take_stats()
        return stats.data if stats is not None else {}


_numbers = iter(range(1, 1 << 30))
_parents = {}


def new_keys(blocks):
    """Of a text that nobody has asked about before."""
    number = next(_numbers)
    root = LAYOUT.root()
    tokens = [(number * 100003 + n) % 65536 for n in range(blocks * BLOCK)]
    keys = aquifer.derive_keys(root, tokens, BLOCK)
    _parents[keys] = root
    return keys


def parent_of(keys):
    return _parents[keys]


@contextlib.contextmanager
def node_and(*ranks):
    """A node, and ranks of engines on it."""
    with aquifer.Node(dram="4GiB") as node:
        made = [Rank(node, **facts) for facts in ranks]
        try:
            yield made
        finally:
            torch.cuda.synchronize()
            for rank in made:
                rank.worker.shutdown()


@contextlib.contextmanager
def stored_by(rank, table, blocks, seed=1):
    """Keys of blocks that are stored, and their KV."""
    keys = new_keys(blocks)
    rank.fill(table, seed)
    rank.step(**rank.store("stored before", table, keys))
    rank.until(["stored before"])
    yield keys, rank.kv(table)[:, :blocks * BLOCK]


def same(one, other):
    """When all streams are done with them."""
    torch.cuda.synchronize()
    return torch.equal(one, other)


def all_are(tensor, value):
    torch.cuda.synchronize()
    return bool((tensor == value).all())


# ---- Work for the GPU ----

_square = []
_product_ms = []


def queue_work(milliseconds):
    """Queues matrix products into the current stream, for about as long."""
    if not _square:
        _square.append(torch.randn(8192, 8192, dtype=DTYPE, device=GPU) / 100)
        queue_products(300)  # Its clocks have risen by then.
        torch.cuda.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        queue_products(10)
        end.record()
        end.synchronize()
        _product_ms.append(begin.elapsed_time(end) / 10)
    queue_products(max(int(milliseconds / _product_ms[0]), 1))


def queue_products(count):
    for _ in range(count):
        torch.matmul(_square[0], _square[0])


def busy(rank, milliseconds):
    """The rank's stream is that far behind now."""
    with torch.cuda.stream(rank.stream):
        queue_work(milliseconds)


def reached(rank):
    """An event at the end of what is queued so far."""
    return rank.stream.record_event()


# ---- What it is for ----

def test_what_is_stored_is_loaded():
    blocks = 3
    kinds = [dict(order=order) for order in ORDERS] + [
        dict(order="LBHNC", page=64, kernel_page=16), dict(order="LBNHC", page=BLOCK),
        dict(order="BLHNC", page=2 * BLOCK)]
    with node_and(dict(order="LBNHC")) as (first,):
        table = first.pages(5, blocks)
        with stored_by(first, table, blocks) as (keys, expected):
            assert first.counts()["stored_blocks"] == blocks
            node = types.SimpleNamespace(socket=first.worker._socket)
            for kind in kinds:
                other = Rank(node, engine="other", **kind)
                into = other.pages(1, blocks)
                rest = [page for page in range(ROOM // other.page) if page not in into]
                other.fill(range(ROOM // other.page), value=7.0)
                assert other.step(**other.load("loads", into, keys)).finished_recving == set()
                assert not other.until(["loads"]), kind
                assert same(other.kv(into)[:, :blocks * BLOCK], expected), kind
                assert all_are(other.kv(rest), 7.0), kind  # What is not of those blocks is as it was.
                assert all_are(other.kv(into)[:, blocks * BLOCK:], 7.0), kind
                torch.cuda.synchronize()
                other.worker.shutdown()


def test_what_two_ranks_stored_one_loads():
    blocks = 2
    ranks = [dict(ranks=2, rank=0), dict(ranks=2, rank=1, order="LHBNC"), dict(engine="other", order="LBHNC")]
    with node_and(*ranks) as (*halves, whole):
        table = whole.pages(3, blocks)
        keys = new_keys(blocks)
        for seed, half in enumerate(halves):
            half.fill(table, seed + 1)
            half.step(**half.store("stores", table, keys))
        for half in halves:
            half.until(["stores"])
            assert half.counts()["stored_blocks"] == blocks
        whole.step(**whole.load("loads", table, keys))
        assert not whole.until(["loads"])
        parts = [half.kv(table) for half in halves]
        torch.cuda.synchronize()
        assert same(whole.kv(table), torch.cat(parts, dim=2))


# ---- An engine that is ahead of its GPU ----

def test_a_store_reads_what_its_step_computes():
    blocks = 2
    with node_and({}) as (rank,):
        table, other = rank.pages(0, blocks), rank.pages(ROOM // 16 // 2, blocks)
        keys = new_keys(blocks)
        with stored_by(rank, other, 1):  # Whatever is done once is done.
            pass
        new = [torch.randn_like(tensor) for tensor in rank.tensors.values()]

        def forward():
            queue_work(100)
            for tensor, numbers in zip(rank.tensors.values(), new):
                tensor.copy_(numbers)
        forward()  # A kernel that is used for the first time is loaded, which waits for the GPU.
        rank.fill(table, value=3.0)
        torch.cuda.synchronize()
        busy(rank, 500)
        rank.step(forward, **rank.store("stores", table, keys))
        written = reached(rank)
        assert not written.query(), "the GPU is too fast for this test"
        rank.until(["stores"])
        expected = rank.kv(table)
        rank.step(**rank.load("loads", other, keys))
        assert not rank.until(["loads"])
        assert same(rank.kv(other), expected)


def test_a_load_writes_when_what_was_queued_has_read():
    blocks = 2
    for have in (0, BLOCK // 2):  # Of a half block, the other half is loaded beside it and copied.
        with node_and({}) as (rank,):
            table, other = rank.pages(0, blocks), rank.pages(ROOM // 16 // 2, blocks)
            with stored_by(rank, table, blocks) as (keys, expected):
                rank.fill(other, value=3.0)
                rank.kv(other)  # Whatever is done once is done.
                torch.cuda.synchronize()
                busy(rank, 200)
                found = rank.kv(other)
                read = reached(rank)
                rank.step(**rank.load("loads", other, keys, first_token=have))
                assert not read.query(), "the GPU is too fast for this test"
                assert not rank.until(["loads"])
                now = rank.kv(other)  # Queued at once: what is reported is there.
                assert all_are(found, 3.0)
                assert all_are(now[:, :have], 3.0)
                assert same(now[:, have:], expected[:, have:])


def test_the_time_that_the_gpu_is_behind_is_not_the_loads():
    with node_and({}) as (rank,):
        table, other = rank.pages(0, 2), rank.pages(ROOM // 16 // 2, 2)
        with stored_by(rank, table, 2) as (keys, expected):
            rank.step(**rank.load("warms up", other, keys))
            assert not rank.until(["warms up"])
            rank.fill(other, value=3.0)
            busy(rank, 600)
            rank.step(**rank.load("loads", other, keys, seconds=0.3))
            assert not rank.until(["loads"])
            assert same(rank.kv(other), expected)


def test_a_preemption_does_not_wait_for_the_gpu():
    with node_and({}) as (rank,):
        table, keys = rank.pages(0, 2), new_keys(2)
        with stored_by(rank, table, 1):
            pass
        rank.counts()
        busy(rank, 500)
        behind = reached(rank)
        rank.step(stores=[Store("preempted", keys, parent_of(keys), table, 0)])
        rank.step(preempted=["preempted"])
        assert not behind.query(), "the GPU is too fast for this test"
        assert rank.counts() == {"dropped_stores": 1}


def test_a_steps_time_is_the_gpus():
    with node_and({}) as (rank,):
        with stored_by(rank, rank.pages(0, 1), 1):
            pass
        told = []
        rank.worker._storer._cache.report_prefill = lambda known, *facts: told.append(facts)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

        def forward():
            begin.record()
            queue_work(200)
            end.record()
        busy(rank, 100)  # Not of this step.
        torch.cuda.synchronize()
        busy(rank, 100)
        started = time.perf_counter()
        rank.step(forward, prefill=Prefill(4096, 0, 0.5))
        launched = (time.perf_counter() - started) * 1000
        aquifer.cache.wait_for(lambda: told, 30)
        measured = begin.elapsed_time(end)
        (tokens, context, milliseconds), = told
        print(f"    a step of {measured:.1f} ms was launched in {launched:.1f} ms, and reported as "
              f"{2 * milliseconds:.1f} ms")
        assert (tokens, context) == (4096, 0)
        assert 0.5 * measured <= 2 * milliseconds <= 1.5 * measured


def test_an_engine_that_goes_on_while_blocks_move():
    """Steps that compute into pages of one request while others are stored and loaded: every bit is right."""
    blocks, requests = 2, 12
    with node_and(dict(order="LBHNC")) as (rank,):
        tables = [rank.pages(n * blocks * BLOCK // 16, blocks) for n in range(requests + 2)]
        keys = [new_keys(blocks) for _ in range(requests)]
        expected, loaded, waiting, ended = {}, {}, set(), 0.0
        busy(rank, 20)
        torch.cuda.synchronize()
        for number in range(60):
            work, request = {}, number % requests
            if number < requests:
                rank.fill(tables[request], seed=number + 1)
                expected[request] = rank.kv(tables[request])
                busy(rank, 10)
                work = rank.store(f"s{number}", tables[request], keys[request])
                waiting.add(f"s{number}")
            elif number >= 2 * requests and number % 2 == 0 and not waiting:
                table = tables[requests + number // 2 % 2]
                rank.fill(table, value=5.0)
                busy(rank, 10)
                work = rank.load(f"l{number}", table, keys[request])
                waiting.add(f"l{number}")
                loaded[f"l{number}"] = (table, request)
            started = time.perf_counter()
            results = rank.step(lambda: queue_work(5), **work)
            ended = max(ended, time.perf_counter() - started)
            for _ in range(2000):
                assert not results.failed_recving
                for name in (results.finished_sending | results.finished_recving):
                    waiting.discard(name)
                    if name in loaded:
                        table, source = loaded[name]
                        assert same(rank.kv(table), expected[source]), name
                if not waiting or number < 2 * requests - 1:
                    break
                time.sleep(0.005)
                results = rank.step()
            assert not waiting or number < 2 * requests - 1
        assert len(loaded) >= 10
        torch.cuda.synchronize()
        print(f"    the slowest step took the engine's thread {ended * 1000:.2f} ms")


def test_hooks_take_next_to_nothing():
    """What the engine's thread spends in a step that moves something."""
    with node_and({}) as (rank,):
        table = rank.pages(0, 1)
        with stored_by(rank, table, 1) as (keys, _):
            times = []
            for number in range(200):
                load = rank.load(f"r{number}", table, keys)
                started = time.perf_counter()
                rank.step(prefill=Prefill(4096, 0, 1.0), **load)
                times.append(time.perf_counter() - started)
                rank.until([f"r{number}"])
            times.sort()
            print(f"    {times[100] * 1e6:.0f} us in the middle, {times[197] * 1e6:.0f} us at the 99th percentile")
            assert times[100] < 0.002


def main():
    if not torch.cuda.is_available():
        sys.exit("there is no GPU")
    print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}, "
          f"{'vLLM' if hasattr(sys.modules['vllm'], '__file__') else 'a stand-in for vLLM'}", flush=True)
    tests = [(name, test) for name, test in globals().items() if name.startswith("test_")]
    failed = 0
    for name, test in tests:
        started, how = time.perf_counter(), "ok"
        try:
            test()
        except Exception:
            traceback.print_exc()
            failed, how = failed + 1, "FAILED"
        print(f"{name:60} {how:6} {time.perf_counter() - started:5.1f} s", flush=True)
    print(f"{len(tests) - failed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
