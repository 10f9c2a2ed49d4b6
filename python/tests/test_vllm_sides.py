"""The two halves of aquifer.vllm, driven by hand as an engine drives them, with a real node: no engine is started, so
that whatever can go wrong is made to go wrong here, in seconds."""
import dataclasses
import hashlib
import os
import random
import signal
import threading
import time
import types

import pytest

pytest.importorskip("vllm")
import torch  # noqa: E402
from vllm.config import KVTransferConfig  # noqa: E402
from vllm.config.lora import LoRAConfig  # noqa: E402
from vllm.v1.executor.abstract import Executor  # noqa: E402

import aquifer  # noqa: E402
from aquifer.moment import HostMoment  # noqa: E402
from aquifer.vllm import adapters, identity, node_link, scheduler, worker  # noqa: E402
from aquifer.vllm.hints import Wishes  # noqa: E402
from aquifer.vllm.messages import CameShort, Load, Prefill, StepMetadata, WorkerMetadata  # noqa: E402
from aquifer.vllm.settings import read_settings  # noqa: E402
from aquifer.vllm.shape import Shape, read_shape  # noqa: E402
from conftest import node_process, stand_still  # noqa: E402

PAGE, BLOCK, PAGES = 16, 32, 64
NAMES = ("layers.0", "layers.1")


def made_shape():
    group = aquifer.KvGroup(layers=2, kv_heads=2, key_dim=8, value_dim=8, dtype=aquifer.DType.FLOAT32)
    layout = aquifer.Layout(model=bytes(32), kv_format="by hand", tokens_per_block=BLOCK, groups=(group,))
    return Shape(layout, PAGE, NAMES, 1)


def made_request(name, tokens, **changes):
    facts = dict(request_id=name, all_token_ids=list(tokens), num_tokens=len(tokens), num_prompt_tokens=len(tokens),
                 num_computed_tokens=0, num_in_flight_tokens=0, prompt_embeds=None, pooling_params=None,
                 mm_features=[], lora_request=None, resumable=False, cache_salt=None, kv_transfer_params=None,
                 session_id=None, kv_hints=None, skip_reading_prefix_cache=False)
    return types.SimpleNamespace(**{**facts, **changes})


def text(blocks, seed):
    numbers = random.Random(seed)
    return [numbers.randrange(1000) for _ in range(blocks * BLOCK + 3)]


class Scheduler(scheduler.SchedulerSide):
    """As vLLM's: a request whose answer is not there yet is asked about again."""

    def matched_tokens(self, request, computed):
        while (tokens := super().matched_tokens(request, computed)) is None:
            time.sleep(0.001)
        return tokens


class Hand:
    """An engine that computes nothing: it has pages, and calls both halves in vLLM's order."""

    def __init__(self, socket, config=None, shape=None, pages=None, **settings):
        given = read_settings({"socket": socket, "always": True, "deadline_ms": 20000, **settings})
        shape = shape or made_shape()
        self.scheduler = Scheduler(config, shape, given, "by hand")
        self.worker = worker.WorkerSide(shape, given, "by hand", 0)
        self.pages = pages or {name: torch.zeros(PAGES, 2, PAGE, 16) for name in NAMES}
        self.worker.register(self.pages, PAGES)
        aquifer.cache.wait_for(lambda: self.scheduler._link.known is not None, 30)
        self.step()  # The worker hears of the layout.
        aquifer.cache.wait_for(lambda: self.worker._loader._known and self.worker._storer._known, 30)

    def close(self):
        self.worker.shutdown()
        self.scheduler.shutdown()

    def step(self, scheduled=(), preempted=()):
        """One step; `scheduled`: (request, its pages) of those that have computed something. What it reported."""
        pages = {request.request_id: (table,) for request, table in scheduled}
        meta = self.scheduler.build_meta(types.SimpleNamespace(
            preempted_req_ids=set(preempted), num_scheduled_tokens={name: 1 for name in pages},
            kv_connector_block_state=types.SimpleNamespace(get_block_ids=pages.get), scheduled_new_reqs=[],
            scheduled_encoder_inputs={},
            scheduled_cached_reqs=types.SimpleNamespace(req_ids=[], num_computed_tokens=[])))
        self.worker.finish_stores(meta.preempted)
        self.worker.bind(meta)
        self.worker.after_forward()
        results = self.worker.take_results()
        self.scheduler.update(types.SimpleNamespace(
            kv_connector_worker_meta=self.worker.take_worker_meta(), finished_recving=results.finished_recving,
            finished_sending=results.finished_sending, failed_recving=results.failed_recving))
        return results

    def until(self, name):
        """Steps until the request is reported; whether it failed."""
        done = []

        def reported():
            results = self.step()
            if name in (results.finished_recving or ()):
                done.append(name in (results.failed_recving or ()))
            if name in (results.finished_sending or ()):
                done.append(False)
            return bool(done)
        aquifer.cache.wait_for(reported, 60)
        return done[0]

    def compute_and_end(self, request, table):
        """As if all of it had been computed, into these pages, and then it ends."""
        self.scheduler.on_new_request(request)
        self.scheduler.matched_tokens(request, 0)
        request.num_computed_tokens = request.num_tokens
        held = self.scheduler.finished(request, table)
        if held:
            self.until(request.request_id)
        return held

    def begin_load(self, request, table):
        """How many tokens are offered; the load begins with the next step."""
        self.scheduler.on_new_request(request)
        tokens = self.scheduler.matched_tokens(request, 0)
        if tokens:
            self.scheduler.allocated(request, table, tokens)
        return tokens

    def counts(self):
        stats = self.worker.take_stats()
        return stats.data if stats is not None else {}


@pytest.fixture(autouse=True)
def named(monkeypatch):
    monkeypatch.setattr(node_link, "model_digest", lambda config: hashlib.sha256(b"by hand").digest())
    monkeypatch.setattr(identity, "_started", lambda: time.time() + 3600)  # An engine that starts after all of this.


@pytest.fixture
def hand(node):
    made = Hand(node.socket)
    yield made
    go_on(node)  # Where a test left it standing.
    made.close()


def still(node):
    stand_still(node_process(node._process.pid))


def go_on(node):
    os.kill(node_process(node._process.pid), signal.SIGCONT)


def fill(hand, table):
    for number, tensor in enumerate(hand.pages.values()):
        for page in table:
            tensor[page] = torch.rand(tensor.shape[1:], generator=torch.Generator().manual_seed(100 * number + page))


FIRST, SECOND = list(range(8)), list(range(20, 28))  # Page tables of four blocks.


def store(hand, seed, table=FIRST):
    fill(hand, table)
    assert hand.compute_and_end(made_request(f"store {seed}", text(4, seed)), table)


# ---- What it is for ----

def test_what_one_request_stored_another_loads(hand):
    store(hand, 1)
    assert hand.counts()["stored_blocks"] == 4
    loading = made_request("load", text(4, 1))
    assert hand.begin_load(loading, SECOND) == 4 * BLOCK
    assert hand.until("load") is False
    for tensor in hand.pages.values():
        assert torch.equal(tensor[FIRST], tensor[SECOND])
    assert hand.counts()["loaded_blocks"] == 4


def test_a_request_is_asked_about_once(hand, monkeypatch):
    """However often the scheduler wants to know, and whatever the engine has itself."""
    store(hand, 1)
    cache, asked = hand.scheduler._link.reached().cache, []
    begin = cache.begin_match
    monkeypatch.setattr(cache, "begin_match", lambda *args: asked.append(args) or begin(*args))
    request = made_request("load", text(4, 1))
    hand.scheduler.on_new_request(request)
    assert [hand.scheduler.matched_tokens(request, computed) for computed in (0, 0, BLOCK, 3 * BLOCK)] == [
        4 * BLOCK, 4 * BLOCK, 3 * BLOCK, BLOCK]
    assert len(asked) == 1


def test_what_steps_took_is_known_when_something_is_matched(hand):
    store(hand, 1)
    request = made_request("asks", text(4, 1))
    hand.scheduler.matched_tokens(request, 0)
    assert hand.scheduler._tracked["asks"].inquiry.match.recompute_ms == 0
    for tokens in (100, 200, 400, 800):
        hand.worker._store_queue.put([worker._Report(Prefill(tokens, 0, 1.0), HostMoment(0.0),
                                                     HostMoment(tokens * 0.0005))])

    def known():
        hand.scheduler._tracked["asks"].inquiry._asked_at = 0.0  # Long ago.
        hand.scheduler.matched_tokens(request, 0)
        return hand.scheduler._tracked["asks"].inquiry.match.recompute_ms > 0
    aquifer.cache.wait_for(known, 30)


def test_a_step_that_failed_is_not_timed_with_the_next(hand, monkeypatch):
    told = []
    monkeypatch.setattr(hand.worker._storer._cache, "report_prefill", lambda known, *facts: told.append(facts[:2]))
    hand.worker.bind(StepMetadata(prefill=Prefill(100, 20, 1.0)))  # And nobody says that it is over.
    hand.step()
    hand.worker.bind(StepMetadata(prefill=Prefill(200, 0, 1.0)))
    hand.worker.after_forward()
    aquifer.cache.wait_for(lambda: told, 30)
    assert told == [(200, 0)]


def test_what_steps_compute_that_are_not_over_is_not_stored(hand):
    """With asynchronous scheduling, a request is counted as computed while it is."""
    request = made_request("ahead", text(4, 7))
    hand.scheduler.on_new_request(request)
    request.num_computed_tokens, request.num_in_flight_tokens = 3 * BLOCK + 1, BLOCK
    hand.step([(request, FIRST)])
    assert hand.scheduler._tracked["ahead"].submitted == 2
    request.num_computed_tokens, request.num_in_flight_tokens = 4 * BLOCK, 1
    assert hand.scheduler.finished(request, FIRST)
    hand.until("ahead")
    assert hand.counts()["stored_blocks"] == 3


def test_pages_of_a_request_that_has_ended_come_free_soon(hand):
    request = made_request("ends", text(4, 2))
    hand.scheduler.on_new_request(request)
    request.num_computed_tokens = request.num_tokens
    assert not hand.scheduler.has_pending_block_frees()
    assert hand.scheduler.finished(request, FIRST)
    assert hand.scheduler.has_pending_block_frees()
    hand.until("ends")
    assert not hand.scheduler.has_pending_block_frees()


def test_a_turn_that_is_all_recalled_renews_its_session(hand, node):
    store(hand, 1)
    request = made_request("turn", text(4, 1), session_id="chat")
    assert hand.begin_load(request, SECOND) == 4 * BLOCK
    assert hand.until("turn") is False
    request.num_computed_tokens = 4 * BLOCK
    assert hand.scheduler.finished(request, SECOND) is False  # There is nothing to be stored.
    hand.step()
    with node.connect() as client:
        def known():
            try:
                return client.prestage(session="chat") == (4, 4)
            except aquifer.NotFound:
                return False
        aquifer.cache.wait_for(known, 30)


@pytest.mark.parametrize("have", [PAGE, BLOCK + PAGE, 3 * BLOCK + PAGE])
def test_pages_that_the_engine_has_are_left_as_they_are(hand, have):
    """It has half of a block, which others may be reading: the other half is loaded."""
    store(hand, 1)
    for tensor in hand.pages.values():
        tensor[SECOND] = -1.0
    request = made_request("half", text(4, 1))
    hand.scheduler.on_new_request(request)
    assert hand.scheduler.matched_tokens(request, have) == 4 * BLOCK - have
    hand.scheduler.allocated(request, SECOND, 4 * BLOCK - have)
    assert hand.until("half") is False
    shared = have // PAGE
    for tensor in hand.pages.values():
        assert bool((tensor[SECOND[:shared]] == -1.0).all())
        assert torch.equal(tensor[FIRST[shared:]], tensor[SECOND[shared:]])


def test_what_a_request_wishes_is_told_to_the_node():
    told = []
    cache = types.SimpleNamespace(hint=lambda *args, **names: told.append((args[1:], names)))
    chain = aquifer.Chain(aquifer.Registered(1, made_shape().layout), bytes(64))
    worker.WorkerSide._tell(cache, chain, Wishes("chat", priority=2, ttl_seconds=60, return_seconds=90, durable=True))
    assert told == [(("chat", aquifer.SessionState.WILL_CONTINUE, 2, 60), {"durable": True, "return_seconds": 90})]
    worker.WorkerSide._tell(cache, chain, Wishes())
    assert len(told) == 1


def test_a_salt_has_blocks_of_its_own(hand):
    for salt in (None, "somebody", "x" * 200, "x" * 201, "somebody\0else", "\0"):
        assert hand.scheduler.matched_tokens(made_request(f"asks {salt}", text(4, 1), cache_salt=salt), 0) == 0
        fill(hand, FIRST)
        assert hand.compute_and_end(made_request(f"stores {salt}", text(4, 1), cache_salt=salt), FIRST)
        assert hand.scheduler.matched_tokens(made_request(f"again {salt}", text(4, 1), cache_salt=salt), 0) == 4 * BLOCK


def test_a_request_that_is_aborted_in_mid_load_is_reported_once_and_stores_nothing(hand, node):
    """Its pages are held until then: something is being written to them."""
    store(hand, 1)
    request = made_request("aborted", text(4, 1))
    assert hand.begin_load(request, SECOND) == 4 * BLOCK
    request.num_computed_tokens = 4 * BLOCK  # So vLLM says, before they are there.
    still(node)
    hand.step()  # The load has begun, and stands still with the node.
    assert hand.scheduler.finished(request, SECOND) is False  # vLLM keeps them for a request that is loading.
    assert not hand.step().finished_recving
    go_on(node)
    assert hand.until("aborted") is False
    results = hand.step()
    assert not results.finished_recving and not results.finished_sending
    assert "aborted" not in hand.scheduler._tracked


def test_ranks_store_and_load_their_own_heads(node):
    """Two workers of one engine: a block is there when both have written theirs."""
    given = read_settings({"socket": node.socket, "always": True, "deadline_ms": 20000})
    shape = dataclasses.replace(made_shape(), ranks=2)
    scheduling = Scheduler(None, shape, given, "by hand")
    ranks = [worker.WorkerSide(shape, given, "by hand", rank) for rank in range(2)]
    pages = [torch.rand(PAGES, 1, PAGE, 16) for _ in ranks for _ in NAMES]
    for number, rank in enumerate(ranks):
        rank.register(dict(zip(NAMES, pages[2 * number:])), PAGES)
    wait = aquifer.cache.wait_for
    wait(lambda: scheduling._link.known is not None, 30)

    def step():
        meta = scheduling.build_meta(types.SimpleNamespace(
            preempted_req_ids=set(), num_scheduled_tokens={}, kv_connector_block_state=None, scheduled_new_reqs=[],
            scheduled_encoder_inputs={},
            scheduled_cached_reqs=types.SimpleNamespace(req_ids=[], num_computed_tokens=[])))
        for rank in ranks:
            rank.bind(meta)
            rank.after_forward()
    step()
    request = made_request("stores", text(4, 1))
    scheduling.on_new_request(request)
    request.num_computed_tokens = request.num_tokens
    assert scheduling.finished(request, FIRST)
    step()
    for rank in ranks:
        wait(lambda: "stores" in rank.take_results().finished_sending, 30)
    loads = made_request("loads", text(4, 1))
    assert scheduling.matched_tokens(loads, 0) == 4 * BLOCK  # Published: both have written their heads.
    scheduling.allocated(loads, SECOND, 4 * BLOCK)
    step()
    for rank in ranks:
        wait(lambda: "loads" in rank.take_results().finished_recving, 30)
    for tensor in pages:
        assert torch.equal(tensor[FIRST], tensor[SECOND])
    assert not torch.equal(pages[0][FIRST], pages[2][FIRST])
    for side in (*ranks, scheduling):
        side.shutdown()


# ---- A node that stands still ----

def test_a_late_load_fails_in_time_and_its_blocks_are_offered_to_nobody(hand, node):
    store(hand, 1)
    store(hand, 2)
    loading = made_request("late", text(4, 1))
    hand.scheduler._settings = read_settings({"always": True, "deadline_ms": 100})
    assert hand.begin_load(loading, SECOND) == 4 * BLOCK
    still(node)
    hand.scheduler._next.loads[0].end = time.monotonic() + 0.1  # However long that took: it is asked for.
    assert hand.until("late") is True
    go_on(node)
    assert hand.scheduler.matched_tokens(loading, 0) == 0
    assert hand.scheduler.matched_tokens(made_request("next", text(4, 1)), 0) == 0
    assert hand.scheduler.matched_tokens(made_request("other", text(4, 2)), 0) == 4 * BLOCK


def test_a_silent_node_is_waited_for_once(hand, node, monkeypatch):
    monkeypatch.setattr(node_link, "_QUIET_SECONDS", 600.0)  # Longer than the test, on the busiest host.
    store(hand, 1)
    still(node)
    for number in range(50):
        assert hand.scheduler.matched_tokens(made_request(f"r{number}", text(4, 1)), 0) == 0
    # Each of them would have waited, and failed; those after the first were not even asked for.
    assert hand.scheduler.take_stats().data["failed_calls"] == 1


@pytest.mark.parametrize("settings, recompute_ms, wanted", [
    ({}, 800.0, 0.4), ({}, 20.0, 0.05), ({}, 0.0, 1.0), ({"deadline_ms": 70}, 800.0, 0.07)])
def test_a_load_may_take_as_long_as_computing_would(hand, settings, recompute_ms, wanted):
    """Four blocks that pay, of which two are loaded; at least 50 ms; a second while nobody knows; or what is set."""
    store(hand, 1)
    hand.scheduler._settings = read_settings({"always": True, **settings})
    request = made_request("load", text(4, 1))
    hand.scheduler.on_new_request(request)
    assert hand.scheduler.matched_tokens(request, 2 * BLOCK) == 2 * BLOCK
    inquiry = hand.scheduler._tracked["load"].inquiry
    inquiry.match = dataclasses.replace(inquiry.match, pays=4, recompute_ms=recompute_ms)
    before = time.monotonic()
    hand.scheduler.allocated(request, SECOND, 2 * BLOCK)
    (load,) = hand.scheduler._next.loads
    assert before + wanted <= load.end <= time.monotonic() + wanted


def test_loads_that_waited_too_long_are_not_begun(hand, monkeypatch):
    begun = []
    monkeypatch.setattr(hand.worker._loader, "use", lambda *args: begun.append(args))
    hand.worker._load(Load("old", bytes(32), FIRST, 0, 0, time.monotonic() - 1), HostMoment(0.0))
    assert begun == [] and hand.worker._came_short["old"] == CameShort(0, False)


def test_a_load_that_waited_too_long_is_counted_and_computed(hand):
    store(hand, 1)
    assert hand.begin_load(made_request("late", text(4, 1)), SECOND) == 4 * BLOCK
    hand.scheduler._next.loads[0].end = time.monotonic() - 1
    assert hand.until("late") is True
    assert hand.scheduler.take_stats().data["short_loads"] == 1
    # Its blocks are as good as before.
    assert hand.scheduler.matched_tokens(made_request("next", text(4, 1)), 0) == 4 * BLOCK


def test_a_store_that_hangs_keeps_a_preemption_no_longer_than_it_may(hand, node, monkeypatch):
    monkeypatch.setattr(worker, "_STORE_SECONDS", 1.0)
    still(node)
    requests = [made_request(name, text(4, seed)) for seed, name in enumerate(("begun", "waiting"))]
    for request in requests:
        hand.scheduler.on_new_request(request)
        request.num_computed_tokens = request.num_tokens
    hand.step([(request, FIRST) for request in requests])  # Two stores, one of which begins.
    aquifer.cache.wait_for(lambda: hand.worker._storing == "begun", 30)
    hand.step(preempted=["begun", "waiting"])  # Returns, or the engine would stand still with the node.
    assert hand.worker._storing is None and hand.worker._queued == {}
    counts = hand.counts()
    assert counts["failed_stores"] == 1 and counts["dropped_stores"] == 1
    assert hand.worker._quiet_until > 0  # It was late: nobody waited for the node to be given up as lost.


def test_blocks_that_are_lost_on_the_way_are_not_refused_ones_and_the_reason_is_told(hand, monkeypatch):
    told = []
    monkeypatch.setattr(worker.logger, "warning", lambda said, why: told.append(why))
    off = "the GPU path is off: taking memory of the GPU: CUDA_ERROR_OUT_OF_MEMORY"
    with monkeypatch.context() as broken:
        broken.setattr(hand.worker._storer._cache, "store", lambda chain, *_, **__: aquifer.cache.Stored(
            0, 0, 0, 0, 1, len(chain) - 1, 0, "no room", off))
        assert hand.compute_and_end(made_request("fails", text(4, 1)), FIRST)
    counts = hand.counts()
    assert counts["refused_blocks"] == 1 and counts["failed_blocks"] == 3
    store(hand, 1)
    with monkeypatch.context() as broken:
        broken.setattr(hand.worker._loader._cache, "load",
                       lambda *_, **__: aquifer.cache.Loaded(0, 0, "unavailable", {}, off))
        assert hand.begin_load(made_request("loads", text(4, 1)), SECOND) == 4 * BLOCK
        assert hand.until("loads") is True
    assert told == [off, off]


def test_what_a_preemption_dropped_is_stored_when_it_is_there_again(hand, monkeypatch):
    goes_on, store_blocks = threading.Event(), hand.worker._store_blocks
    monkeypatch.setattr(hand.worker, "_store_blocks", lambda item: goes_on.wait(60) and store_blocks(item))
    begun, twice = requests = [made_request(name, text(4, seed)) for seed, name in enumerate(("begun", "twice"))]
    for request in requests:
        hand.scheduler.on_new_request(request)
        request.num_computed_tokens = request.num_tokens
    hand.step([(request, FIRST) for request in requests])
    hand.step(preempted=["twice"])  # It waits behind the other.
    assert hand.counts()["dropped_stores"] == 1
    goes_on.set()
    hand.step([(twice, FIRST)])
    aquifer.cache.wait_for(lambda: not hand.worker._is_stored("twice"), 30)
    assert hand.scheduler.matched_tokens(made_request("asks", text(4, 1)), 0) == 4 * BLOCK


def test_a_preempted_request_recalls_what_it_has_stored(hand):
    """When it arrived there was nothing, and that is not what it hears now."""
    request = made_request("again", text(4, 6))
    hand.scheduler.on_new_request(request)
    assert hand.scheduler.matched_tokens(request, 0) == 0
    request.num_computed_tokens = request.num_tokens
    hand.step([(request, FIRST)])
    aquifer.cache.wait_for(lambda: not hand.worker._is_stored("again"), 30)
    hand.step(preempted=["again"])
    assert hand.scheduler.matched_tokens(request, 0) == 4 * BLOCK


# ---- Everything else that can happen ----

def test_threads_survive_what_nobody_expects(hand, monkeypatch):
    store(hand, 1)
    for side, name in ((hand.worker._loader, "load"), (hand.worker._storer, "store")):
        with monkeypatch.context() as broken:
            broken.setattr(side, "use", lambda *args: 1 / 0)
            if name == "load":
                assert hand.begin_load(made_request("fails", text(4, 1)), SECOND) == 4 * BLOCK
                assert hand.until("fails") is True
            else:
                assert hand.compute_and_end(made_request("fails too", text(4, 3)), FIRST)
    assert all(thread.is_alive() for thread in hand.worker._threads)
    assert hand.begin_load(made_request("works", text(4, 1)), SECOND) == 4 * BLOCK
    assert hand.until("works") is False


def test_a_reset_while_something_is_loaded_fails_the_load(hand):
    store(hand, 1)
    assert hand.scheduler.reset() is True
    store(hand, 1)
    assert hand.begin_load(made_request("load", text(4, 1)), SECOND) == 4 * BLOCK
    assert hand.scheduler.reset() is False
    assert hand.until("load") is True
    assert hand.scheduler.reset() is True
    assert hand.scheduler.matched_tokens(made_request("after", text(4, 1)), 0) == 0


@pytest.mark.parametrize("changes", [{"prompt_embeds": 1}, {"pooling_params": 1}, {"resumable": True}])
def test_requests_whose_kv_does_not_follow_from_their_tokens_are_left_alone(hand, changes):
    store(hand, 1)
    request = made_request("left alone", text(4, 1), **changes)
    assert hand.begin_load(request, SECOND) == 0
    request.num_computed_tokens = request.num_tokens
    assert hand.scheduler.finished(request, SECOND) is False


def test_who_wants_all_of_a_prompt_computed_recalls_nothing_and_stores(hand, monkeypatch):
    """Its log-probabilities, say. vLLM computes it whatever we offer, so nothing is to move for it either."""
    store(hand, 1)
    prestaged = []
    monkeypatch.setattr(aquifer.Cache, "begin_prestage", lambda *args, **_: prestaged.append(args))
    for seed in (1, 2):  # The first is there.
        request = made_request(f"all {seed}", text(4, seed), skip_reading_prefix_cache=True)
        assert hand.begin_load(request, SECOND) == 0 and not prestaged
        assert hand.compute_and_end(request, SECOND)
    monkeypatch.undo()
    assert hand.begin_load(made_request("recalls", text(4, 2)), FIRST) == 4 * BLOCK


@pytest.mark.parametrize("role, prefetched", [("kv_both", ["next", "other"]), ("kv_producer", [])])
@pytest.mark.parametrize("blocks, changes", [(4, {"skip_reading_prefix_cache": True}), (0, {})])
@pytest.mark.parametrize("arrival", ["plain", "the node is silent", "its images have no names"])
def test_other_sessions_are_prefetched_once_whatever_the_request_may_load(hand, monkeypatch, role, prefetched, blocks,
                                                                          changes, arrival):
    monkeypatch.setattr(hand.scheduler, "_loads_blocks", KVTransferConfig(
        kv_connector="AquiferConnector", kv_role=role).is_kv_consumer)
    asked = []
    monkeypatch.setattr(aquifer.Cache, "begin_prestage", lambda cache, chain=None, session=None: asked.append(session))
    request = made_request("hints", text(blocks, 1), kv_hints={"actions": [
        {"action_type": "aquifer.prefetch", "action_version": "1.0", "payload": {"session": session}}
        for session in ("next", "other")]}, **changes)
    with monkeypatch.context() as arriving:  # It is as ever when the request is scheduled.
        if arrival == "the node is silent":
            arriving.setattr(hand.scheduler._link, "reached", lambda: None)
        elif arrival == "its images have no names":
            arriving.setattr(scheduler._Tracked, "waits_for_names", lambda tracked: True)
        hand.scheduler.on_new_request(request)
    assert asked == ([] if arrival == "the node is silent" else prefetched)
    assert [hand.scheduler.matched_tokens(request, 0) for _ in range(2)] == [0, 0]
    assert asked == prefetched


@pytest.fixture
def adapter(tmp_path, monkeypatch):
    """A folder like one that vLLM loads."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def made(name, file, weights):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "adapter_config.json").write_text("{}")
        (folder / file).write_bytes(weights)
        return types.SimpleNamespace(lora_path=str(folder), lora_int_id=1, load_inplace=False)
    return made


def settled():
    """All adapters that were named are read."""
    aquifer.cache.wait_for(lambda: all(thread.name != "aquifer-adapter" for thread in threading.enumerate()), 30)


def known(hand, lora):
    aquifer.cache.wait_for(lambda: hand.scheduler._adapter(lora) is not None, 30)
    return hand.scheduler._adapter(lora)


@pytest.mark.parametrize("file", ["adapter_model.safetensors", "adapter_model.bin", "adapter_model.pt"])
def test_an_adapter_has_blocks_of_its_own(hand, adapter, file):
    store(hand, 1)
    loras = [adapter("one", file, b"one"), adapter("other", file, b"other")]
    loras[1].lora_int_id = 2
    for number, lora in enumerate(loras):
        known(hand, lora)
        asks = made_request(f"asks {number}", text(4, 1), lora_request=lora)
        assert hand.begin_load(asks, SECOND) == 0
        assert hand.compute_and_end(made_request(f"stores {number}", text(4, 1), lora_request=lora), FIRST)
        again = made_request(f"loads {number}", text(4, 1), lora_request=lora)
        assert hand.begin_load(again, SECOND) == 4 * BLOCK
        assert hand.until(f"loads {number}") is False


def digest_with(lora, lora_config):
    """Of an adapter, in an engine with such settings."""
    made = adapters.Adapters(lora_config)
    aquifer.cache.wait_for(lambda: made.digest_of(lora) is not None, 30)
    return made.digest_of(lora)


def test_how_an_engine_applies_adapters_counts(adapter):
    """One that applies them to some modules alone makes another KV of the same files."""
    lora = adapter("one", "adapter_model.safetensors", b"one")
    usual = digest_with(lora, LoRAConfig())
    others = [LoRAConfig(**{setting: value}) for setting, value in (
        ("target_modules", ["o_proj"]), ("lora_dtype", "bfloat16"), ("enable_tower_connector_lora", True),
        ("enable_mixed_moe_lora_format", True), ("enable_moe_shared_loras", True))]
    lora.is_3d_lora_weight = True
    digests = {usual, digest_with(lora, LoRAConfig())}
    lora.is_3d_lora_weight = False
    assert len(digests.union(digest_with(lora, other) for other in others)) == 7
    assert digest_with(lora, LoRAConfig(max_loras=4, max_cpu_loras=8, max_lora_rank=64)) == usual
    assert adapters._OF_NO_CONSEQUENCE <= {field.name for field in dataclasses.fields(LoRAConfig)}


@pytest.mark.parametrize("named_first", [False, True])
def test_a_number_that_was_loaded_as_another_adapter_is_left_alone(node, adapter, named_first):
    """The engine computes with what add_lora() has loaded under the number, whatever path a request has for it."""
    hand = Hand(node.socket, types.SimpleNamespace(lora_config=LoRAConfig()))
    loaded, named = (adapter(name, "adapter_model.safetensors", name.encode()) for name in ("loaded", "named"))
    if named_first:
        assert known(hand, named)
    engine = types.SimpleNamespace(collective_rpc=lambda what, args: [(what, args) == ("add_lora", (loaded,))])
    assert Executor.add_lora(engine, loaded)
    check_left_alone(hand, named)
    check_left_alone(hand, loaded)  # It may have been loaded anew since, from the other path.
    named.lora_int_id = loaded.lora_int_id = 2
    assert Executor.add_lora(engine, loaded)
    assert known(hand, loaded) and hand.scheduler._adapter(named) is None
    hand.close()


def test_a_number_whose_files_are_read_in_another_way_is_left_alone(hand, adapter):
    lora = adapter("one", "adapter_model.safetensors", b"one")
    known(hand, lora)
    lora.is_3d_lora_weight = True
    check_left_alone(hand, lora)


def test_where_a_cpu_has_adapters_requests_without_one_are_recalled_and_not_stored(node):
    """vLLM gives them an adapter's weights where they share a batch."""
    plain, adapted = Hand(node.socket), Hand(node.socket, types.SimpleNamespace(lora_config=types.SimpleNamespace()))
    store(plain, 1)
    assert adapted.begin_load(made_request("loads", text(4, 1)), SECOND) == 4 * BLOCK
    assert adapted.until("loads") is False
    assert not adapted.compute_and_end(made_request("stores", text(4, 2)), FIRST)
    assert plain.scheduler.matched_tokens(made_request("asks", text(4, 2)), 0) == 0
    plain.close()
    adapted.close()


def check_left_alone(hand, lora):
    """Neither recalled nor stored."""
    for name in ("first", "second"):
        request = made_request(name, text(4, 1), lora_request=lora)
        assert hand.begin_load(request, SECOND) == 0
        request.num_computed_tokens = request.num_tokens
        assert hand.scheduler.finished(request, SECOND) is False
        settled()


def test_an_adapter_whose_files_change_is_left_alone(hand, adapter):
    """The engine has the old ones in memory, or reads the new ones when it had to make room: nobody knows."""
    lora = adapter("one", "adapter_model.safetensors", b"old")
    old = known(hand, lora)
    adapter("one", "adapter_model.safetensors", b"new")
    check_left_alone(hand, lora)
    # Another folder under the same number: for the engine that is what it has read.
    assert hand.scheduler._adapter(adapter("other", "adapter_model.safetensors", b"old")) is None
    # Loaded as another adapter, it is known, and not as the old one.
    lora.lora_int_id = 2
    assert known(hand, lora) != old


@pytest.mark.parametrize("moved", [False, True])
def test_an_adapter_that_is_written_under_a_running_engine_is_left_alone(hand, adapter, monkeypatch, tmp_path, running,
                                                                         moved):
    """The engine may have loaded what was there before, long before a request names it."""
    lora, told = adapter("one", "adapter_model.safetensors", b"one"), []
    monkeypatch.setattr(adapters.logger, "warning", lambda said, *args: told.append(said % args))
    adapter("other", "adapter_model.safetensors", b"other")
    running()
    if moved:  # Its files are older than the engine.
        (tmp_path / "one").rename(tmp_path / "older")
        (tmp_path / "other").rename(tmp_path / "one")
        (tmp_path / "one" / "done").write_text("")
    else:
        adapter("one", "adapter_model.safetensors", b"new")
    check_left_alone(hand, lora)
    assert len(told) == 1 and "after the engine started" in told[0] and "start it again" in told[0]


def test_a_request_whose_adapter_changes_while_it_waits_is_neither_recalled_nor_stored(hand, adapter):
    """The engine may have loaded the new files for it."""
    lora = adapter("one", "adapter_model.safetensors", b"old")
    known(hand, lora)
    assert hand.compute_and_end(made_request("stores", text(4, 1), lora_request=lora), FIRST)
    asks, computes = (made_request(name, text(4, seed), lora_request=lora, session_id="chat")
                      for seed, name in ((1, "asks"), (2, "computes")))
    for request in (asks, computes):
        hand.scheduler.on_new_request(request)
    assert hand.scheduler.matched_tokens(asks, 0) == 4 * BLOCK
    adapter("one", "adapter_model.safetensors", b"new")
    assert hand.scheduler.matched_tokens(asks, 0) == 0
    computes.num_computed_tokens = computes.num_tokens
    hand.step([(computes, FIRST)])
    assert hand.scheduler.finished(computes, FIRST) is False
    assert hand.scheduler._next is None  # Nothing for the workers.
    assert hand.counts()["stored_blocks"] == 4


@pytest.mark.parametrize("file", ["weights.npz", None])
def test_an_adapter_whose_files_nobody_sees_is_left_alone(hand, tmp_path, file):
    if file is not None:
        (tmp_path / "adapter").mkdir()
        (tmp_path / "adapter" / file).write_bytes(b"weights")
    lora = types.SimpleNamespace(lora_path=str(tmp_path / "adapter"), lora_int_id=1, load_inplace=False)
    assert hand.scheduler._adapter(lora) is None
    settled()
    assert hand.scheduler._adapter(lora) is None


def test_an_adapter_that_is_loaded_in_place_is_left_alone(hand, adapter):
    lora = adapter("one", "adapter_model.safetensors", b"one")
    known(hand, lora)
    lora.load_inplace = True
    assert hand.begin_load(made_request("asks", text(4, 1), lora_request=lora), SECOND) == 0
    assert "asks" not in hand.scheduler._tracked


def test_an_observer_stores_and_loads_nothing(hand, node):
    store(hand, 1)
    made = Hand(node.socket, observe=True)
    assert made.begin_load(made_request("there", text(4, 1)), SECOND) == 0
    made.compute_and_end(made_request("new", text(4, 2)), FIRST)
    made.close()
    with node.connect() as client:
        assert max(tier.blocks for tier in client.stats().tiers) == 4


def test_a_producer_loads_nothing_and_a_consumer_stores_nothing(hand, node):
    def made(role):
        return Hand(node.socket, types.SimpleNamespace(kv_transfer_config=KVTransferConfig(
            kv_connector="AquiferConnector", kv_role=role)))
    store(hand, 1)
    producer, consumer = made("kv_producer"), made("kv_consumer")
    assert producer.begin_load(made_request("there", text(4, 1)), SECOND) == 0
    assert producer.compute_and_end(made_request("new", text(4, 2)), FIRST)
    assert consumer.begin_load(made_request("there", text(4, 2)), SECOND) == 4 * BLOCK
    assert consumer.until("there") is False
    assert not consumer.compute_and_end(made_request("newer", text(4, 3)), FIRST)
    assert hand.scheduler.matched_tokens(made_request("asks", text(4, 3)), 0) == 0
    producer.close()
    consumer.close()


@pytest.mark.parametrize("rank", [{"data_parallel_size": 2, "data_parallel_index": 0},
                                  {"data_parallel_size": 1, "data_parallel_index": 1}])
def test_ranks_that_would_start_a_node_each_are_refused(rank):
    config = types.SimpleNamespace(parallel_config=types.SimpleNamespace(**rank))
    with pytest.raises(aquifer.Invalid, match="data-parallel.*aquifer serve"):
        scheduler.SchedulerSide(config, made_shape(), read_settings({"spawn": True}), "by hand")


def test_ranks_that_differ_are_as_good_as_the_worst():
    one = WorkerMetadata({"a": CameShort(3, True), "b": CameShort(1, False)})
    other = WorkerMetadata({"a": CameShort(2, False), "c": CameShort(0, True)})
    assert one.aggregate(other).short == {"a": CameShort(2, False), "b": CameShort(1, False),
                                          "c": CameShort(0, True)}


@pytest.mark.parametrize("scheduled, wanted", [
    ({"a": 100}, (100, 10, 1.0)), ({"a": 100, "b": 300}, (400, (10 * 100 + 50 * 300) // 400, 1.0)),
    ({"a": 100, "c": 1}, (100, 10, 100 / 101)), ({"a": 100, "c": 90}, None), ({"c": 1}, None), ({}, None)])
def test_steps_that_compute_prompts_are_timed(scheduled, wanted):
    output = types.SimpleNamespace(
        num_scheduled_tokens=scheduled, scheduled_new_reqs=[types.SimpleNamespace(req_id="a", num_computed_tokens=10)],
        scheduled_encoder_inputs={},
        scheduled_cached_reqs=types.SimpleNamespace(req_ids=["b", "c"], num_computed_tokens=[50, 60]))
    if scheduled.get("c", 0) >= scheduler._LEAST_PREFILL:
        scheduled = {**scheduled, **{f"d{n}": 1 for n in range(scheduled.pop("c"))}}
        output.num_scheduled_tokens = scheduled
    found = scheduler._prefill_of(output)
    assert (None if found is None else (found.tokens, found.context, found.share)) == wanted


# ---- What is refused ----

def _config(**parallel):
    sizes = dict(pipeline_parallel_size=1, decode_context_parallel_size=1, prefill_context_parallel_size=1, nnodes=1,
                 tensor_parallel_size=1)
    return types.SimpleNamespace(parallel_config=types.SimpleNamespace(**{**sizes, **parallel}))


def _groups(*specs):
    return types.SimpleNamespace(kv_cache_groups=[types.SimpleNamespace(kv_cache_spec=spec, layer_names=["0"])
                                                  for spec in specs])


def _full(**changes):
    from vllm.v1.kv_cache_interface import FullAttentionSpec
    return FullAttentionSpec(**{**dict(block_size=128, num_kv_heads=2, head_size=32, dtype=torch.float32), **changes})


@pytest.mark.parametrize("parallel, specs, named", [
    ({"pipeline_parallel_size": 2}, [{}], "pipeline_parallel_size is 2"), ({"nnodes": 2}, [{}], "one host"),
    ({"decode_context_parallel_size": 2}, [{}], "decode_context_parallel_size"),
    ({}, [{}, {}], "2 KV groups"), ({}, [], "0 KV groups"), ({}, [{"sliding_window": 128}], "window"),
    ({}, [{"dtype": torch.uint8}], "quantised")])
def test_what_is_not_known_is_refused_by_name(parallel, specs, named):
    with pytest.raises(aquifer.Invalid, match=named):
        read_shape(_config(**parallel), _groups(*[_full(**spec) for spec in specs]))


@pytest.mark.parametrize("kind, more", [("RSWASpec", {"rswa_window": 128}), ("SinkFullAttentionSpec", {"sink_len": 16}),
                                        ("MLAAttentionSpec", {})])
def test_other_kinds_of_kv_are_refused_by_name(kind, more):
    """Also those that vLLM makes of full attention."""
    from vllm.v1 import kv_cache_interface
    spec = getattr(kv_cache_interface, kind)(block_size=128, num_kv_heads=2, head_size=32, dtype=torch.float32, **more)
    assert isinstance(spec, kv_cache_interface.FullAttentionSpec)
    with pytest.raises(aquifer.Invalid, match=kind):
        read_shape(_config(), _groups(spec))
    with pytest.raises(aquifer.Invalid, match="SimpleNamespace"):
        read_shape(_config(), _groups(types.SimpleNamespace()))


def test_outputs_of_every_token_are_refused_by_name():
    """vLLM ends where it wants the experts of tokens that were recalled."""
    from vllm.config.aux_output import AuxOutputConfig
    config = _config()
    config.aux_output_config = AuxOutputConfig(enable_return_routed_experts=True)
    with pytest.raises(aquifer.Invalid, match="--enable-return-routed-experts"):
        read_shape(config, _groups(_full()))
