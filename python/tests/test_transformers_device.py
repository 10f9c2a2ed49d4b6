"""What aquifer.transformers does otherwise where the KV is on a GPU, as far as that shows without one: an engine's
thread that is ahead of its device, a device that is full or fails, and what is told of it."""
from __future__ import annotations

import logging

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import aquifer
import aquifer.transformers
from aquifer import storing, weights
from models import make_model, prompt
from moments import FakeMoment, Moments, asked
from torch.utils._python_dispatch import TorchDispatchMode

BLOCK = 256  # Of these models, by the product's rule.


class Device(Moments):
    """Makes a Recall's moments."""

    def __init__(self, recall, monkeypatch):
        super().__init__()
        monkeypatch.setattr(recall, "_moment", self.moment)


@pytest.fixture
def client(tmp_path):
    with aquifer.Node(str(tmp_path / "node.sock"), dram="512MiB") as node, node.connect() as connected:
        yield connected


@pytest.fixture
def model():
    return make_model("llama")


@pytest.fixture
def warnings(caplog):
    storing.warn_once.cache_clear()
    with caplog.at_level(logging.WARNING, logger="aquifer"):
        yield lambda: [record.getMessage() for record in caplog.records]


@pytest.fixture
def made(model, client):
    """Makes Recalls, and closes them."""
    recalls = []

    def make(**options):
        recalls.append(aquifer.transformers.Recall(model, client, **options))
        return recalls[-1]
    yield make
    for recall in recalls:
        recall.close()


def forward(recall, ids, cache=None):
    """The last token's logits."""
    with torch.no_grad():
        return recall.model(input_ids=ids, past_key_values=cache or recall.cache(), logits_to_keep=1).logits


# ---- Time ----

def test_a_prefills_time_is_the_devices(made, monkeypatch):
    recall = made()
    device = Device(recall, monkeypatch)
    told = []
    monkeypatch.setattr(recall._cache, "report_prefill", lambda known, *facts: told.append((known, *facts)))
    device.ahead = True
    cache = recall.cache()
    forward(recall, prompt(100), cache)
    begin, end = device.moments
    asked(end)
    assert told == []
    end.come()
    assert recall.flush() and told == [(recall._known, 100, 0, 500.0)]
    forward(recall, prompt(1), cache)  # A step of one token is not timed.
    assert len(device.moments) == 2
    device.ahead = False
    forward(recall, prompt(50), cache)
    assert recall.flush() and told[1:] == [(recall._known, 50, 101, 500.0)]
    forward(recall, torch.cat([prompt(50), prompt(50, seed=2)]))
    assert recall.flush() and len(told) == 2  # Nor are several texts at a time.


@pytest.mark.parametrize("milliseconds, pays", [(500.0, True), (1e-3, False)])
def test_with_the_defaults_what_is_computed_faster_is_computed(made, monkeypatch, milliseconds, pays):
    """And the deadline is as long as computing would take."""
    recall = made()
    Device(recall, monkeypatch)
    monkeypatch.setattr(FakeMoment, "milliseconds_since", lambda *_: milliseconds)
    for seed in range(1, 6):
        forward(recall, prompt(600, seed=seed))
    assert recall.flush() and recall.statistics.stored_blocks == 10
    timeouts, load = [], recall._cache.load
    monkeypatch.setattr(recall._cache, "load",
                        lambda *args, timeout: timeouts.append(timeout) or load(*args, timeout=60.0))
    cache = recall.cache()
    forward(recall, prompt(600), cache)
    assert cache.recalled_tokens == (2 * BLOCK if pays else 0)
    # 512 of 600 tokens; what is left of it when the load begins is below it, and above what nobody knew.
    assert len(timeouts) == (1 if pays else 0) and all(0 < timeout < 0.5 for timeout in timeouts)


# ---- A device that is behind, full, or fails ----

def test_a_store_waits_until_the_device_has_computed(made, monkeypatch):
    recall = made()
    device = Device(recall, monkeypatch)
    device.ahead = True
    forward(recall, prompt(300))
    begin, end, computed = device.moments
    end.come()
    asked(computed)
    assert not recall.flush(0.0) and recall.statistics.stored_blocks == 0
    computed.come()
    assert recall.flush() and recall.statistics.stored_blocks == 1


def test_the_storing_thread_survives_a_device_that_fails(made, monkeypatch, warnings):
    recall = made()
    device = Device(recall, monkeypatch)
    device.ahead = True
    for seed in (1, 2):
        forward(recall, prompt(300, seed=seed))
    for moment in device.moments:
        moment.come(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert recall.flush()
    assert (recall.statistics.stored_blocks, recall.statistics.dropped_stores) == (0, 2)
    assert warnings() == ["Aquifer: a store failed: CUDA error: an illegal memory access was encountered"]
    device.ahead = False
    forward(recall, prompt(300, seed=3))
    assert recall.flush() and recall.statistics.stored_blocks == 1


@pytest.mark.parametrize("room", [0, 1])
def test_what_waits_to_be_stored_has_a_cap_in_bytes(made, monkeypatch, room):
    """One text may wait, however long it is; the others wait below the cap, or are not stored and counted."""
    token_bytes = 3 * 2 * 2 * 32 * 4  # Layers, K and V, heads, their size, floats.
    recall = made(waiting_bytes=(600 + room) * token_bytes, always=True, deadline=60.0)
    device = Device(recall, monkeypatch)
    device.ahead = True
    caches = [recall.cache() for _ in range(4)]
    for seed, cache in enumerate(caches):
        forward(recall, prompt(300, seed=seed), cache)
        if seed == 0:  # It is being stored; its report was first.
            device.moments[1].come()
            asked(device.moments[2])
    storer = recall._storer
    assert [storer._storing, *storer._waiting] == caches[:2]
    assert storer._storing_bytes + sum(work.bytes for work in storer._waiting.values()) == 600 * token_bytes
    assert recall.statistics.dropped_stores == 2
    forward(recall, prompt(1), caches[3])  # Offered again; it is counted once.
    assert recall.statistics.dropped_stores == 2
    # One that waits is replaced by what it has become, if there is room.
    forward(recall, prompt(1), caches[1])
    assert storer._waiting[caches[1]].layers[0][0].shape[2] == 300 + room
    for moment in device.moments:
        moment.come()
    device.ahead = False
    assert recall.flush() and recall.statistics.stored_blocks == 2
    forward(recall, prompt(1), caches[3])  # Now there is room for it.
    assert recall.flush() and recall.statistics.stored_blocks == 3


def test_a_text_that_is_longer_than_the_cap_waits_alone(made):
    recall = made(waiting_bytes=1)
    forward(recall, prompt(600))
    assert recall.flush() and recall.statistics.stored_blocks == 2 and recall.statistics.dropped_stores == 0


@pytest.mark.parametrize("where", ["_new_layers", "_await_gpu", "_install"])
def test_a_gpu_without_room_for_a_recall_computes(made, monkeypatch, warnings, where):
    recall = made(always=True, deadline=60.0)
    ids = prompt(600)
    expected = forward(recall, ids)
    assert recall.flush()
    before, install = recall.statistics.recalled_tokens, recall._install

    def fail(cache, layers, columns, rows):
        layers[1] = None  # The first one is installed by then.
        try:
            return install(cache, layers, columns, rows)
        except TypeError:
            raise torch.OutOfMemoryError("CUDA out of memory") from None

    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")
    with monkeypatch.context() as small:
        small.setattr(recall, where, fail if where == "_install" else full)
        for _ in range(2):
            cache = recall.cache()
            assert torch.equal(forward(recall, ids, cache), expected)
            assert cache.recalled_tokens == 0 and cache.get_seq_length() == 600 and cache.plain is None
    assert recall.statistics.short_loads == 2 and recall.statistics.recalled_tokens == before
    assert warnings() == ["Aquifer: a load failed, and is computed: CUDA out of memory"]
    cache = recall.cache()
    forward(recall, ids, cache)
    assert cache.recalled_tokens == 2 * BLOCK


def test_a_gpu_without_room_to_look_at_the_weights_computes(made, monkeypatch, warnings):
    recall = made(always=True, deadline=60.0)
    expected, started = forward(recall, prompt(300)), recall.cache()
    forward(recall, prompt(100), started)

    def full(model):
        raise torch.OutOfMemoryError("CUDA out of memory")
    with monkeypatch.context() as small:
        small.setattr(aquifer.transformers, "weights_version", full)
        cache = recall.cache()
        assert torch.equal(forward(recall, prompt(300), cache), expected)
        assert cache.plain == "nobody knows which model it is: CUDA out of memory"
        forward(recall, prompt(200, seed=2), started)
        assert recall.flush() and recall.statistics.dropped_stores == 1
        assert warnings() == ["Aquifer: a store failed: CUDA out of memory"]
    forward(recall, prompt(1), started)
    assert started.plain is None and recall.flush() and recall.statistics.stored_blocks == 2


# ---- What is told ----

def test_why_blocks_did_not_come_or_go_is_told_once(made, monkeypatch, warnings):
    recall = made(always=True, deadline=60.0)
    ids = prompt(600)
    expected = forward(recall, ids)
    assert recall.flush() and recall.statistics.stored_blocks == 2
    off = "the GPU path is off: taking memory of the GPU: CUDA_ERROR_OUT_OF_MEMORY"
    monkeypatch.setattr(recall._cache, "load",
                        lambda *_, **__: aquifer.cache.Loaded(0, 0, "unavailable", {}, off))
    monkeypatch.setattr(recall._storer.client, "store", lambda chain, *_, **__: aquifer.cache.Stored(
        0, 0, 0, 0, 0, len(chain), 0, "none", off))
    for _ in range(2):
        assert torch.equal(forward(recall, ids), expected)
        assert recall.flush()
    assert (recall.statistics.stored_blocks, recall.statistics.failed_blocks) == (2, 4)
    assert recall.statistics.short_loads == 2
    assert warnings() == [f"Aquifer: a load came short, and the rest is computed: {off}",
                          f"Aquifer: blocks were not stored: {off}"]


def test_what_is_late_is_told_to_nobody(made, monkeypatch, warnings):
    recall = made(always=True, deadline=60.0)
    forward(recall, prompt(600))
    assert recall.flush()
    monkeypatch.setattr(recall._cache, "load", lambda *_, **__: aquifer.cache.Loaded(0, 0, "late", {}, "late"))
    forward(recall, prompt(600))
    assert recall.statistics.short_loads == 1 and warnings() == []


# ---- Weights ----

class Kernels(TorchDispatchMode):
    """Counts what is not merely another view of the same memory."""

    def __init__(self):
        super().__init__()
        self.called = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not func.is_view:
            self.called.append(str(func))
        return func(*args, **(kwargs or {}))


def test_weights_are_looked_at_by_two_gathers_however_many_they_are(model):
    with Kernels() as kernels:
        weights.weights_version(model)
    assert len(weights._tensors_of(model)) > 30 and kernels.called == 2 * ["aten.cat.default"]


@pytest.mark.parametrize("kind", ["plain", "turned", "spread"])
def test_what_is_written_through_data_is_seen(model, kind):
    weight = model.model.layers[1].self_attn.k_proj.weight
    if kind == "turned":  # Its columns lie one after the other.
        weight.data = weight.data.t().contiguous().t()
    if kind == "spread":  # It has more elements than there are in memory.
        model.register_buffer("spread", torch.ones(1))
        weight = model.spread
        model.spread.data = weight.data.expand(4096)
    assert weight.is_contiguous() is (kind == "plain")
    before, counted = weights.weights_version(model), weight._version
    assert weights.weights_version(model) == before
    weight.data[:1].mul_(1.5)
    assert weight._version == counted and weights.weights_version(model) != before
