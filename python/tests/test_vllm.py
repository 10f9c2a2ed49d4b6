"""aquifer.vllm in real engines on the CPU, in float32: another chunking of a prefill changes nothing there, so
tokens and log-probabilities can be compared with those of an engine that has no connector.

An engine takes half a minute to start. So there are few, started at once, and the tests below are one story in order:
`plain` computes what is right; `two` (TP=2) stores; the node restarts; `one` (TP=1) recalls and is tormented. An
ordinary run has those; --full tells more of the story, with `usual`, an engine with the default settings and a node of
its own."""
from __future__ import annotations

import importlib.util
import os
import pathlib
import random
import re
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
from vllm_engine import Engine, make_model, transfer_config
from vllm_gates import Gate

BLOCK = 256  # Tokens: two pages of 128.
full_only = pytest.mark.skipif(LEVEL != "full", reason="with ./test --full")


def prompt(length, seed):
    numbers = random.Random(seed)
    return [numbers.randrange(3, 1000) for _ in range(length)]


SHARED = prompt(1100, 1)
PROMPTS = {
    "first": prompt(1500, 2),
    "second": prompt(900, 3),
    "exact": prompt(4 * BLOCK, 4),
    "long": prompt(3500, 5),
    "flipped": prompt(1300, 7),
    **{f"killed {n}": prompt(1600, 40 + n) for n in range(3)},
    **{f"shared {n}": SHARED + prompt(200 + 30 * n, 10 + n) for n in range(4)},
    **{f"crowd {n}": prompt(1400 + 10 * n, 20 + n) for n in range(6)},
}


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


@pytest.fixture(scope="module")
def starting(folder, place):
    """Engines that are on their way up, all at once: most of it is reading modules, on one core each."""
    model = folder / "model"
    make_model(model)
    certain = transfer_config("PatientConnector", always=True, deadline_ms=60000, socket=place.socket)
    engines = {
        "plain": Engine(model, folder / "plain.log", in_one_process=True, num_gpu_blocks_override=256),
        "two": Engine(model, folder / "two.log", certain, folder, tensor_parallel_size=2, bind="0|1",
                      disable_custom_all_reduce=True, num_gpu_blocks_override=128),
        # Small steps, so that long prompts are prefilled in chunks; a KV space for 8 000 tokens.
        "one": Engine(model, folder / "one.log", certain, folder, max_num_batched_tokens=1024,
                      num_gpu_blocks_override=64),
    }
    yield engines
    for engine in engines.values():
        engine.close()


@pytest.fixture(scope="module")
def right(starting):
    """What an engine without a connector says to every prompt, and to a second turn."""
    with starting["plain"] as engine:
        engine.reply()
        names = list(PROMPTS)
        answers = dict(zip(names, engine.ask(*PROMPTS.values())))
        following = PROMPTS["first"] + answers["first"]["tokens"] + prompt(100, 9)
        answers["following"] = engine.ask(following)[0]
        answers["crowd long"] = engine.ask(PROMPTS["crowd 0"], max_tokens=300)[0]
        PROMPTS["following"] = following
    return answers


@pytest.fixture(scope="module")
def stored_by_two(starting, place, right):
    """Two ranks store the prompts; then the node restarts, and has them on its drive."""
    with starting["two"] as engine:
        engine.reply()
        for name in ("first", "second", "exact"):
            store(engine, right, place, name)
        recalls(engine, right, "first", whole("first"))
    place.stop()
    place.start()


@pytest.fixture(scope="module")
def one(starting, stored_by_two):
    engine = starting["one"]
    engine.reply()
    return engine


def check(answer, expected):
    assert answer["tokens"] == expected["tokens"]
    assert answer["logprobs"] == pytest.approx(expected["logprobs"], abs=2e-3)


def ask(engine, right, name, **options):
    """Asks, checks the answer, and says how much of it was cached."""
    (answer,) = engine.ask(PROMPTS[name], **options)
    check(answer, right[name])
    return answer["cached"]


def whole(name):
    return len(PROMPTS[name]) // BLOCK * BLOCK


# A host that is busy with something else may stop a node for seconds, which costs hits and stores. So what follows asks
# until it is there; the answer is right every time.

def recalls(engine, right, name, wanted, **options):
    """The engine has forgotten it, and answers with so many tokens from the cache, the first time or soon, and never
    with more."""
    def recalled():
        engine.forget()
        cached = ask(engine, right, name, **options)
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


def test_a_prompt_that_is_all_there_computes_one_token(one, right):
    recalls(one, right, "exact", 4 * BLOCK - 1)


def test_what_the_engine_has_itself_is_not_loaded_again(one, right):
    ask(one, right, "first")
    before = one.metrics()
    assert ask(one, right, "first") >= whole("first")
    assert one.metrics()["vllm:external_prefix_cache_hits"] == before["vllm:external_prefix_cache_hits"]


def test_the_next_turn_computes_only_what_is_new(one, right):
    """With the answer, the first turn has whole blocks that its prompt had not."""
    length = len(PROMPTS["first"] + right["first"]["tokens"])
    recalls(one, right, "following", length // BLOCK * BLOCK)


def test_a_chunked_prefill_is_stored_and_recalled(one, right, place):
    store(one, right, place, "long")
    recalls(one, right, "long", whole("long"))


def test_pages_that_the_engine_shares_are_left_alone(one, right):
    """The engine has 9 pages of 128 tokens, of which the last is half of one of our blocks."""
    one.forget()
    one.ask(PROMPTS["first"][:9 * 128 + 5], max_tokens=1)
    before = one.count("loaded_blocks")
    assert ask(one, right, "first") in (9 * 128, whole("first"))
    assert one.count("loaded_blocks") - before in (0, 1)


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


def test_a_crowd_is_preempted_and_recalled(one, right, place):
    """Six requests of 1 700 tokens each want more than the KV space has."""
    names = [f"crowd {n}" for n in range(6)]
    before = one.metrics()
    answers = one.ask(*[PROMPTS[name] for name in names], max_tokens=300)
    after = one.metrics()
    assert after["vllm:num_preemptions"] > before["vllm:num_preemptions"]
    # vLLM's own counter of external hits leaves those of preempted requests out.
    assert after["vllm:aquifer_loaded_blocks"] > before["vllm:aquifer_loaded_blocks"]
    for name, answer in zip(names, answers):
        assert answer["tokens"][:12] == right[name]["tokens"]
    check(answers[0], right["crowd long"])


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


def test_a_session_is_known_by_its_name(one, place):
    text = prompt(700, 31)

    def known():
        one.ask(text, params={"aquifer": {"session": "chat 7"}})
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
    one.forget()
    before = one.count("load_requests")
    with Gate(folder, "load") as gate:
        one.begin(do="start", prompts=[PROMPTS["long"], PROMPTS["first"]], max_tokens=12)
        assert one.reply()
        gate.wait_for_one()
        one.begin(do="abort")
        assert one.reply()
    one.forget()
    counted(one, "load_requests", before)
    recalls(one, right, "long", whole("long"))
    recalls(one, right, "first", whole("first"))
    aquifer.cache.wait_for(lambda: place.counters()["lent_slots"] == 0, 30)


def test_a_node_that_is_killed_in_mid_load_costs_no_request(one, right, place, folder):
    """It stands still when it is asked for blocks, so that it has the question and no answer when it is killed."""
    one.forget()
    short = one.count("short_loads")
    with Gate(folder, "load") as gate:
        one.begin(do="generate", prompts=[PROMPTS["first"], PROMPTS["second"]], max_tokens=12)
        gate.wait_for_one()
        place.stand_still()
        gate.open()
        time.sleep(0.3)  # For the question to be asked: whether it was changes nothing below.
        place.kill()
        for name, answer in zip(("first", "second"), one.reply()):
            check(answer, right[name])
    counted(one, "short_loads", short)
    one.forget()
    assert ask(one, right, "second") == 0  # Nobody is there.
    place.start()
    recalls(one, right, "first", whole("first"))


def test_a_node_that_is_killed_in_mid_store_costs_no_request(one, right, place, folder):
    failed = one.count("failed_stores")
    with Gate(folder, "store") as gate:
        one.begin(do="generate", prompts=[PROMPTS["killed 0"], PROMPTS["first"]], max_tokens=12)
        gate.wait_for_one()
        place.stand_still()
        gate.open()
        time.sleep(0.3)
        place.kill()
        for name, answer in zip(("killed 0", "first"), one.reply()):
            check(answer, right[name])
    counted(one, "failed_stores", failed)
    place.start()
    recalls(one, right, "first", whole("first"))


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


# ---- With the default settings, and a node of its own ----

@pytest.fixture(scope="module")
def usual(starting, folder, one):
    starting["one"].close()
    gates = folder / "gates"
    gates.mkdir()
    connector = transfer_config("GatedConnector", spawn=True, spawn_dram="384MiB")
    with Engine(folder / "model", folder / "usual.log", connector, gates, num_gpu_blocks_override=64) as engine:
        engine.reply()
        engine.gates = gates
        yield engine


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
    os.kill(node, signal.SIGKILL)
    aquifer.cache.wait_for(lambda: usual_node(usual) not in (node, None), 60)
    recalls(usual, right, "first", whole("first"))
