"""aquifer.vllm in real engines on the CPU, in float32: another chunking of a prefill changes nothing there, so
tokens and log-probabilities can be compared with those of an engine that has no connector.

An engine takes half a minute to start. So there are few, started at once, and the tests below are one story in order:
`plain` computes what is right; `two` (TP=2) stores; the node restarts; `one` (TP=1) recalls and is tormented, and `two`
now and then. An ordinary run has those; --full tells more of the story, with `adapted`, which has LoRA adapters,
`ahead`, which schedules asynchronously, `drafting`, which decodes speculatively, and `usual`, an engine with the
default settings and a node of its own."""
from __future__ import annotations

import contextlib
import importlib.util
import os
import pathlib
import random
import re
import shutil
import signal
import time

import pytest

import aquifer
from aquifer._native import program_path

LEVEL = os.environ.get("AQUIFER_TEST_LEVEL", "full")
if LEVEL not in ("normal", "full"):
    pytest.skip("a vLLM engine takes minutes: with ./test", allow_module_level=True)
if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM is not installed", allow_module_level=True)

from conftest import node_process, stand_still
from vllm_engine import Engine, make_adapter, make_model, transfer_config
from vllm_gates import Fault, Gate

BLOCK = 256  # Tokens: two pages of 128.
full_only = pytest.mark.skipif(LEVEL != "full", reason="with ./test --full")


def prompt(length, seed):
    numbers = random.Random(seed)
    return [numbers.randrange(3, 1000) for _ in range(length)]


SHARED = prompt(1100, 1)
PROMPTS = {
    "first": prompt(6 * BLOCK - 6, 2),  # Its answer fills the sixth block.
    "second": prompt(900, 3),
    "exact": prompt(4 * BLOCK, 4),
    "long": prompt(3500, 5),
    "flipped": prompt(1300, 7),
    **{f"killed {n}": prompt(1600, 40 + n) for n in range(3)},
    **{f"shared {n}": SHARED + prompt(200 + 30 * n, 10 + n) for n in range(4)},
}
CROWD = {f"crowd {n}": prompt(1400 + 10 * n, 20 + n) for n in range(6)}
ADAPTERS = (1, 2)
# The last token, wherever it was before, tells the next three: mostly wrong.
DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
WITH_ADAPTERS = dict(enable_lora=True, max_loras=2, max_lora_rank=8) if LEVEL == "full" else {}


class Place:
    """A node with a drive, which can be stopped, killed and started again."""

    def __init__(self, folder):
        self.socket = str(folder / "node.sock")
        self.drive = folder / "drive"
        self.drive.mkdir()
        self.node = None
        self.start()

    def start(self):
        self.node = aquifer.Node(self.socket, dram="384MiB", nvme=[f"{self.drive}:1GiB"])

    def stop(self):
        """Gently: what it has is on the drive then."""
        self.node.close()

    def stand_still(self):
        stand_still(node_process(self.node._process.pid))

    @contextlib.contextmanager
    def standing_still(self):
        self.stand_still()
        try:
            yield
        finally:
            os.kill(node_process(self.node._process.pid), signal.SIGCONT)

    def kill(self):
        os.kill(node_process(self.node._process.pid), signal.SIGKILL)
        self.node._process.wait(30)

    def counters(self):
        with aquifer.connect(self.socket) as client:
            return client.stats().counters

    def blocks(self):
        with aquifer.connect(self.socket) as client:
            return max(tier.blocks for tier in client.stats().tiers)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="module")
def place(folder):
    made = Place(folder)
    yield made
    made.stop()


def certain(place):
    """A connector that recalls whatever there is, however busy the host is."""
    return transfer_config("PatientConnector", always=True, deadline_ms=60000, socket=place.socket)


def adapter(folder, number):
    return {"adapter": (number, str(folder / f"adapter {number}"))}


@pytest.fixture(scope="module")
def starting(folder, place):
    """Engines that are on their way up, all at once: most of it is reading modules, on one core each."""
    model = folder / "model"
    make_model(model)
    for number in ADAPTERS:
        make_adapter(folder / f"adapter {number}", number)
    engines = {
        "plain": Engine(model, folder / "plain.log", in_one_process=True, num_gpu_blocks_override=256,
                        **WITH_ADAPTERS),
        "two": Engine(model, folder / "two.log", certain(place), folder, tensor_parallel_size=2, bind="0|1",
                      disable_custom_all_reduce=True, num_gpu_blocks_override=128),
        # Small steps, so that long prompts are prefilled in chunks; a KV space for 8 000 tokens.
        "one": Engine(model, folder / "one.log", certain(place), folder, max_num_batched_tokens=1024,
                      num_gpu_blocks_override=64),
    }
    yield engines
    for engine in engines.values():
        engine.close()


@pytest.fixture(scope="module")
def right(starting, folder):
    """What an engine without a connector says to every prompt, and to a second turn."""
    with starting["plain"] as engine:
        engine.reply()
        names = list(PROMPTS)
        answers = dict(zip(names, engine.ask(*PROMPTS.values())))
        following = PROMPTS["first"] + answers["first"]["tokens"] + prompt(100, 9)
        answers["following"] = engine.ask(following)[0]
        answers.update(zip(CROWD, engine.ask(*CROWD.values(), max_tokens=300)))
        PROMPTS["following"] = following
        for number in ADAPTERS if WITH_ADAPTERS else ():
            (answers[f"second {number}"],) = engine.ask(PROMPTS["second"], **adapter(folder, number))
    return answers


@pytest.fixture(scope="module")
def stored_by_two(starting, place, right):
    """Two ranks store the prompts; then the node restarts, and has them on its drive."""
    engine = starting["two"]
    engine.reply()
    for name in ("first", "second", "exact"):
        store(engine, right, place, name)
    recalls(engine, right, "first", whole("first"))
    place.stop()
    place.start()


@pytest.fixture(scope="module")
def two(starting, stored_by_two):
    return starting["two"]


@pytest.fixture(scope="module")
def one(starting, stored_by_two):
    engine = starting["one"]
    engine.reply()
    return engine


def check(answer, expected):
    assert answer["tokens"] == expected["tokens"]
    assert answer["logprobs"] == pytest.approx(expected["logprobs"], abs=2e-3)


def ask(engine, right, name, expected=None, **options):
    """Asks, checks the answer, and says how much of it was cached."""
    (answer,) = engine.ask(PROMPTS[name], **options)
    check(answer, right[expected or name])
    return answer["cached"]


def whole(name):
    return len(PROMPTS[name]) // BLOCK * BLOCK


# A host that is busy with something else may stop a node for seconds, which costs hits and stores. So what follows asks
# until it is there; the answer is right every time.

def recalls(engine, right, name, wanted, expected=None, **options):
    """The engine has forgotten it, and answers with so many tokens from the cache, the first time or soon, and never
    with more."""
    def recalled():
        engine.forget()
        cached = ask(engine, right, name, expected, **options)
        assert cached <= wanted
        return cached == wanted
    aquifer.cache.wait_for(recalled, 90)


def store(engine, right, place, name, **options):
    """Computes a prompt that nobody knows, and asks until all of its blocks are stored."""
    wanted = place.blocks() + whole(name) // BLOCK
    for _ in range(10):
        ask(engine, right, name, **options)
        engine.forget()
        if stored(place, wanted):
            return
    pytest.fail(f"{name} is not stored")


def counted(engine, name, before):
    """One of the connector's counters has gone up; it comes with a later step."""
    aquifer.cache.wait_for(lambda: engine.count(name) > before, 60)


def stored(place, blocks, seconds=10):
    """Whether so many blocks are there: a store may end after its answer."""
    try:
        aquifer.cache.wait_for(lambda: place.blocks() >= blocks, seconds)
        return True
    except aquifer.Late:
        return False


# ---- What it is for ----

def test_one_rank_recalls_from_the_drive_what_two_stored(one, right):
    recalls(one, right, "first", whole("first"))
    recalls(one, right, "second", whole("second"))
    metrics, wanted = one.metrics(), whole("first") + whole("second")
    assert metrics["vllm:external_prefix_cache_hits"] >= wanted
    assert metrics["vllm:aquifer_loaded_blocks"] * BLOCK >= wanted


def test_what_is_counted_is_what_was_recalled(one, right):
    """To the token: by vLLM and by us, in one load, of which nothing is missing."""
    names = {"hits": "vllm:external_prefix_cache_hits", "queries": "vllm:external_prefix_cache_queries",
             **{name: f"vllm:aquifer_{name}" for name in ("loaded_blocks", "load_requests", "short_loads")}}

    def counts():
        one.count("loaded_blocks")
        metrics = one.metrics()
        return {name: metrics.get(metric, 0) for name, metric in names.items()}

    def gained_by_a_recall():
        one.forget()
        before = counts()
        cached = ask(one, right, "second")
        return cached, {name: count - before[name] for name, count in counts().items()}
    told = []

    def recalls_all():  # Else the host was busy.
        told[:] = gained_by_a_recall()
        return told[0] == whole("second") and not told[1]["short_loads"]
    aquifer.cache.wait_for(recalls_all, 90)
    counted = len(PROMPTS["second"]) + 3  # And the prompt by which count() makes the engine tell.
    assert told[1] == {"hits": whole("second"), "queries": counted, "loaded_blocks": whole("second") // BLOCK,
                       "load_requests": 1, "short_loads": 0}


def test_a_prompt_that_is_all_there_computes_one_token(one, right):
    recalls(one, right, "exact", 4 * BLOCK - 1)


def test_what_the_engine_has_itself_is_not_loaded_again(one, right):
    ask(one, right, "first")
    before = one.metrics()
    assert ask(one, right, "first") >= whole("first")
    assert one.metrics()["vllm:external_prefix_cache_hits"] == before["vllm:external_prefix_cache_hits"]


def test_the_next_turn_computes_only_what_is_new(one, right):
    """With the answer, the first turn has a whole block that its prompt had not. The second stores nothing, or it
    would find its own."""
    length = len(PROMPTS["first"] + right["first"]["tokens"]) // BLOCK * BLOCK
    assert length > whole("first")
    recalls(one, right, "following", length, params={"aquifer": {"store": False}})


def test_a_chunked_prefill_is_stored_and_recalled(one, right, place):
    store(one, right, place, "long")
    recalls(one, right, "long", whole("long"))


def test_two_ranks_recall_what_one_stored(two, one, right):
    before = two.count("loaded_blocks")
    recalls(two, right, "long", whole("long"))
    assert two.count("loaded_blocks") - before >= 2 * whole("long") // BLOCK  # Each rank its heads of them.


def test_pages_that_the_engine_shares_are_left_alone(one, right):
    """The engine has 9 pages of 128 tokens, of which the last is half of one of our blocks."""
    def loaded_beside():
        one.forget()
        one.ask(PROMPTS["first"][:9 * 128 + 5], max_tokens=1)
        before = one.count("loaded_blocks")
        cached = ask(one, right, "first")
        loaded = one.count("loaded_blocks") - before
        assert (cached, loaded) in ((9 * 128, 0), (whole("first"), 1))
        return loaded == 1
    aquifer.cache.wait_for(loaded_beside, 90)


def test_requests_at_once_share_a_beginning(one, right, place):
    names = [f"shared {n}" for n in range(4)]
    common = len(SHARED) // BLOCK
    wanted = place.blocks() + common + sum(whole(name) // BLOCK - common for name in names)
    for turn in range(10):
        answers = one.ask(*[PROMPTS[name] for name in names])
        for name, answer in zip(names, answers):
            check(answer, right[name])
        one.forget()
        if [answer["cached"] for answer in answers] == [whole(name) for name in names]:
            break
        stored(place, wanted)
    else:
        pytest.fail("they are never recalled")
    assert turn > 0


def test_a_crowd_is_preempted_and_recalled(one, right):
    crowd_is_preempted_and_recalled(one, right)


def crowd_is_preempted_and_recalled(engine, right):
    """Six requests of 1 700 tokens each want more than the KV space has."""
    before = engine.metrics()
    answers = engine.ask(*CROWD.values(), max_tokens=300)
    after = engine.metrics()
    assert after["vllm:num_preemptions"] > before["vllm:num_preemptions"]
    # vLLM's own counter of external hits leaves those of preempted requests out.
    assert after["vllm:aquifer_loaded_blocks"] > before.get("vllm:aquifer_loaded_blocks", 0)
    for name, answer in zip(CROWD, answers):
        check(answer, right[name])


# ---- Who asks ----

def test_a_salt_keeps_users_apart(one, right, place):
    one.forget()
    assert ask(one, right, "first", salt="somebody") == 0
    recalls(one, right, "first", whole("first"), salt="somebody")
    one.forget()
    assert ask(one, right, "first", salt="somebody else") == 0


def test_what_makes_no_sense_in_a_request_harms_nobody(one, right, place):
    for params in ({"aquifer": 7}, {"aquifer": {"priority": "high"}}, {"aquifer": {"session": ["x"] * 200}}):
        ask(one, right, "second", params=params)
    PROMPTS["unstored"], PROMPTS["stored"] = prompt(600, 30), prompt(700, 32)
    right["unstored"], right["stored"] = one.ask(PROMPTS["unstored"], PROMPTS["stored"], max_tokens=12,
                                                 params={"aquifer": {"store": False}})
    one.forget()
    store(one, right, place, "stored")  # Stores are made in order: another would be there, too.
    assert ask(one, right, "unstored", params={"aquifer": {"store": False}}) == 0
    recalls(one, right, "stored", 2 * BLOCK)


@pytest.mark.parametrize("given", [{"params": {"aquifer": {"session": "chat 7"}}}, {"session_id": "chat 7"}])
def test_a_session_is_known_by_its_name(one, place, given):
    text = prompt(700, 31)

    def known():
        one.ask(text, **given)
        one.forget()
        with aquifer.connect(place.socket) as client:
            return staged(client, "chat 7") == (2, 2)
    aquifer.cache.wait_for(known, 60)
    with aquifer.connect(place.socket) as client:
        assert client.evict(session="chat 7") == 2
    (answer,) = one.ask(text, params={"aquifer": {"store": False}})
    assert answer["cached"] == 0


def test_hints_of_an_envelope_reach_the_node(one, place):
    """Actions that nobody knows are left out."""
    text = prompt(700, 33)

    def known():
        one.ask(text, hints=[("kv.dance", "1.0", {}), ("kv.fetch", "1.0", {"block_hashes": [1, 2]}),
                             ("aquifer.retain", "1.0", {"session": "chat 8", "priority": 2}),
                             ("aquifer.pin", "1.0", {"seconds": 600})])
        one.forget()
        with aquifer.connect(place.socket) as client:
            return staged(client, "chat 8") == (2, 2)
    aquifer.cache.wait_for(known, 60)


def staged(client, session):
    try:
        return client.prestage(session=session)
    except aquifer.NotFound:
        return None


# ---- What goes wrong ----

def test_requests_that_are_aborted_in_mid_load_leave_no_trace(one, right, place, folder):
    aborted_in_mid_load(one, right, folder)
    aquifer.cache.wait_for(lambda: place.counters()["lent_slots"] == 0, 30)


def aborted_in_mid_load(engine, right, folder):
    """Their pages are nobody else's until they are loaded, whoever waits for pages."""
    engine.forget()
    before = engine.count("load_requests")
    others = list(CROWD)[:3]
    with Gate(folder, "load") as gate:
        engine.begin(do="start", prompts=[PROMPTS["long"], PROMPTS["first"]], max_tokens=12)
        assert engine.reply()
        gate.wait_for_one()
        engine.begin(do="abort")
        assert engine.reply()
        # More than there is room for. When these are being computed, the others' loads go on.
        engine.begin(do="start", prompts=[CROWD[name] for name in others], max_tokens=60, steps=20,
                     params={"aquifer": {"store": False}}, salt="others")
        assert engine.reply()
    engine.begin(do="finish")
    for name, answer in zip(others, engine.reply()):
        check(answer, {what: values[:60] for what, values in right[name].items() if what != "cached"})
    engine.forget()
    counted(engine, "load_requests", before)
    recalls(engine, right, "long", whole("long"))
    recalls(engine, right, "first", whole("first"))


@pytest.mark.parametrize("kind, left", [("late", 0), ("short", 2 * BLOCK)])
def test_a_load_that_fails_on_one_rank_is_computed_on_both(two, right, folder, kind, left):
    """From the first block on that one of them does not have."""
    recalls(two, right, "first", whole("first"))
    short = two.count("short_loads")
    with Fault(folder, 1, kind):
        recalls(two, right, "first", left)
    counted(two, "short_loads", short)
    recalls(two, right, "first", whole("first"))


def test_a_rank_that_loses_its_connection_in_mid_load_costs_no_request(two, right, place, folder):
    """Both have asked when the node stands still: one is cut off, and the other hears from it later."""
    def one_rank_has_loaded():
        recalls(two, right, "first", whole("first"))
        two.forget()
        before = two.count("loaded_blocks")
        with Fault(folder, 1, "cut") as fault, Gate(folder, "load") as gate:
            two.begin(do="generate", prompts=[PROMPTS["first"]], max_tokens=12)
            gate.wait_for_one()
            with place.standing_still():
                gate.open()
                fault.wait_for_cut()
            (answer,) = two.reply()
        check(answer, right["first"])
        assert answer["cached"] == 0
        return two.count("loaded_blocks") - before == whole("first") // BLOCK
    short = two.count("short_loads")
    aquifer.cache.wait_for(one_rank_has_loaded, 90)
    counted(two, "short_loads", short)
    recalls(two, right, "first", whole("first"))


def killed_when_it_has_lent(engine, right, place, folder, moved, name):
    """The node dies while the worker holds slots of it, which it is about to read from (`moved` is "load") or to write
    to ("store"). The worker goes on a little at a time until that is so, and stands still meanwhile. How much of the
    answer was cached."""
    for turn in range(20):
        engine.forget()
        unknown = {"salt": f"killed {turn}"} if moved == "store" else {}
        with Gate(folder, moved) as gate:
            engine.begin(do="generate", prompts=[PROMPTS[name]], max_tokens=12, **unknown)
            answers = engine.reply() if moved == "store" else []  # Nobody waits for a store.
            worker = gate.wait_for_one()
            stand_still(worker)
        killed = has_lent(place, worker)
        if killed:
            place.kill()
        os.kill(worker, signal.SIGCONT)
        (answer,) = answers or engine.reply()
        check(answer, right[name])
        if killed:
            return answer["cached"]
    pytest.fail("nothing was ever lent")


def has_lent(place, worker):
    """Steps a worker that stands still at a gate. False: it was over in one step. Also the step in which it sees that the
    gate is open is a short one: its sleep there goes on while it stands still."""
    with aquifer.connect(place.socket) as client:
        for _ in range(400):
            os.kill(worker, signal.SIGCONT)
            time.sleep(0.0002)
            stand_still(worker)
            if client.stats().counters["lent_slots"] > 0:
                return True
    return False


def test_a_node_that_is_killed_in_mid_load_costs_no_request(one, right, place, folder):
    recalls(one, right, "first", whole("first"))
    cached = killed_when_it_has_lent(one, right, place, folder, "load", "first")
    assert cached in range(0, whole("first") + 1, BLOCK)  # What was lent can still be read.
    short = one.count("short_loads")
    one.forget()
    assert ask(one, right, "second") == 0  # Nobody is there.
    assert one.count("short_loads") == short  # It was not even begun.
    place.start()
    recalls(one, right, "first", whole("first"))
    assert place.counters()["lent_slots"] == 0


def test_a_node_that_is_killed_in_mid_store_costs_no_request(one, right, place, folder):
    def lost():
        return one.count("failed_stores") + one.count("failed_blocks")
    before = lost()
    assert killed_when_it_has_lent(one, right, place, folder, "store", "long") == 0
    assert ask(one, right, "killed 0") == 0
    aquifer.cache.wait_for(lambda: lost() > before, 60)
    place.start()
    recalls(one, right, "first", whole("first"))
    assert place.counters()["lent_slots"] == 0


@full_only
def test_a_node_may_be_killed_at_any_moment(one, right, place):
    for turn in range(3):
        one.forget()
        one.begin(do="generate", prompts=[PROMPTS[f"killed {turn}"], PROMPTS["first"]], max_tokens=12)
        time.sleep(0.05 + 0.3 * turn)
        place.kill()
        for name, answer in zip((f"killed {turn}", "first"), one.reply()):
            check(answer, right[name])
        place.start()
        recalls(one, right, "first", whole("first"))


def test_a_bit_that_flips_on_the_drive_is_computed(one, right, place):
    """The node finds the damage when it reads: the load comes short, and the rest is computed."""
    store(one, right, place, "flipped")
    recalls(one, right, "flipped", whole("flipped"))
    place.stop()
    for file in place.drive.rglob("*"):
        if file.is_file() and file.stat().st_size > 1 << 20:
            _flip(file)
    place.start()
    one.forget()
    aquifer.cache.wait_for(lambda: place.blocks() > 0, 60)
    for name in ("flipped", "first", "long"):
        ask(one, right, name)  # Whatever is left of it: the answer is right.
    assert place.counters()["corrupt_blocks"] > 0
    one.forget()
    recalls(one, right, "flipped", whole("flipped"))  # It was stored once more.


def _flip(file):
    """One bit in every 64 KiB that holds something."""
    with open(file, "r+b") as opened:
        size = os.fstat(opened.fileno()).st_size
        for offset in range(1 << 16, size, 1 << 16):
            opened.seek(offset)
            byte = opened.read(1)
            if byte and byte != b"\0":
                opened.seek(offset)
                opened.write(bytes([byte[0] ^ 16]))


def test_a_reset_begins_an_epoch(one, right, place):
    recalls(one, right, "second", whole("second"))
    one.begin(do="reset_connector")
    assert one.reply()
    assert ask(one, right, "second") == 0
    recalls(one, right, "second", whole("second"))


# ---- Engines of --full alone, which start at once ----

@pytest.fixture(scope="module")
def later(starting, folder, place, one):
    for name in ("one", "two"):
        starting[name].close()
    gates = {name: folder / f"gates of {name}" for name in ("adapted", "ahead", "drafting", "usual")}
    for made in gates.values():
        made.mkdir()
    own_node = transfer_config("GatedConnector", spawn=True, spawn_dram="384MiB")
    engines = {
        name: Engine(folder / "model", folder / f"{name}.log", connector, gates[name], num_gpu_blocks_override=64,
                     **options)
        for name, connector, options in (("adapted", certain(place), WITH_ADAPTERS),
                                         ("ahead", certain(place), {"ahead": True}),
                                         ("drafting", certain(place), {"speculative_config": DRAFTS}),
                                         ("usual", own_node, {}))}
    for name, engine in engines.items():
        engine.gates = gates[name]
    yield engines
    for engine in engines.values():
        engine.close()


@pytest.fixture(scope="module")
def adapted(later):
    engine = later["adapted"]
    engine.reply()
    yield engine
    engine.close()


@full_only
def test_an_adapter_recalls_its_own_and_nobody_elses(adapted, right, folder):
    """The same prompt with none, which is there, with one and with another, which are not."""
    adapters = {f"second {number}": adapter(folder, number) for number in ADAPTERS}
    assert len({tuple(right[name]["tokens"]) for name in ("second", *adapters)}) == 3
    recalls(adapted, right, "second", whole("second"))
    for name, given in adapters.items():
        adapted.forget()
        assert ask(adapted, right, "second", name, **given) == 0
        recalls(adapted, right, "second", whole("second"), name, **given)
    recalls(adapted, right, "second", whole("second"))

    def together():
        adapted.forget()
        answers = at_once(adapted, PROMPTS["second"], *adapters.values())
        for name, answer in zip(adapters, answers):
            check(answer, right[name])
        return [answer["cached"] for answer in answers] == [whole("second")] * 2
    aquifer.cache.wait_for(together, 90)


def at_once(engine, text, *options):
    """The same text with one option after the other, in one batch."""
    for given in options:
        engine.begin(do="start", prompts=[text], max_tokens=12, **given)
        assert engine.reply()
    engine.begin(do="finish")
    return engine.reply()


@full_only
def test_an_adapter_that_is_written_after_it_was_loaded_is_nobodys(adapted, right, folder, place):
    """The engine goes on with what it has loaded, whatever the files are by the time a request names them."""
    number, path = 3, folder / "trained"
    make_adapter(path, ADAPTERS[0])
    adapted.begin(do="add_lora", adapter=(number, str(path)))
    assert adapted.reply()
    shutil.rmtree(path)
    make_adapter(path, ADAPTERS[1])
    before = place.blocks()
    for _ in range(2):
        adapted.forget()
        assert ask(adapted, right, "second", f"second {ADAPTERS[0]}", adapter=(number, str(path))) == 0
    # Stores are made in order: after another's, which is there, nothing is on its way.
    store(adapted, right, place, "second", expected=f"second {ADAPTERS[0]}", salt="trained", **adapter(folder, 1))
    assert place.blocks() == before + whole("second") // BLOCK


@full_only
def test_a_number_that_was_loaded_as_another_adapter_is_nobodys(adapted, right, folder, place):
    """A request has another path for it, and the engine goes on with what it has loaded."""
    number, (loaded, named) = 4, ADAPTERS
    adapted.begin(do="add_lora", adapter=(number, adapter(folder, loaded)["adapter"][1]))
    assert adapted.reply()
    before = place.blocks()
    for _ in range(2):
        adapted.forget()
        assert ask(adapted, right, "second", f"second {loaded}", adapter=(number, adapter(folder, named)["adapter"][1]),
                   salt="loaded") == 0
    store(adapted, right, place, "second", expected=f"second {named}", salt="loaded", **adapter(folder, named))
    assert place.blocks() == before + whole("second") // BLOCK


@full_only
def test_what_a_cpu_computes_beside_an_adapter_is_not_stored(adapted, right, folder, place):
    """vLLM gives such a request the adapter's weights, if it has none: its answer is wrong without us, and its KV
    would be for everybody."""
    with_adapter = adapter(folder, ADAPTERS[1])
    wanted = place.blocks() + whole("flipped") // BLOCK
    adapted.forget()
    salt = {"salt": "beside"}  # Nobody has stored it.

    def stored_with_adapter():
        beside, _ = at_once(adapted, PROMPTS["flipped"], salt, {**with_adapter, **salt})
        adapted.forget()
        assert beside["cached"] == 0
        return stored(place, wanted, 1)
    aquifer.cache.wait_for(stored_with_adapter, 60)
    assert ask(adapted, right, "flipped", **salt) == 0


@pytest.fixture(scope="module")
def ahead(later):
    engine = later["ahead"]
    engine.reply()
    return engine


@full_only
def test_a_step_is_scheduled_while_another_is_computed(ahead, right, folder):
    recalls(ahead, right, "long", whole("long"))
    assert (ahead.gates / "ahead").exists() and not (folder / "ahead").exists()


@full_only
def test_an_engine_that_schedules_ahead_stores_a_turn_and_its_answer(ahead, right):
    ahead.begin(do="reset_connector")  # What others have stored is not found any more.
    assert ahead.reply()
    assert ask(ahead, right, "first") == 0

    def recalled():
        ahead.forget()
        ask(ahead, right, "first")  # Stores the answer where it was not stored yet.
        ahead.forget()
        return ask(ahead, right, "following", params={"aquifer": {"store": False}}) == 6 * BLOCK
    aquifer.cache.wait_for(recalled, 90)


@full_only
def test_an_engine_that_schedules_ahead_preempts_and_recalls(ahead, right):
    crowd_is_preempted_and_recalled(ahead, right)


@full_only
def test_an_engine_that_schedules_ahead_aborts_in_mid_load(ahead, right):
    recalls(ahead, right, "long", whole("long"))
    recalls(ahead, right, "first", whole("first"))
    aborted_in_mid_load(ahead, right, ahead.gates)


@pytest.fixture(scope="module")
def drafting(later):
    engine = later["drafting"]
    engine.reply()
    return engine


@full_only
def test_an_engine_that_drafts_recalls_what_others_stored(drafting, right):
    recalls(drafting, right, "long", whole("long"))
    recalls(drafting, right, "first", whole("first"))


@full_only
def test_tokens_that_were_only_drafted_are_not_stored(drafting, right, place):
    """A prompt's answer is stored to the last whole block of it, and what is recalled of that goes on as it should."""
    name, salt, said = "crowd 0", {"salt": "drafted"}, 200
    before, drafted = place.blocks(), drafting.metrics()
    drafting.forget()
    (answer,) = drafting.ask(CROWD[name], max_tokens=300, **salt)
    check(answer, right[name])
    assert answer["cached"] == 0
    blocks = (len(CROWD[name]) + 300 - 1) // BLOCK  # The last token has no KV.
    assert blocks > len(CROWD[name]) // BLOCK and stored(place, before + blocks)
    after = drafting.metrics()
    count, accepted = (after[f"vllm:spec_decode_num_{what}_tokens"] - drafted[f"vllm:spec_decode_num_{what}_tokens"]
                       for what in ("draft", "accepted"))
    assert count - accepted > 100
    rest = {what: values[said:] for what, values in right[name].items() if what != "cached"}
    PROMPTS["drafted"], right["drafted"] = CROWD[name] + answer["tokens"][:said], rest
    recalls(drafting, right, "drafted", whole("drafted"), max_tokens=300 - said, **salt)
    assert place.blocks() == before + blocks


@full_only
def test_an_engine_that_drafts_preempts_and_recalls(drafting, right):
    crowd_is_preempted_and_recalled(drafting, right)


@pytest.fixture(scope="module")
def usual(later):
    engine = later["usual"]
    engine.reply()
    return engine


def usual_node(usual):
    """The private node's process: its socket's name is in the log."""
    text = pathlib.Path(usual.log).read_text()
    socket = re.findall(r"a private node at (\S+)", text)[-1]
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
            if os.path.samefile(folder / "exe", program_path()) and socket.encode() in arguments:
                return int(folder.name)
        except OSError:
            pass
    return None


# ---- With the default settings, and a node of its own ----

@full_only
def test_the_default_settings_recall(usual, right):
    assert ask(usual, right, "long") == 0
    usual.forget()
    recalls(usual, right, "long", whole("long"))
    assert usual.count("short_loads") == 0


@full_only
def test_a_load_that_is_late_is_computed(usual, right):
    """The node stands still in the middle of it; the default deadline is about the time to compute."""
    usual.forget()
    with Gate(usual.gates, "load") as gate:
        usual.begin(do="generate", prompts=[PROMPTS["long"], PROMPTS["second"]], max_tokens=12)
        gate.wait_for_one()
        node = usual_node(usual)
        stand_still(node)
        gate.open()
        for name, answer in zip(("long", "second"), usual.reply()):
            check(answer, right[name])
    counted(usual, "short_loads", 0)
    usual.forget()
    assert ask(usual, right, "long") == 0  # It is silent still, and nobody waits for it.
    os.kill(node, signal.SIGCONT)
    recalls(usual, right, "long", whole("long"))


@full_only
def test_a_private_node_that_dies_is_started_again(usual, right):
    node = usual_node(usual)
    (log,) = re.findall(r"a private node at \S+ with its log in (\S+)", pathlib.Path(usual.log).read_text())
    assert "ready on" in pathlib.Path(log).read_text()
    os.kill(node, signal.SIGKILL)
    aquifer.cache.wait_for(lambda: usual_node(usual) not in (node, None), 60)
    recalls(usual, right, "first", whole("first"))
