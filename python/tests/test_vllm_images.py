"""Requests with images, in real engines on the CPU, with a small random model of Qwen2-VL's shape. One engine in an
ordinary run, which holds what it recalls against what it computed; --full has one without a connector, too, and one in
processes of its own, to which images come in another way."""
from __future__ import annotations

import pytest

import aquifer
from test_vllm import BLOCK, LEVEL, Place, certain, check, full_only, prompt, stored
from vllm_engine import BEGIN_IMAGE, END_IMAGE, IMAGE, Engine, make_seeing_model
from vllm_gates import Fault

IMAGE_TOKENS = 256
NOT_STORED = {"params": {"aquifer": {"store": False}}}
# There is room for 2 560 tokens. Images that come under a name that was there before are not taken for that one's.
SMALL = dict(skip_tokenizer_init=False, max_model_len=2048, max_num_batched_tokens=1024, num_gpu_blocks_override=20,
             limit_mm_per_prompt={"image": 4, "video": 0})
OPTIONS = dict(SMALL, mm_processor_cache_gb=0)


def text(length, seed):
    return [token % 256 for token in prompt(length, seed)]


def seeing(*images, before=100, behind=250, names=None):
    """A text, and then images with more text behind each."""
    tokens = text(before, 1)
    for number in range(len(images)):
        tokens += [BEGIN_IMAGE, IMAGE, END_IMAGE] + text(behind, 2 + number)
    return {"tokens": tokens, "images": images, **({"names": names} if names else {})}


def whole(given):
    return (len(given["tokens"]) + len(given["images"]) * (IMAGE_TOKENS - 1)) // BLOCK * BLOCK


PROMPTS = {
    "one": seeing(1), "another": seeing(2), "two": seeing(1, 2), "turned": seeing(2, 1),
    "ends in it": seeing(1, behind=20, before=90),  # What can be recalled does.
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("images")
    make_seeing_model(made / "model")
    return made


@pytest.fixture(scope="module")
def place(folder):
    made = Place(folder)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def right(folder):
    """What is right for a name. Where no engine without a connector was asked, it is what was computed from nothing."""
    answers = {}
    if LEVEL == "full":
        with Engine(folder / "model", folder / "plain.log", in_one_process=True,
                    **{**OPTIONS, "num_gpu_blocks_override": 64}) as plain:
            plain.reply()
            for name, given in PROMPTS.items():
                (answers[name],) = plain.ask(given)
                plain.forget()
    return answers


@pytest.fixture(scope="module")
def engine(folder, place):
    with Engine(folder / "model", folder / "one.log", certain(place), folder, in_one_process=True, **OPTIONS) as made:
        made.reply()
        yield made


def ask(engine, right, name, given=None, **options):
    """Asks, checks the answer, and says how much of it was cached."""
    given = given or PROMPTS[name]
    if name not in right:
        engine.forget()
        (right[name],) = engine.ask(given, salt="nobody has it", **NOT_STORED)
        assert right[name]["cached"] == 0
    engine.forget()
    (answer,) = engine.ask(given, **options)
    check(answer, right[name])
    return answer["cached"]


def store(engine, right, place, name):
    """How much of it was there; then all of it is."""
    before = place.blocks()
    cached = ask(engine, right, name)
    assert stored(place, before + (whole(PROMPTS[name]) - cached) // BLOCK)
    return cached


def running(engine):
    """How many requests are computed by now; a step of the engine says so."""
    engine.begin(do="start", prompts=[], steps=1)
    assert engine.reply()
    return engine.metrics()["vllm:num_requests_running"]


def test_an_image_is_recalled_by_what_it_is(engine, right, place):
    assert whole(PROMPTS["one"]) == 2 * BLOCK
    assert store(engine, right, place, "one") == 0
    assert ask(engine, right, "one") == 2 * BLOCK
    assert ask(engine, right, "one", seeing(1, names=["whatever"])) == 2 * BLOCK
    assert ask(engine, right, "another", **NOT_STORED) == 0
    assert right["one"]["tokens"] != right["another"]["tokens"]


def test_a_hit_that_ends_in_an_image_computes_the_rest_of_it(engine, right, place):
    """The engine runs the encoder for it."""
    assert whole(PROMPTS["ends in it"]) == BLOCK < 90 + IMAGE_TOKENS
    assert store(engine, right, place, "ends in it") == 0
    assert ask(engine, right, "ends in it") == BLOCK


def test_images_in_another_order_are_others(engine, right, place):
    assert store(engine, right, place, "two") == 2 * BLOCK  # As long as the first is alone.
    assert ask(engine, right, "turned", **NOT_STORED) == 0
    assert ask(engine, right, "two") == whole(PROMPTS["two"]) == 4 * BLOCK
    assert right["two"]["tokens"] != right["turned"]["tokens"]


def test_a_second_turn_with_one_more_image_computes_only_what_is_new(engine, right, place):
    first = PROMPTS["one"]
    wanted = place.blocks() + 1
    longer = {**first, "tokens": first["tokens"] + text(160, 7)}
    (answer,) = engine.ask(longer)  # Its answer fills a block.
    assert stored(place, wanted)
    following = {"tokens": longer["tokens"] + answer["tokens"] + text(90, 8) + [BEGIN_IMAGE, IMAGE, END_IMAGE] +
                 text(30, 9), "images": (1, 3)}
    length = (len(longer["tokens"]) + IMAGE_TOKENS - 1 + len(answer["tokens"]) - 1) // BLOCK * BLOCK
    assert length == 3 * BLOCK
    engine.forget()
    (computed,) = engine.ask(following, salt="nobody has it", **NOT_STORED)
    assert computed["cached"] == 0
    engine.forget()
    (recalled,) = engine.ask(following, **NOT_STORED)
    assert recalled["cached"] == length
    check(recalled, computed)


def test_an_image_under_anothers_name_is_neither_recalled_nor_stored(engine, right, place):
    """vLLM itself takes the second for the first, since the encoder's output goes by that name: nobody else may."""
    lying = [seeing(seed, names=["a name"]) for seed in (4, 5)]
    before = place.blocks()
    engine.forget()
    (first,) = engine.ask(lying[0])
    assert stored(place, before + 2)
    engine.forget()
    (second,) = engine.ask(lying[1])
    assert second["cached"] == 0
    PROMPTS["honest"] = seeing(5)
    assert ask(engine, right, "honest") == 0
    assert right["honest"]["tokens"] != first["tokens"] == second["tokens"]
    assert stored(place, before + 4)
    assert ask(engine, right, "honest") == 2 * BLOCK


def test_preempted_requests_need_their_images_when_nothing_can_be_recalled(engine, right, folder, place):
    """They had been recalled, so that no worker had to see an image of theirs."""
    names = ("one", "two")
    engine.forget()
    engine.begin(do="reset_encoder")
    assert engine.reply()
    before = engine.count("load_requests")
    engine.begin(do="start", prompts=[PROMPTS[name] for name in names], max_tokens=12, **NOT_STORED)
    assert engine.reply()
    aquifer.cache.wait_for(lambda: running(engine) == len(names), 60)
    assert engine.metrics()["vllm:aquifer_load_requests"] == before + len(names)
    short = engine.metrics().get("vllm:aquifer_short_loads", 0)
    with Fault(folder, 0, "late"):
        engine.begin(do="preempt")
        assert engine.reply()
        engine.begin(do="finish")
        answers = engine.reply()
    after = engine.metrics()
    assert after["vllm:num_preemptions"] >= len(names)
    assert after["vllm:aquifer_short_loads"] == short + len(names)
    for name, answer in zip(names, answers):
        check(answer, right[name])


@full_only
def test_an_engine_in_processes_of_its_own_recalls_the_same(engine, right, folder, place):
    """And with vLLM's cache of processed images, which believes names: an engine that was not given an image has not
    computed it."""
    with Engine(folder / "model", folder / "other.log", certain(place), folder, **SMALL) as other:
        other.reply()
        for name in ("one", "two", "ends in it"):
            assert ask(other, right, name, **NOT_STORED) == whole(PROMPTS[name])
        assert ask(other, right, "one", **NOT_STORED) == 2 * BLOCK  # This time it comes out of that cache.
        assert ask(other, right, "turned", **NOT_STORED) == 0
        aquifer.cache.wait_for(lambda: place.counters()["lent_slots"] == 0, 30)
