"""aquifer.vllm in real engines on the CPU, in float32: another chunking of a prefill changes nothing there, so
tokens and log-probabilities can be compared with those of an engine that has no connector.

An engine takes half a minute to start. So there are three, and the tests below are one story in order:
`plain` computes what is right; `two` (TP=2) stores; the node restarts; `one` (TP=1) recalls and is tormented."""
from __future__ import annotations

import importlib.util
import os
import pathlib
import random
import signal
import threading
import time

import pytest

import aquifer

if os.environ.get("AQUIFER_TEST_LEVEL", "full") != "full":
    pytest.skip("a vLLM engine takes minutes: with ./test --full", allow_module_level=True)
if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM is not installed", allow_module_level=True)

from vllm_engine import Engine, make_model

BLOCK = 256  # Tokens: two pages of 128.


def prompt(length, seed):
    numbers = random.Random(seed)
    return [numbers.randrange(3, 1000) for _ in range(length)]


SHARED = prompt(1100, 1)
PROMPTS = {
    "first": prompt(1500, 2),
    "second": prompt(900, 3),
    "exact": prompt(4 * BLOCK, 4),
    "long": prompt(3500, 5),
    "killed": prompt(3000, 6),
    "late": prompt(1300, 7),
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

    def kill(self):
        shell = self.node._process.pid
        for pid in pathlib.Path(f"/proc/{shell}/task/{shell}/children").read_text().split():
            if "aquifer" in pathlib.Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(int(pid), signal.SIGKILL)
        self.node._process.wait(30)

    def blocks(self):
        with aquifer.connect(self.socket) as client:
            return max(tier.blocks for tier in client.stats().tiers)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="module")
def model(folder):
    make_model(folder / "model")
    return folder / "model"


@pytest.fixture(scope="module")
def place(folder):
    made = Place(folder)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def right(model, folder):
    """What an engine without a connector says to every prompt, and to a second turn."""
    with Engine(model, folder / "plain.log") as engine:
        engine.reply()
        names = list(PROMPTS)
        answers = dict(zip(names, engine.ask(*PROMPTS.values())))
        following = PROMPTS["first"] + answers["first"]["tokens"] + prompt(100, 9)
        answers["following"] = engine.ask(following)[0]
        long_answer = engine.ask(PROMPTS["crowd 0"], max_tokens=300)[0]
        answers["crowd long"] = long_answer
        PROMPTS["following"] = following
    return answers


@pytest.fixture(scope="module")
def stored_by_two(model, folder, place, right):
    """Two ranks store the prompts; then the node restarts, and has them on its drive."""
    with Engine(model, folder / "two.log", {"socket": place.socket}, tensor_parallel_size=2, bind="0|1",
                disable_custom_all_reduce=True) as engine:
        engine.reply()
        for name in ("first", "second", "exact"):
            (answer,) = engine.ask(PROMPTS[name])
            check(answer, right[name])
        wanted = sum(len(PROMPTS[name]) // BLOCK for name in ("first", "second", "exact"))
        aquifer.cache.wait_for(lambda: place.blocks() >= wanted, 60)
        engine.forget()
        (answer,) = engine.ask(PROMPTS["first"])
        check(answer, right["first"])
        assert answer["cached"] == len(PROMPTS["first"]) // BLOCK * BLOCK
    place.stop()
    place.start()


@pytest.fixture(scope="module")
def one(model, folder, place, stored_by_two):
    """Small steps, so that long prompts are prefilled in chunks; a KV space for 8 000 tokens."""
    with Engine(model, folder / "one.log", {"socket": place.socket}, max_num_batched_tokens=1024,
                num_gpu_blocks_override=64) as engine:
        engine.reply()
        yield engine


def check(answer, expected):
    assert answer["tokens"] == expected["tokens"]
    assert answer["logprobs"] == pytest.approx(expected["logprobs"], abs=2e-3)


def ask(engine, right, name, **options):
    (answer,) = engine.ask(PROMPTS[name], **options)
    check(answer, right[name])
    return answer["cached"]


def whole(name):
    return len(PROMPTS[name]) // BLOCK * BLOCK


def stored(place, name):
    """Waits until what was asked last is in the cache: a store may end after its answer."""
    seen = -1
    while (now := place.blocks()) != seen:
        seen = now
        time.sleep(0.3)


def test_one_rank_recalls_from_the_drive_what_two_stored(one, right):
    assert ask(one, right, "first") == whole("first")
    assert ask(one, right, "second") == whole("second")


def test_a_prompt_that_is_all_there_computes_one_token(one, right):
    assert ask(one, right, "exact") == 4 * BLOCK - 1


def test_what_the_engine_has_itself_is_not_loaded_again(one, right):
    before = one.metrics()
    assert ask(one, right, "first") >= whole("first")
    assert one.metrics()["vllm:external_prefix_cache_hits"] == before["vllm:external_prefix_cache_hits"]


def test_the_next_turn_computes_only_what_is_new(one, right, place):
    stored(place, "first")
    one.forget()
    cached = ask(one, right, "following")
    assert cached == len(PROMPTS["first"] + right["first"]["tokens"]) // BLOCK * BLOCK


def test_a_chunked_prefill_is_stored_and_recalled(one, right, place):
    assert ask(one, right, "long") == 0
    stored(place, "long")
    one.forget()
    assert ask(one, right, "long") == whole("long")


def test_pages_that_the_engine_shares_are_left_alone(one, right, place):
    """The engine has 9 pages of 128 tokens, of which the last is half of one of our blocks."""
    one.forget()
    half = PROMPTS["first"][:9 * 128 + 5]
    (begun,) = one.ask(half, max_tokens=1)
    assert begun["cached"] == 4 * BLOCK
    assert ask(one, right, "first") == whole("first")


def test_requests_at_once_share_a_beginning(one, right, place):
    names = [f"shared {n}" for n in range(4)]
    for turn in range(2):
        answers = one.ask(*[PROMPTS[name] for name in names])
        for name, answer in zip(names, answers):
            check(answer, right[name])
        if turn == 1:
            assert all(answer["cached"] >= len(SHARED) // BLOCK * BLOCK for answer in answers)
        stored(place, "shared")
        one.forget()


def test_a_salt_keeps_users_apart(one, right):
    one.forget()
    (answer,) = one.ask(PROMPTS["first"], salt="somebody")
    check(answer, right["first"])
    assert answer["cached"] == 0


def test_what_makes_no_sense_in_a_request_harms_nobody(one, right, place):
    for params in ({"aquifer": 7}, {"aquifer": {"priority": "high"}}, {"aquifer": {"session": ["x"] * 200}}):
        ask(one, right, "second", params=params)
    one.forget()
    (answer,) = one.ask(prompt(600, 30), params={"aquifer": {"store": False}})
    stored(place, "nothing")
    one.forget()
    (again,) = one.ask(prompt(600, 30))
    assert answer["tokens"] == again["tokens"] and again["cached"] == 0


def test_a_session_is_known_by_its_name(one, place):
    text = prompt(700, 31)
    one.ask(text, params={"aquifer": {"session": "chat 7"}})
    with aquifer.connect(place.socket) as client:
        def known():
            try:
                return client.prestage(session="chat 7") == (2, 2)
            except aquifer.NotFound:
                return False
        aquifer.cache.wait_for(known, 30)
        assert client.evict(session="chat 7") == 2
    one.forget()
    (answer,) = one.ask(text)
    assert answer["cached"] == 0


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


def test_requests_that_are_aborted_in_mid_load_leave_no_trace(one, right, place):
    for steps in (1, 2, 3):
        one.forget()
        one.begin(do="abort", prompts=[PROMPTS["long"], PROMPTS["first"]], steps=steps)
        assert one.reply()
    one.forget()
    assert ask(one, right, "long") == whole("long")
    assert ask(one, right, "first") == whole("first")
    with aquifer.connect(place.socket) as client:
        aquifer.cache.wait_for(lambda: client.stats().counters["lent_slots"] == 0, 30)


def test_a_node_that_is_killed_costs_no_request(one, right, place):
    """In mid-store and in mid-load, at moments that differ from run to run."""
    for turn in range(3):
        one.forget()
        one.begin(do="generate", prompts=[PROMPTS["killed"], PROMPTS["first"]], max_tokens=12)
        time.sleep(0.05 + 0.4 * turn)
        place.kill()
        for name, answer in zip(("killed", "first"), one.reply()):
            check(answer, right[name])
        one.forget()
        assert ask(one, right, "second") == 0  # Nobody is there.
        place.start()
    # The engine finds the node again by itself, and the node what its drive has.
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        one.forget()
        if ask(one, right, "first") == whole("first"):
            return
    pytest.fail("the engine does not find the node again")


def test_a_bit_that_flips_on_the_drive_is_computed(one, right, place):
    assert ask(one, right, "late") == 0
    stored(place, "late")
    place.stop()
    for file in place.drive.rglob("*"):
        if file.is_file() and file.stat().st_size > 1 << 20:
            _flip(file)
    place.start()
    one.forget()
    for name in ("late", "first", "long"):
        ask(one, right, name)  # Whatever is left of it: the answer is right.
    with aquifer.connect(place.socket) as client:
        counters = client.stats().counters
    assert counters["corrupt_blocks"] > 0


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
    ask(one, right, "second")
    stored(place, "second")
    one.begin(do="reset_connector")
    assert one.reply()
    assert ask(one, right, "second") == 0
    stored(place, "second")
    one.forget()
    assert ask(one, right, "second") == whole("second")


def test_settings_that_are_wrong_are_named():
    from aquifer.vllm.settings import read_settings
    with pytest.raises(aquifer.Invalid, match="'socket'"):
        read_settings({"sokcet": "x"})
    with pytest.raises(aquifer.Invalid, match="spawn"):
        read_settings({"spawn": True, "socket": "x"})
    with pytest.raises(aquifer.Invalid, match="deadline_ms"):
        read_settings({"deadline_ms": "soon"})
    assert read_settings({"deadline_ms": 20}).deadline_ms == 20.0
    assert read_settings({"spawn": True, "spawn_nvme": "/drive"}).spawn_nvme == ("/drive",)
