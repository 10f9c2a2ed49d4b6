"""KV between an engine's tensors and the cache."""
from __future__ import annotations

import dataclasses

import pytest

import aquifer
from conftest import chain_of

np = pytest.importorskip("numpy")

HEADS, DIM, TOKENS, BLOCKS = 2, 64, 16, 4
PAGES = 8


def _sequences(layers, seed):
    numbers = np.random.default_rng(seed)
    return [numbers.random((1, HEADS, BLOCKS * TOKENS, DIM), dtype=np.float32) for _ in range(layers)]


def _paged(seed, heads=HEADS):
    """Two layers of [B, H, N, C], K and V in one C."""
    numbers = np.random.default_rng(seed)
    return [numbers.random((PAGES, heads, TOKENS, 2 * DIM), dtype=np.float32) for _ in range(2)]


def test_a_prefix_moves_out_and_back(any_cache, layout):
    keys, values = _sequences(2, 1), _sequences(2, 2)
    tensors = aquifer.TensorMap(layout, aquifer.Family.SEQUENCES, keys, values)
    assert (tensors.tokens_per_block, tensors.blocks_per_page) == (TOKENS, BLOCKS)
    chain = chain_of(any_cache, layout, range(BLOCKS * TOKENS))
    assert any_cache.load(chain, tensors, [0]).why == "not found"
    stored = any_cache.store(chain, layout.root(), tensors, [0], timeout=30)
    assert (stored.stored, stored.published, stored.had) == (BLOCKS, BLOCKS, 0)
    assert any_cache.store(chain, layout.root(), tensors, [0]).had == BLOCKS

    new_keys, new_values = _sequences(2, 3), _sequences(2, 4)
    others = aquifer.TensorMap(layout, aquifer.Family.SEQUENCES, new_keys, new_values)
    loaded = any_cache.load(chain, others, [0])
    assert (loaded.blocks, loaded.why) == (BLOCKS, "ok")
    assert loaded.by_tier == {aquifer.Tier.DRAM: BLOCKS}
    for ours, theirs in zip(new_keys + new_values, keys + values):
        assert np.array_equal(ours, theirs)
    assert any_cache.stats().counters["lent_slots"] == 0


def test_arrays_that_are_read_only_are_stored_and_not_loaded_into(cache, layout):
    """Of a file that is mapped to be read, say: writing there would end the process."""
    arrays = _paged(1)
    arrays[1].flags.writeable = False
    tensors = aquifer.TensorMap(layout, aquifer.Family.FUSED, arrays)
    chain = chain_of(cache, layout, range(BLOCKS * TOKENS))
    assert cache.store(chain, layout.root(), tensors, [7, 1, 3, 2], timeout=30).stored == BLOCKS
    before = arrays[1].copy()
    with pytest.raises(aquifer.Invalid, match="read-only"):
        cache.load(chain, tensors, [0, 4, 5, 6])
    assert np.array_equal(arrays[1], before)


def test_a_chain_with_a_hole_is_loaded_up_to_it(cache, layout):
    tensors = aquifer.TensorMap(layout, aquifer.Family.FUSED, _paged(1))
    chain = chain_of(cache, layout, range(BLOCKS * TOKENS))
    cache.store(chain, layout.root(), tensors, [7, 1, 3, 2], timeout=30)
    cache.evict(chain.part_of(2, 3))
    loaded = cache.load(chain, tensors, [0, 4, 5, 6])
    assert (loaded.blocks, loaded.why) == (2, "not found")
    # What is new of it is stored from its place on.
    stored = cache.store(chain.part_of(2), chain.key(1), tensors, [7, 1, 3, 2], first_block=2, position=2)
    assert stored.stored + stored.had == 2 and stored.stored >= 1
    assert cache.load(chain, tensors, [0, 4, 5, 6]).blocks == BLOCKS
    assert cache.load(chain.part_of(1), tensors, [0, 4, 5, 6], first_block=1).blocks == BLOCKS - 1


def test_ranks_write_their_heads_and_another_number_of_ranks_reads_them(node, layout):
    halves = [_paged(1, heads=1), _paged(2, heads=1)]
    chain = None
    for rank in range(2):
        heads = aquifer.heads_of_rank(HEADS, 2, rank)
        tensors = aquifer.TensorMap(layout, aquifer.Family.FUSED, halves[rank], heads=heads)
        client = node.connect(engine="both ranks")
        chain = chain_of(client, layout, range(BLOCKS * TOKENS))
        stored = client.store(chain, layout.root(), tensors, [3, 2, 1, 0], timeout=30)
        assert (stored.stored, stored.published) == (BLOCKS, BLOCKS if rank == 1 else 0)
        assert client.match(chain).matched == (BLOCKS if rank == 1 else 0)
    whole = _paged(3)
    with node.connect(engine="one rank") as client:
        tensors = aquifer.TensorMap(layout, aquifer.Family.FUSED, whole)
        assert client.load(chain_of(client, layout, range(BLOCKS * TOKENS)), tensors, [0, 1, 2, 3]).blocks == BLOCKS
    for layer in range(2):
        for block, page in enumerate([3, 2, 1, 0]):
            for head in range(HEADS):
                assert np.array_equal(whole[layer][block, head], halves[head][layer][page, 0])


def test_what_does_not_fit_is_refused_by_name(layout):
    keys, values = _sequences(2, 1), _sequences(2, 2)
    with pytest.raises(aquifer.Invalid, match="planes|layers"):
        aquifer.TensorMap(layout, aquifer.Family.SEQUENCES, keys[:1], values[:1])
    with pytest.raises(aquifer.Invalid, match="C is"):
        aquifer.TensorMap(layout, aquifer.Family.SEQUENCES, [k[..., :32] for k in keys], values)
    with pytest.raises(aquifer.Invalid, match="dimensions"):
        aquifer.TensorMap(layout, aquifer.Family.KV_FIRST, keys)
    with pytest.raises(aquifer.Invalid, match="no whole block"):
        aquifer.TensorMap(layout, aquifer.Family.SEQUENCES, [k[:, :, :8] for k in keys],
                          [v[:, :, :8] for v in values])


def test_pages_that_the_engine_does_not_have_are_no_crash(cache, layout):
    tensors = aquifer.TensorMap(layout, aquifer.Family.FUSED, _paged(1))
    chain = chain_of(cache, layout, range(BLOCKS * TOKENS))
    stored = cache.store(chain, layout.root(), tensors, [0, 1, PAGES, 2], timeout=30)
    assert (stored.stored, stored.failed) == (BLOCKS - 1, 1)
    loaded = cache.load(chain, tensors, [PAGES, 0, 0, 0])
    assert (loaded.blocks, loaded.why) == (0, "invalid")


def test_another_model_or_format_finds_nothing(cache, layout):
    tensors = aquifer.TensorMap(layout, aquifer.Family.FUSED, _paged(1))
    chain = chain_of(cache, layout, range(BLOCKS * TOKENS))
    cache.store(chain, layout.root(), tensors, [0, 1, 2, 3], timeout=30)
    assert cache.match(chain).matched == BLOCKS
    for other in (dataclasses.replace(layout, model=bytes(32)), dataclasses.replace(layout, kv_format="v2"),
                  dataclasses.replace(layout, groups=(dataclasses.replace(
                      layout.groups[0], dtype=aquifer.DType.FLOAT16),))):
        assert cache.match(chain_of(cache, other, range(BLOCKS * TOKENS))).matched == 0


def test_an_answer_says_at_length_what_went_wrong(cache, layout, monkeypatch):
    """The library's own words: a code alone does not tell a GPU that is full from a node that is gone."""
    tensors = aquifer.TensorMap(layout, aquifer.Family.SEQUENCES, _sequences(2, 1), _sequences(2, 2))
    chain = chain_of(cache, layout, range(BLOCKS * TOKENS))
    missed = cache.load(chain, tensors, [0])
    assert missed.message != "" and not missed.is_broken
    stored = cache.store(chain, layout.root(), tensors, [0], timeout=30)
    assert (stored.failed, stored.message) == (0, "")
    assert cache.load(chain, tensors, [0]).message == ""

    def fails(handle, args, answer):
        answer._obj.code, answer._obj.failed = 4, 3
        return 0
    library = aquifer.cache.library
    monkeypatch.setattr(library, "aquifer_load", fails)
    monkeypatch.setattr(library, "aquifer_store", fails)
    monkeypatch.setattr(library, "aquifer_error", lambda: b"the GPU path is off")
    loaded, stored = cache.load(chain, tensors, [0]), cache.store(chain, layout.root(), tensors, [0])
    assert (loaded.why, loaded.message, loaded.is_broken) == ("unavailable", "the GPU path is off", True)
    assert (stored.failed, stored.message) == (3, "the GPU path is off")
