"""What aquifer.vllm does otherwise where the KV is on a GPU, as far as that shows without one: layouts in vLLM's own
tensors, and an engine's thread that is ahead of its device. test_vllm_gpu.py runs the same on a GPU."""
import dataclasses
import hashlib
import types

import pytest

pytest.importorskip("vllm")
import torch  # noqa: E402
import vllm  # noqa: E402
import vllm.platforms  # noqa: E402
from vllm.v1.kv_cache_interface import (FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec,  # noqa: E402
                                        KVCacheTensor, compute_layout_strides)
from vllm.v1.kv_cache_layout import KVCacheLayout  # noqa: E402
from vllm.v1.worker.utils import allocate_kv_cache  # noqa: E402

import aquifer  # noqa: E402
from aquifer.tensors import Family  # noqa: E402
from aquifer.vllm import device  # noqa: E402
from aquifer.vllm.messages import Prefill, StepMetadata  # noqa: E402
from aquifer.vllm.shape import map_tensors, read_shape  # noqa: E402
from moments import Moments, asked  # noqa: E402
from test_vllm_sides import (BLOCK, FIRST, NAMES, PAGE, PAGES, SECOND, Hand, fill, made_request,  # noqa: E402
                             made_shape, named, store, text)  # noqa: F401

LAYERS, HEADS, DIM = 3, 4, 16
ROOM = 2048  # Tokens that fit into an engine's pages.


# ---- Layouts ----

@pytest.fixture
def on(monkeypatch):
    """Makes vLLM's platform another one."""
    def platform(name, cuda):
        monkeypatch.setattr(vllm.platforms, "current_platform", types.SimpleNamespace(
            is_cuda=lambda: cuda, is_cpu=lambda: False, device_name=name, device_type="cuda"))
    return platform


class Engine:
    """One rank's tensors, as vLLM makes them, and what we know of them."""

    def __init__(self, layout="LBHNC", page=16, kernel_page=None, ranks=1, rank=0, **spec):
        self.page = page
        self.count = ROOM // page
        spec = FullAttentionSpec(block_size=page, num_kv_heads=HEADS // ranks, head_size=DIM, dtype=torch.bfloat16,
                                 **spec)
        names = [f"model.layers.{n}.self_attn" for n in range(LAYERS)]
        order = KVCacheLayout[layout]
        strides = compute_layout_strides(spec, self.count, LAYERS, order)
        whole = max(strides[0] * LAYERS, strides[1] * self.count)
        config = KVCacheConfig(num_blocks=self.count, kv_cache_groups=[KVCacheGroupSpec(names, spec)],
                               kv_cache_tensors=[KVCacheTensor(size=whole, layers=names, layer_stride=strides[0],
                                                               block_stride=strides[1])])
        self.tensors = allocate_kv_cache(config, torch.device("cpu"), order, [kernel_page or page])
        self.shape = read_shape(_vllm_config(ranks), config)
        self.heads = self.shape.heads(rank)

    def mapped(self):
        return map_tensors(self.shape, self.heads, self.tensors, self.count)

    def kv(self, table, tokens):
        """[layer, token, head, C], found without our code."""
        token = torch.arange(tokens)
        kernel_page = next(iter(self.tensors.values())).shape[2]
        page = torch.tensor(table)[token // self.page] * (self.page // kernel_page) + token % self.page // kernel_page
        return torch.stack([tensor[page, :, token % kernel_page] for tensor in self.tensors.values()])

    def fill(self, seed):
        numbers = torch.Generator().manual_seed(seed)
        for tensor in self.tensors.values():
            tensor.copy_(torch.randn(tensor.shape, generator=numbers))


def _vllm_config(ranks=1):
    parallel = dict(pipeline_parallel_size=1, decode_context_parallel_size=1, prefill_context_parallel_size=1, nnodes=1,
                    tensor_parallel_size=ranks)
    return types.SimpleNamespace(parallel_config=types.SimpleNamespace(**parallel),
                                 model_config=types.SimpleNamespace(get_total_num_kv_heads=lambda: HEADS))


def chain_in(cache, engine, seed, blocks):
    layout = dataclasses.replace(engine.shape.layout, model=hashlib.sha256(b"a model").digest())
    tokens = [(seed * 7919 + n) % 50000 for n in range(blocks * layout.tokens_per_block)]
    return layout.root(), aquifer.Chain(cache.register(layout), aquifer.derive_keys(
        layout.root(), tokens, layout.tokens_per_block))


ORDERS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")
KINDS = [dict(layout=order) for order in ORDERS] + [
    dict(layout="LBNHC", page=64), dict(layout="BLHNC", page=256), dict(layout="LBHNC", page=512),
    dict(layout="BHLNC", page=1024), dict(layout="LBHNC", page=64, kernel_page=16),
    dict(layout="LBNHC", page=512, kernel_page=64)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))
def test_what_one_layout_stored_every_other_loads(on, kind):
    """In any order, with pages of any size: the block is the same."""
    on("cuda", True)
    blocks = 3
    with aquifer.open_cache(dram_bytes=64 << 20) as cache:
        storing = Engine(**kind)
        storing.fill(1)
        root, chain = chain_in(cache, storing, 1, blocks)
        tokens = blocks * storing.shape.block_tokens
        out_of = list(range(storing.count))[::-1]
        pages = storing.mapped()
        table = pages.table(out_of[:storing.shape.pages_of(blocks)])
        assert cache.store(chain, root, pages.map, table).stored == blocks
        for other in KINDS:
            loading = Engine(**other)
            loading.fill(2)
            into = list(range(1, loading.count)) + [0]
            behind = [tensor.clone() for tensor in loading.tensors.values()]
            pages = loading.mapped()
            assert cache.load(chain_in(cache, loading, 1, blocks)[1], pages.map, pages.table(into)).blocks == blocks
            assert torch.equal(loading.kv(into, tokens), storing.kv(out_of, tokens)), other
            # What is not of those blocks is as it was.
            found, loading.tensors = loading.kv(into, ROOM), dict(enumerate(behind))
            assert torch.equal(found[:, tokens:], loading.kv(into, ROOM)[:, tokens:]), other


def test_what_two_ranks_stored_one_loads(on):
    on("cuda", True)
    with aquifer.open_cache(dram_bytes=64 << 20) as cache:
        ranks = [Engine("BLNHC", ranks=2, rank=rank) for rank in range(2)]
        whole, table = Engine("LHBNC", page=32), list(range(ROOM // 16))
        root, chain = chain_in(cache, whole, 1, 2)
        tokens = 2 * whole.shape.block_tokens
        for seed, rank in enumerate(ranks):
            rank.fill(seed)
            assert cache.store(chain, root, rank.mapped().map, table).stored == 2
        assert cache.load(chain, whole.mapped().map, table[:64]).blocks == 2
        both = torch.cat([rank.kv(table, tokens) for rank in ranks], dim=2)
        assert torch.equal(whole.kv(table, tokens), both)


def test_a_block_says_nothing_of_pages_and_releases(on, monkeypatch):
    on("cuda", True)
    layouts = {Engine(page=page).shape.layout for page in (16, 32, 256, 512)}
    monkeypatch.setattr(vllm, "__version__", "9.9")
    layouts.add(Engine("BHLNC", ranks=2).shape.layout)
    assert len(layouts) == 1
    (layout,) = layouts
    assert layout.kv_format == "vllm.plain.v1" and layout.tokens_per_block == 256


def test_a_cpu_has_a_format_of_its_own():
    config = _vllm_config()
    config.model_config.dtype, config.cache_config = torch.bfloat16, types.SimpleNamespace(cache_dtype="auto")
    spec = FullAttentionSpec(block_size=128, num_kv_heads=HEADS, head_size=32, dtype=torch.bfloat16)
    shape = read_shape(config, types.SimpleNamespace(kv_cache_groups=[KVCacheGroupSpec(["0"], spec)]))
    assert shape.family is Family.CPU_PACKED
    assert shape.layout.kv_format.startswith("vllm.cpu.") and shape.layout.kv_format.endswith(".page128")


@pytest.mark.parametrize("name", ["rocm", "xpu", "tpu"])
def test_other_devices_are_refused_by_name(on, name):
    on(name, False)
    with pytest.raises(aquifer.Invalid, match=f"KV on {name} is not known"):
        Engine()


def test_tensors_on_another_device_are_refused_by_name():
    with pytest.raises(aquifer.Invalid, match="KV on meta"):
        device.device_of(torch.empty(1, device="meta"))


def test_pages_that_fit_no_block_are_refused_by_name(on):
    on("cuda", True)
    with pytest.raises(aquifer.Invalid, match="48"):
        Engine(page=48)


@pytest.mark.parametrize("change, named", [
    (lambda tensor: tensor[:-1], "is expected"), (lambda tensor: tensor[:, :1], "is expected"),
    (lambda tensor: tensor[:, :, :8], "is expected"), (lambda tensor: tensor.half(), "float16 on cpu, and bfloat16"),
    (lambda tensor: tensor.to("meta"), "on meta"), (lambda tensor: tensor[..., 1:], "tensor 1: C is 62"),
    (lambda tensor: tensor.flatten(0, 1), "is expected")])
def test_tensors_that_are_not_what_they_should_be_are_refused_by_name(on, change, named):
    on("cuda", True)
    engine = Engine()
    name = list(engine.tensors)[1]
    engine.tensors[name] = change(engine.tensors[name])
    with pytest.raises(aquifer.Invalid, match=named):
        engine.mapped()


def test_packed_pages_are_not_cut():
    """In one that is cut, the bytes mean something else."""
    cut = {name: torch.zeros(2 * PAGES, 2, PAGE // 2, 16) for name in NAMES}
    with pytest.raises(aquifer.Invalid, match="is expected"):
        map_tensors(made_shape(), made_shape().heads(0), cut, PAGES)


def test_a_layer_without_a_tensor_is_refused_by_name(on):
    on("cuda", True)
    engine = Engine()
    missing = list(engine.tensors)[2]
    del engine.tensors[missing]
    with pytest.raises(aquifer.Invalid, match=missing):
        engine.mapped()


# ---- Pages of other sizes, in both halves ----

def plain(page, kernel_page):
    """A shape, and tensors of it in an order of their own."""
    shape = dataclasses.replace(made_shape(), page_tokens=page, family=Family.FUSED)
    count = PAGES * page // kernel_page
    pages = {name: torch.zeros(count, kernel_page, 2, 16).transpose(1, 2) for name in NAMES}
    return shape, pages


@pytest.mark.parametrize("page, kernel_page, have", [
    (16, 16, 0), (16, 16, 16), (16, 8, 0), (16, 8, 16), (16, 8, 3 * BLOCK + 16), (32, 8, 0), (32, 16, 2 * BLOCK),
    (64, 64, 0), (64, 64, 2 * BLOCK), (64, 16, 0), (64, 8, 2 * BLOCK), (128, 128, 0), (256, 64, 0)])
def test_pages_are_cut_and_grouped(node, page, kernel_page, have):
    shape, pages = plain(page, kernel_page)
    hand = Hand(node.socket, shape=shape, pages=pages)
    count, parts = -(-4 * BLOCK // page), page // kernel_page
    first, second = list(range(count)), list(range(20, 20 + count))
    rows = [[table[token // page] * parts + token % page // kernel_page for token in range(0, 4 * BLOCK, kernel_page)]
            for table in (first, second)]
    for tensor in pages.values():
        tensor.copy_(torch.rand(tensor.shape))
    assert hand.compute_and_end(made_request("stores", text(4, 1)), first)
    before = [tensor.clone() for tensor in pages.values()]
    request = made_request("loads", text(4, 1))
    hand.scheduler.on_new_request(request)
    assert hand.scheduler.matched_tokens(request, have) == 4 * BLOCK - have
    hand.scheduler.allocated(request, second, 4 * BLOCK - have)
    assert hand.until("loads") is False
    for old, tensor in zip(before, pages.values()):
        expected = old.clone()
        expected[rows[1][have // kernel_page:]] = old[rows[0][have // kernel_page:]]
        assert torch.equal(tensor, expected)
    hand.close()


# ---- A device that is behind ----

class FakeDevice(Moments, device.HostDevice):
    """A GPU that gets to a moment when a test says so."""


@pytest.fixture
def behind(node):
    """A Hand whose device is behind it, once it is told to be."""
    hand = Hand(node.socket)
    hand.device = hand.worker._device = FakeDevice()
    yield hand
    for moment in hand.device.moments:
        moment.come()
    hand.close()


def test_a_request_may_share_what_another_computes_in_the_same_step(behind):
    """So its blocks are to be stored, and the pages are not written yet."""
    request = made_request("shares", text(4, 1), num_computed_tokens=2 * BLOCK)
    behind.scheduler.on_new_request(request)
    meta = behind.scheduler.build_meta(types.SimpleNamespace(
        preempted_req_ids=set(), num_scheduled_tokens={"shares": 2 * BLOCK + 3}, scheduled_new_reqs=[],
        scheduled_encoder_inputs={},
        kv_connector_block_state=types.SimpleNamespace(get_block_ids=lambda name: (FIRST,)),
        scheduled_cached_reqs=types.SimpleNamespace(req_ids=[], num_computed_tokens=[])))
    assert len(meta.stores[0].keys) == 2 * 32 and meta.prefill is not None
    behind.device.ahead = True
    behind.worker.bind(meta)
    (begin,) = behind.device.moments
    behind.worker.after_forward()  # The step is launched.
    begin.come()
    asked(behind.device.moments[1])
    assert "shares" in behind.worker._queued and not begin.asked.is_set()
    behind.device.moments[1].come()
    aquifer.cache.wait_for(lambda: not behind.worker._is_stored("shares"), 30)
    assert behind.counts()["stored_blocks"] == 2


def test_a_store_reads_what_the_device_has_computed_by_then(behind):
    request = made_request("stores", text(4, 1))
    behind.scheduler.on_new_request(request)
    request.num_computed_tokens = request.num_tokens
    behind.device.ahead = True
    assert behind.scheduler.finished(request, FIRST)
    behind.step()
    (moment,) = behind.device.moments
    asked(moment)
    assert behind.worker._storing is None
    fill(behind, FIRST)  # So late is the device.
    right = [tensor[FIRST].clone() for tensor in behind.pages.values()]
    moment.come()
    behind.until("stores")
    behind.device.ahead = False
    assert behind.begin_load(made_request("loads", text(4, 1)), SECOND) == 4 * BLOCK
    assert behind.until("loads") is False
    for expected, tensor in zip(right, behind.pages.values()):
        assert torch.equal(tensor[SECOND], expected)


@pytest.mark.parametrize("have", [0, PAGE])
def test_a_load_writes_when_the_device_has_read_what_was_there(behind, monkeypatch, have):
    store(behind, 1)
    begun = []
    use = behind.worker._loader.use
    monkeypatch.setattr(behind.worker._loader, "use", lambda *args: begun.append(args) or use(*args))
    request = made_request("loads", text(4, 1))
    behind.scheduler.on_new_request(request)
    assert behind.scheduler.matched_tokens(request, have) == 4 * BLOCK - have
    behind.scheduler.allocated(request, SECOND, 4 * BLOCK - have)
    behind.device.ahead = True
    behind.step()
    moment = behind.device.moments[-1]
    asked(moment)
    assert begun == []
    for tensor in behind.pages.values():
        tensor[SECOND] = -1.0  # So late is the device.
    moment.come()
    assert behind.until("loads") is False
    for tensor in behind.pages.values():
        assert torch.equal(tensor[FIRST[have // PAGE:]], tensor[SECOND[have // PAGE:]])
        assert bool((tensor[SECOND[:have // PAGE]] == -1.0).all())


def test_the_time_that_a_device_is_behind_is_not_the_loads(behind):
    """Until it gets there it would not have computed anything, either."""
    store(behind, 1)
    behind.device.ahead = True
    assert behind.begin_load(made_request("loads", text(4, 1)), SECOND) == 4 * BLOCK
    load = behind.scheduler._next.loads[0]
    behind.step()
    asked(behind.device.moments[-1])
    load.end -= 3600.0  # It was to be done an hour ago,
    behind.device.moments[-1].made -= 3600.0  # for which the device was behind.
    behind.device.moments[-1].come()
    assert behind.until("loads") is False


def test_a_preemption_does_not_wait_for_the_device(behind):
    request = made_request("preempted", text(4, 1))
    behind.scheduler.on_new_request(request)
    request.num_computed_tokens = request.num_tokens
    behind.device.ahead = True
    behind.step([(request, FIRST)])
    asked(behind.device.moments[-1])
    behind.step(preempted=["preempted"])  # Returns, and the pages are somebody else's.
    assert behind.counts()["dropped_stores"] == 1
    behind.device.moments[-1].come()
    behind.device.ahead = False
    store(behind, 2)  # The storing thread has gone on.
    assert behind.counts()["stored_blocks"] == 4
    assert behind.scheduler.matched_tokens(made_request("asks", text(4, 1)), 0) == 0


def test_a_device_that_fails_fails_loads_and_drops_stores(behind):
    store(behind, 1)
    behind.counts()
    behind.device.ahead = True
    loads, stores = made_request("loads", text(4, 1)), made_request("stores", text(4, 2))
    assert behind.begin_load(loads, SECOND) == 4 * BLOCK
    before = [tensor.clone() for tensor in behind.pages.values()]
    behind.scheduler.on_new_request(stores)
    stores.num_computed_tokens = stores.num_tokens
    assert behind.scheduler.finished(stores, FIRST)
    behind.step()
    for moment in behind.device.moments[-2:]:
        moment.come(RuntimeError("CUDA error: an illegal memory access was encountered"))
    reported = {}

    def all_are():
        results = behind.step()
        reported.update(dict.fromkeys(results.finished_sending or (), "sent"))
        for name in results.finished_recving or ():
            reported[name] = "failed" if name in (results.failed_recving or ()) else "loaded"
        return len(reported) == 2
    aquifer.cache.wait_for(all_are, 30)
    assert reported == {"loads": "failed", "stores": "sent"}
    assert behind.counts()["dropped_stores"] == 1
    for old, tensor in zip(before, behind.pages.values()):
        assert torch.equal(old, tensor)
    behind.device.ahead = False
    store(behind, 3)  # One that works again is used again.
    assert behind.counts()["stored_blocks"] == 4
    # The blocks that were not loaded are as good as before.
    assert behind.scheduler.matched_tokens(made_request("next", text(4, 1)), 0) == 4 * BLOCK


def test_a_steps_time_is_the_devices(behind, monkeypatch):
    told = []
    monkeypatch.setattr(behind.worker._storer._cache, "report_prefill", lambda known, *facts: told.append(facts))
    behind.device.ahead = True
    behind.worker.bind(StepMetadata(prefill=Prefill(100, 20, 0.5)))
    behind.worker.after_forward()
    begin, end = behind.device.moments
    asked(end)
    assert told == []
    begin.come()
    end.come()
    aquifer.cache.wait_for(lambda: told, 30)
    assert told == [(100, 20, 250.0)]


def test_a_step_that_moves_nothing_asks_the_device_for_nothing(behind):
    behind.step()
    assert behind.device.moments == []
    store(behind, 1)
    assert len(behind.device.moments) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_an_engine_does_not_hear_of_a_lost_gpu_from_us():
    moment = device.CudaDevice(torch.device("cuda:0")).moment()
    with pytest.raises(RuntimeError):
        moment.wait()
