"""aquifer.transformers over real, small models with random weights, and a real node: what is recalled, what is left
alone, and what goes wrong. Which models are recalled, and as which, is in test_transformers_models.py."""
from __future__ import annotations

import copy
import functools
import gc
import json
import os
import signal
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import aquifer
import aquifer.transformers
from conftest import node_process, stand_still
from models import BLOCK, KINDS, generate, make_model, make_tokenizer, prompt, recalling
from transformers import DynamicCache, GenerationConfig, pipeline


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_computed_once_is_recalled_and_gives_the_same(kind, client):
    model = make_model(kind)
    ids = prompt(700)
    plain, plain_logits, computed = generate(model, ids)
    assert computed == 700 + 7
    recall = recalling(model, client)
    first, _, computed = generate(model, ids, recall.cache())
    assert computed == 700 + 7 and torch.equal(first, plain)
    assert recall.flush()
    cache = recall.cache()
    again, logits, computed = generate(model, ids, cache)
    assert (cache.recalled_tokens, computed) == (2 * BLOCK, 700 - 2 * BLOCK + 7)
    assert torch.equal(again, plain)
    assert torch.allclose(logits, plain_logits, atol=1e-4)
    assert recall.statistics.recalled_tokens == 2 * BLOCK
    recall.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_those_of_a_run_that_kept_the_same_kv(dtype, client):
    """Bit by bit: cut at the same token, with the KV kept in memory."""
    model = make_model("llama", dtype)
    ids = prompt(600)
    kept = DynamicCache(config=model.config)
    with torch.no_grad():
        model(ids[:, :600], past_key_values=kept)
        kept.crop(2 * BLOCK - 600)
        expected = model(ids[:, 2 * BLOCK:], past_key_values=kept, logits_to_keep=1).logits
    recall = recalling(model, client)
    with torch.no_grad():
        model(input_ids=ids, past_key_values=recall.cache())
        assert recall.flush()
        cache = recall.cache()
        logits = model(input_ids=ids, past_key_values=cache, logits_to_keep=1).logits
    assert cache.recalled_tokens == 2 * BLOCK
    assert torch.equal(logits, expected)
    recall.close()


def test_the_next_turn_computes_only_what_is_new(client):
    """Generated tokens are stored too, and a conversation goes on in another cache object."""
    model = make_model("llama")
    recall = recalling(model, client)
    ids = prompt(BLOCK - 4)
    answer, _, _ = generate(model, ids, recall.cache(session="talk"))
    assert recall.flush()
    following = torch.cat([answer, prompt(40, seed=5)], dim=1)
    plain, _, _ = generate(model, following)
    cache = recall.cache(session="talk")
    again, _, computed = generate(model, following, cache)
    assert cache.recalled_tokens == BLOCK and computed == following.shape[1] - BLOCK + 7
    assert torch.equal(again, plain)
    assert client.prestage(session="talk") == (1, 1)
    recall.close()


def test_a_cache_object_that_goes_on_needs_no_recall(client):
    model = make_model("llama")
    recall = recalling(model, client)
    cache = recall.cache()
    answer, _, _ = generate(model, prompt(300), cache)
    following = torch.cat([answer, prompt(400, seed=5)], dim=1)
    plain, _, _ = generate(model, following)
    again, _, computed = generate(model, following, cache)
    assert torch.equal(again, plain) and computed == 400 + 1 + 7
    assert recall.flush() and cache.plain is None
    # What it added is stored behind what it had.
    other = recall.cache()
    _, _, computed = generate(model, following, other)
    assert other.recalled_tokens == following.shape[1] // BLOCK * BLOCK
    recall.close()


def test_a_prompt_that_is_all_there_computes_its_last_token(client):
    model = make_model("llama")
    recall = recalling(model, client)
    ids = prompt(2 * BLOCK)
    plain, _, _ = generate(model, ids, recall.cache())
    assert recall.flush()
    cache = recall.cache()
    again, _, computed = generate(model, ids, cache)
    assert (cache.recalled_tokens, computed) == (2 * BLOCK - 1, 1 + 7)
    assert torch.equal(again, plain)
    recall.close()


def test_rows_of_a_batch_share_what_each_has(client):
    model = make_model("llama")
    recall = recalling(model, client)
    long, short = prompt(600), prompt(400, seed=2)
    for ids in (long, short):
        generate(model, ids, recall.cache())
    assert recall.flush()
    ids = torch.cat([long, torch.cat([torch.zeros(1, 200, dtype=torch.long), short], dim=1)])
    mask = torch.ones_like(ids)
    mask[1, :200] = 0
    plain, plain_logits, _ = generate(model, ids, mask=mask)
    cache = recall.cache()
    again, logits, computed = generate(model, ids, cache, mask=mask)
    # The second row has 200 columns of padding and one block; the first has two.
    assert cache.recalled_tokens == 200 + BLOCK and cache.plain is None
    assert computed == 2 * (600 - 200 - BLOCK + 7)
    assert torch.equal(again, plain) and torch.allclose(logits, plain_logits, atol=1e-4)
    # And a batch stores each row as its own text.
    recall.flush()
    both = prompt(700, seed=3)
    batch = torch.cat([both, torch.cat([torch.zeros(1, 300, dtype=torch.long), prompt(400, seed=4)], dim=1)])
    mask = torch.ones_like(batch)
    mask[1, :300] = 0
    generate(model, batch, recall.cache(), mask=mask)
    assert recall.flush()
    alone = recall.cache()
    sequence, _, _ = generate(model, prompt(400, seed=4), alone)
    assert alone.recalled_tokens == BLOCK
    assert torch.equal(sequence, generate(model, prompt(400, seed=4))[0])
    recall.close()


def test_another_process_recalls_after_a_restart_of_the_node(tmp_path):
    """Stored in one process, recalled in another, from the drive: each kind of model, and what it says without a
    cache."""
    drive = tmp_path / "drive"
    drive.mkdir()
    script = os.path.join(os.path.dirname(__file__), "models.py")
    told = {}
    for turn in ("store", "recall"):
        with aquifer.Node(str(tmp_path / "node.sock"), dram="256MiB", nvme=[f"{drive}:512MiB"]) as node:
            done = subprocess.run([sys.executable, script, node.socket, turn], text=True, capture_output=True)
            assert done.returncode == 0, done.stderr
            told[turn] = json.loads(done.stdout.splitlines()[-1])
    for kind in KINDS:
        tokens = generate(make_model(kind), prompt(700))[0][0, 700:].tolist()
        assert told["store"][kind] == {"tokens": tokens, "recalled": 0, "computed": 707}
        assert told["recall"][kind] == {"tokens": tokens, "recalled": 2 * BLOCK, "computed": 707 - 2 * BLOCK}


@pytest.mark.parametrize("recalled", [False, True])
def test_a_forward_pass_that_fails_leaves_no_wrong_text_behind(recalled, client):
    """It was given tokens that it did not compute; the conversation goes on with them, or with others."""
    model = make_model("llama")
    recall = recalling(model, client)
    first = prompt(300 if recalled else 40)
    cache = recall.cache()
    if recalled:
        generate(model, first, recall.cache())
        assert recall.flush()
    else:
        generate(model, first, cache)

    def fail(*_):
        raise RuntimeError("no memory")
    following = torch.cat([first, prompt(100, seed=8)], dim=1) if recalled else prompt(1, seed=9)
    hook = model.model.layers[0].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="no memory"):
        with torch.no_grad():
            model(input_ids=following, past_key_values=cache, logits_to_keep=1)
    hook.remove()
    start = cache.get_seq_length()
    assert (start == BLOCK) is recalled
    rest = prompt(2 * BLOCK, seed=10)
    with torch.no_grad():
        model(input_ids=rest, past_key_values=cache, logits_to_keep=1)
    assert cache.plain is None and list(cache._rows[0].tokens)[start:] == rest[0].tolist()
    recall.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_makes_another_kv(dtype, client):
    """float16 has as many bits as bfloat16: nobody else would see the difference."""
    model = make_model("llama", dtype)
    recall = recalling(model, client)
    ids = prompt(600)
    cache = recall.cache()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
        model(input_ids=ids, past_key_values=cache)
    assert cache.plain == "autocast"
    assert recall.flush() and recall.statistics.stored_blocks == 0
    recall.close()


def test_masks_of_another_kind_are_left_alone(client):
    model = make_model("qwen2")
    recall = recalling(model, client)
    cache = recall.cache()
    with torch.no_grad():
        model(input_ids=prompt(300), attention_mask={"full_attention": None}, past_key_values=cache)
    assert "mask" in cache.plain
    recall.close()


def test_a_store_that_fails_is_not_the_last(client):
    """A name that is too long: the library refuses it, and what comes later is stored."""
    model = make_model("llama")
    recall = recalling(model, client)
    generate(model, prompt(300), recall.cache(session="x" * 300))
    assert recall.flush()
    generate(model, prompt(300, seed=2), recall.cache(session="chat"))
    assert recall.flush()
    assert recall.statistics.stored_blocks == 2 and recall.statistics.dropped_stores > 0
    assert client.prestage(session="chat") == (1, 1)
    recall.close()


def test_blocks_that_are_stored_while_others_are_offered_keep_their_names(client, monkeypatch):
    """The storing thread may be done with some between any two looks at what is stored."""
    class Restless(aquifer.transformers._Row):
        looks = 0

        @property
        def stored(self):
            self.looks += 1
            return min(self.looks // 2, 2)

        @stored.setter
        def stored(self, blocks):
            pass
    monkeypatch.setattr(aquifer.transformers, "_Row", Restless)
    model, ids = make_model("llama"), prompt(3 * BLOCK)
    recall = recalling(model, client)
    cache = recall.cache()
    with torch.no_grad():
        model(input_ids=ids, past_key_values=cache, logits_to_keep=1)
    for looks in range(4):
        cache._rows[0].looks = looks
        offered = cache._take_new().rows[0]
        keys, first = cache._rows[0].keys, offered.first
        assert offered.keys == keys[first * 32:] and offered.parent == cache._rows[0].parent(first)
    monkeypatch.setattr(Restless, "stored", 3)
    assert cache._take_new() is None
    recall.close()


def test_a_recall_may_have_all_the_time_there_is(client):
    model, ids = make_model("llama"), prompt(300)
    recall = aquifer.transformers.Recall(model, client, deadline=float("inf"), always=True)
    for recalled in (0, BLOCK):
        cache = recall.cache()
        assert torch.equal(generate(model, ids, cache)[0], generate(model, ids)[0])
        assert recall.flush() and cache.recalled_tokens == recalled
    recall.close()


def test_a_name_that_the_library_would_cut_is_refused(client):
    model = make_model("llama")
    with pytest.raises(aquifer.Invalid, match="NUL"):
        recalling(model, client, cache_salt="alice\0bob")
    recall = recalling(model, client)
    for name in ("session", "cache_salt"):
        with pytest.raises(aquifer.Invalid, match="NUL"):
            recall.cache(**{name: "alice\0bob"})
    recall.close()


def test_the_storing_thread_survives_whatever_happens(client, monkeypatch):
    model = make_model("llama")
    recall = recalling(model, client)
    with monkeypatch.context() as broken:
        broken.setattr(recall._storer, "_store_row", lambda *_: 1 / 0)
        generate(model, prompt(300), recall.cache())
        assert recall.flush()
    assert recall.statistics.dropped_stores > 0 and recall.statistics.stored_blocks == 0
    generate(model, prompt(300), recall.cache())
    assert recall.flush() and recall.statistics.stored_blocks == 1
    recall.close()


def test_a_damaged_block_is_computed(tmp_path):
    """In an embedded cache, whose memory is this process's: one byte changes where it lies."""
    import ctypes
    model = make_model("llama")
    ids = prompt(600)
    plain, _, _ = generate(model, ids)
    with aquifer.open_cache(dram_bytes=256 << 20) as cache:
        recall = recalling(model, cache)
        stored = recall.cache()
        generate(model, ids, stored)
        assert recall.flush()
        chain = aquifer.Chain(cache.register(recall.layout), stored._rows[0].keys)
        with cache.fetch(chain) as blocks:
            block = list(blocks)[1]
            address = ctypes.addressof(ctypes.c_uint8.from_buffer(_writable(block.data)))
            ctypes.c_uint8.from_address(address + 12345).value ^= 1
        damaged = recall.cache()
        again, _, _ = generate(model, ids, damaged)
        assert damaged.recalled_tokens == BLOCK and recall.statistics.short_loads == 1
        assert torch.equal(again, plain)
        recall.close()


def _writable(view):
    import ctypes

    class Buffer(ctypes.Structure):
        _fields_ = [("data", ctypes.c_void_p), ("object", ctypes.py_object), ("length", ctypes.c_ssize_t),
                    ("rest", ctypes.c_ubyte * 128)]
    buffer = Buffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(buffer), 0)
    return (ctypes.c_uint8 * buffer.length).from_address(buffer.data)


def test_a_node_that_is_gone_costs_nothing_but_the_recall(tmp_path):
    model = make_model("llama")
    ids = prompt(600)
    plain, _, _ = generate(model, ids)
    node = aquifer.Node(str(tmp_path / "node.sock"), dram="256MiB")
    recall = recalling(model, node.connect())
    generate(model, ids, recall.cache())
    assert recall.flush()
    node.close()
    cache = recall.cache()
    again, _, computed = generate(model, ids, cache)
    assert (cache.recalled_tokens, computed) == (0, 607)
    assert torch.equal(again, plain)
    recall.flush()
    assert recall.statistics.dropped_stores > 0
    recall.close()


def test_every_generate_inside_of_a_recall_uses_it(client):
    model = make_model("llama")
    ids = prompt(600)
    plain, _, _ = generate(model, ids)
    recall = recalling(model, client)
    with recall:
        for _ in range(2):
            output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False,
                                    pad_token_id=0)
            assert torch.equal(output, plain)
            assert recall.flush()
    assert recall.statistics.recalled_tokens == 2 * BLOCK
    model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=2, do_sample=False, pad_token_id=0)
    assert recall.statistics.recalled_tokens == 2 * BLOCK  # Outside, nothing.
    recall.close()


def test_a_pipeline_inside_of_a_recall_uses_it(client):
    """One text after the other, and all in a batch, where the shorter ones are padded."""
    model, tokenizer = make_model("llama"), make_tokenizer()
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    tokenizer.padding_side = "left"
    pipe = pipeline("text-generation", model=model, tokenizer=tokenizer, device="cpu")
    texts = ["".join(f"{bottle} green bottles in room {room}. " for bottle in range(30 + room)) for room in range(3)]
    given = dict(max_new_tokens=8, do_sample=False)
    plain, plain_batch = [pipe(text, **given) for text in texts], pipe(texts, batch_size=3, **given)
    blocks = [len(text) // BLOCK for text in texts]
    recall = recalling(model, client)
    with recall:
        for recalled in (0, sum(blocks) * BLOCK):
            assert [pipe(text, **given) for text in texts] == plain and recall.flush()
            assert recall.statistics.recalled_tokens == recalled
        assert pipe(texts, batch_size=3, **given) == plain_batch and not recall.statistics.given_up
    assert recall.statistics.recalled_tokens > recalled and recall.statistics.stored_blocks == sum(blocks)
    recall.close()


def test_a_compiled_model_is_recalled_and_the_compiler_reads_none_of_it(client, monkeypatch):
    """Of what torch.compile() returns, generate() calls the model inside."""
    failed = []
    monkeypatch.setattr(sys, "unraisablehook", failed.append)
    model, ids = make_model("llama", num_hidden_layers=1), prompt(300)
    plain, logits, _ = generate(model, ids)
    compiled = torch.compile(model, backend="eager")
    recall = recalling(compiled, client)
    with recall:
        for recalled in (0, BLOCK):
            output = compiled.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False,
                                       pad_token_id=0)
            assert torch.equal(output, plain) and recall.flush()
            assert recall.statistics.recalled_tokens == recalled
    model.compile(backend="eager")
    cache = recall.cache()
    with torch.no_grad():
        again = model(input_ids=ids, past_key_values=cache, logits_to_keep=1).logits[:, 0]
    assert torch.allclose(again, logits[0], atol=1e-4) and cache.recalled_tokens == BLOCK
    recall.close()
    gc.collect()
    assert not failed


@pytest.mark.parametrize("whose", ["the call's", "the configuration's", "the model's"])
def test_who_wants_no_cache_gets_what_there_is_without_one(whose, client):
    """Checkpoints that were saved after training often say so."""
    model = make_model("llama")
    ids = prompt(600)
    given = dict(attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False, pad_token_id=0)
    if whose == "the call's":
        given["use_cache"] = False
    elif whose == "the configuration's":
        given["generation_config"] = GenerationConfig(use_cache=False)
    else:
        model.generation_config.use_cache = False
    plain = model.generate(ids, **given)
    recall = recalling(model, client)
    with recall:
        assert torch.equal(model.generate(ids, **given), plain)
    cache = recall.cache()
    assert torch.equal(model.generate(ids, past_key_values=cache, **given), plain)
    assert cache.plain == "a forward pass without a cache"
    recall.close()


def test_a_context_leaves_what_is_not_its_own(client):
    model = make_model("llama")
    ids = prompt(300)
    given = dict(attention_mask=torch.ones_like(ids), max_new_tokens=2, do_sample=False, pad_token_id=0)
    outer, inner = recalling(model, client, cache_salt="outer"), recalling(model, client, cache_salt="inner")
    with outer:
        with inner, outer:
            pass
        model.generate(ids, **given)
        assert (outer.statistics.computed_tokens, inner.statistics.computed_tokens) == (301, 0)
    assert "generate" not in model.__dict__
    own = model.generate = lambda *args, **kwargs: "the user's"
    with outer:
        assert model.generate() == "the user's"
    assert model.generate is own
    with outer:
        front = model.generate = functools.partial(model.generate)
    assert model.generate is front and front() == "the user's"
    outer.close()
    inner.close()


def test_a_turn_that_is_all_recalled_is_of_its_session(client):
    model = make_model("llama")
    recall = recalling(model, client)
    generate(model, prompt(2 * BLOCK + 1), recall.cache())
    assert recall.flush()
    cache = recall.cache(session="chat")
    generate(model, prompt(2 * BLOCK + 1), cache)
    assert cache.recalled_tokens == 2 * BLOCK
    assert client.prestage(session="chat") == (2, 2)
    generate(model, prompt(2 * BLOCK + 1), recall.cache(session="x" * 257))  # Longer than a name may be.
    recall.close()


@pytest.mark.parametrize("closed", [False, True])
def test_a_model_may_have_several_recalls(closed, client):
    """Also one after the other, where nobody closed the first: each looks after its own caches."""
    model = make_model("llama")
    first = recalling(model, client, cache_salt="first")
    if closed:
        hooks = len(model._forward_pre_hooks)
        del first
        gc.collect()
        assert len(model._forward_pre_hooks) == hooks - 1
    second = recalling(model, client, cache_salt="second")
    plain, _, _ = generate(model, prompt(300))
    for recalled in (0, BLOCK):
        cache = second.cache()
        sequences, _, computed = generate(model, prompt(300), cache)
        assert (cache.plain, cache.recalled_tokens, computed) == (None, recalled, 300 - recalled + 7)
        assert torch.equal(sequences, plain) and second.flush()
    if not closed:
        with first, second:
            model.generate(prompt(20), max_new_tokens=2, pad_token_id=0)
        assert "generate" not in model.__dict__
        first.close()
    second.close()


def test_a_copy_goes_its_own_way(client):
    """As transformers' own caches do when many texts have one beginning."""
    model = make_model("llama")
    recall = recalling(model, client)
    beginning = recall.cache()
    with torch.no_grad():
        model(input_ids=prompt(200), past_key_values=beginning)
    for seed in (2, 3):
        copied = copy.deepcopy(beginning)
        text = torch.cat([prompt(200), prompt(100, seed=seed)], dim=1)
        sequences, _, computed = generate(model, text, copied)
        assert computed == 100 + 7 and copied.plain is None and copied.recall is recall
        assert torch.equal(sequences, generate(model, text)[0])
        assert recall.flush()
        again = recall.cache()
        generate(model, text, again)
        assert again.recalled_tokens == BLOCK
    assert beginning.get_seq_length() == 200
    recall.close()


def test_what_is_not_understood_is_left_to_a_plain_cache(client):
    model = make_model("llama")
    recall = recalling(model, client)
    ids = prompt(600)
    generate(model, ids, recall.cache())
    assert recall.flush()
    stored = recall.statistics.stored_blocks

    def plain_because(why, **inputs):
        cache = recall.cache()
        with torch.no_grad():
            model(past_key_values=cache, **inputs)
        assert cache.recalled_tokens == 0 and why in cache.plain
    embeddings = model.get_input_embeddings()(ids).detach()
    plain_because("inputs_embeds", inputs_embeds=embeddings)
    mask = torch.ones_like(ids)
    mask[0, 300] = 0
    plain_because("not on the left", input_ids=ids, attention_mask=mask)
    both_ways = torch.ones(1, 1, 600, 600, dtype=torch.bool)  # Each token also sees those behind it.
    plain_because("not the batch's padding", input_ids=ids, attention_mask=both_ways)
    plain_because("tokens' places", input_ids=ids, position_ids=torch.arange(5, 605).unsqueeze(0))
    padded = torch.ones_like(ids)
    padded[0, :10] = 0
    plain_because("without position ids", input_ids=ids, attention_mask=padded)
    cache, holed = recall.cache(), torch.ones_like(ids)
    holed[0, 100] = 0
    with torch.no_grad():
        model(input_ids=ids[:, :300], past_key_values=cache)
        assert cache.plain is None
        model(input_ids=ids[:, 300:], past_key_values=cache, attention_mask=holed)  # It began without padding.
    assert "not on the left" in cache.plain
    cache = recall.cache()
    model(input_ids=ids, past_key_values=cache)  # With gradients.
    assert cache.plain == "gradients"
    # Whoever wants the logits of every token gets them.
    cache = recall.cache()
    with torch.no_grad():
        assert model(input_ids=ids, past_key_values=cache).logits.shape[1] == 600
    assert cache.plain is None and cache.recalled_tokens == 0
    beams = recall.cache()
    expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, num_beams=2, pad_token_id=0,
                              do_sample=False)
    got = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, num_beams=2, pad_token_id=0,
                         do_sample=False, past_key_values=beams)
    assert torch.equal(got, expected)
    assert recall.flush() and recall.statistics.stored_blocks == stored
    recall.close()


def test_a_node_that_stands_still_is_waited_for_a_moment(tmp_path, monkeypatch):
    """And not until it is given up as lost."""
    model = make_model("llama")
    ids = prompt(300)
    with aquifer.Node(str(tmp_path / "node.sock"), dram="256MiB") as node:
        recall = aquifer.transformers.Recall(model, node.connect(), always=True)
        generate(model, ids, recall.cache())
        assert recall.flush()
        failed, load = [], recall._load_columns

        def watched(*args):
            try:
                return load(*args)
            except aquifer.Error as error:
                failed.append(type(error))
                raise
        monkeypatch.setattr(recall, "_load_columns", watched)
        stand_still(node_process(node._process.pid))
        cache = recall.cache()
        sequences, _, _ = generate(model, ids, cache)
        os.kill(node_process(node._process.pid), signal.SIGCONT)
        assert failed == [aquifer.Late] and cache.recalled_tokens == 0
        assert torch.equal(sequences, generate(model, ids)[0])
        recall.close()


def test_what_went_past_the_hooks_is_not_stored_after_a_crop(client):
    """The base model's passes are not seen: a crop must not take their columns for known ones."""
    model = make_model("llama")
    recall = recalling(model, client)
    cache = recall.cache()
    with torch.no_grad():
        model(input_ids=prompt(BLOCK - 10), past_key_values=cache, logits_to_keep=1)
        model.model(input_ids=prompt(6, seed=9), past_key_values=cache)
        cache.crop(-1)
        assert cache.plain == "it was changed from outside"
        model(input_ids=prompt(60, seed=4), past_key_values=cache, logits_to_keep=1)
    assert recall.flush() and recall.statistics.stored_blocks == 0
    recall.close()


def test_rows_that_know_less_than_the_cache_holds_are_not_stored(client):
    model = make_model("llama")
    recall = recalling(model, client)
    cache = recall.cache()
    with torch.no_grad():
        model(input_ids=prompt(40), past_key_values=cache, logits_to_keep=1)
        cache._rows[0].truncate(30)
        model(input_ids=prompt(BLOCK, seed=2), past_key_values=cache, logits_to_keep=1)
    assert cache.plain == "it was changed from outside"
    recall.close()


@pytest.mark.parametrize("crop, why", [(100, None), (-50, "it was changed from outside")])
def test_a_crop_to_what_was_known_mends_a_forward_pass_that_failed(crop, why, client):
    """In its second layer: the first has its KV already. To take as much from each leaves them different."""
    model = make_model("llama")
    recall = recalling(model, client)
    cache = recall.cache()

    def fail(*_):
        raise RuntimeError("no memory")
    with torch.no_grad():
        model(input_ids=prompt(100), past_key_values=cache, logits_to_keep=1)
        hook = model.model.layers[1].register_forward_pre_hook(fail)
        with pytest.raises(RuntimeError, match="no memory"):
            model(input_ids=prompt(50, seed=2), past_key_values=cache, logits_to_keep=1)
        hook.remove()
        cache.crop(crop)
    assert cache.plain == why
    if why is None:
        text = torch.cat([prompt(100), prompt(200, seed=3)], dim=1)
        assert torch.equal(generate(model, text, cache)[0], generate(model, text)[0])
        assert cache.plain is None and recall.flush() and recall.statistics.stored_blocks == 1
    recall.close()


def test_padding_that_the_next_pass_does_not_mask_is_not_stored(client):
    model = make_model("llama")
    recall = recalling(model, client)
    ids = torch.cat([torch.cat([torch.zeros(1, 100, dtype=torch.long), prompt(100)], dim=1), prompt(200, seed=2)])
    mask = torch.ones_like(ids)
    mask[0, :100] = 0
    cache = recall.cache()
    with torch.no_grad():
        model(input_ids=ids, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp(min=0), past_key_values=cache)
        model(input_ids=prompt(300, seed=3).repeat(2, 1), past_key_values=cache,
              position_ids=torch.stack([torch.arange(100, 400), torch.arange(200, 500)]))
    assert cache.plain == "padding without an attention mask"
    assert recall.flush() and recall.statistics.stored_blocks == 0
    recall.close()


@pytest.mark.parametrize("where", ["the model's own", "given by place", "given by name"])
def test_who_wants_a_cache_of_another_kind_gets_it(where, client):
    model = make_model("llama")
    ids = prompt(300)
    given = GenerationConfig(max_new_tokens=4, do_sample=False, pad_token_id=0)
    (model.generation_config if where == "the model's own" else given).cache_implementation = "static"
    recall = recalling(model, client)

    def run():
        return model.generate(ids, given) if where == "given by place" else model.generate(ids, generation_config=given)
    expected = run()
    with recall:
        assert torch.equal(run(), expected)
    assert recall.statistics.computed_tokens == 0
    recall.close()


@pytest.mark.parametrize("name", ["output_hidden_states", "output_attentions"])
def test_a_configuration_that_asks_for_every_token_gets_them(name, client):
    model = make_model("llama", attn_implementation="eager")
    recall = recalling(model, client)
    ids = prompt(300)
    setattr(model.config, name, True)
    for _ in range(2):
        cache = recall.cache()
        with torch.no_grad():
            output = model(input_ids=ids, past_key_values=cache, logits_to_keep=1)
        assert (output.hidden_states or output.attentions)[0].shape[-2] == 300
        assert cache.recalled_tokens == 0 and cache.plain is None and recall.flush()
    assert recall.statistics.stored_blocks == 1
    recall.close()


def test_chunks_of_a_prompt_that_are_too_small_say_so(client, caplog):
    model = make_model("llama")
    recall = recalling(model, client)
    ids = prompt(600)
    given = dict(attention_mask=torch.ones_like(ids), max_new_tokens=4, do_sample=False, pad_token_id=0)
    expected = model.generate(ids, **given)
    with recall:
        for chunk in (512, 128):
            assert not caplog.text
            assert torch.equal(model.generate(ids, prefill_chunk_size=chunk, **given), expected)
            assert recall.flush()
    assert "chunks of 128 tokens recalls nothing" in caplog.text
    recall.close()
