"""What aquifer.vllm knows of a request while its node has not answered: the scheduler's thread goes on. No engine is
started."""
import os
import shutil
import signal
import socket
import subprocess
import types

import pytest

pytest.importorskip("vllm")
import aquifer  # noqa: E402
from aquifer.cache import Match, Run, RunState, Tier  # noqa: E402
from aquifer.vllm import AquiferConnector, inquiry, scheduler  # noqa: E402
from aquifer.vllm.inquiry import Inquiry  # noqa: E402
from aquifer.vllm.messages import Stats, StepMetadata  # noqa: E402
from conftest import stand_still  # noqa: E402
from test_vllm_sides import BLOCK, FIRST, Hand, go_on, hand, made_request, named, still, store, text  # noqa: E402, F401

KEYS = bytes(4 * 32)


def found(blocks, pending_ms=None):
    runs = [Run(0, blocks, Tier.DRAM, RunState.READY, 1.0)]
    if pending_ms is not None:
        runs.append(Run(blocks, 1, Tier.DURABLE, RunState.PENDING, pending_ms))
    return Match(blocks, blocks, 1.0, 10.0, tuple(runs))


class SlowNode:
    """Its answers are there when a test gives them, and its time is the test's."""

    def __init__(self, monkeypatch):
        self.seconds = 100.0
        self.asked = []  # Blocks of every question.
        self._answers = []
        monkeypatch.setattr(inquiry, "time", types.SimpleNamespace(monotonic=lambda: self.seconds))
        monkeypatch.setattr(inquiry, "_MOMENT_SECONDS", 0.0)
        self.cache, self.known = self, aquifer.Registered(1, None)  # As somebody reached it.

    def begin_match(self, chain):
        self.asked.append(len(chain))
        mine = len(self.asked)
        return types.SimpleNamespace(done=lambda: len(self._answers) >= mine, result=lambda: self._answers[mine - 1])

    def answer(self, match):
        self._answers.append(match)


@pytest.fixture
def slow(monkeypatch):
    return SlowNode(monkeypatch)


def test_nothing_is_known_before_the_answer_and_it_is_asked_for_once(slow):
    asks = Inquiry()
    asks.ask(slow, aquifer.Chain(slow.known, KEYS))
    assert [asks.look(slow, KEYS) for _ in range(3)] == [None] * 3
    slow.answer(found(4))
    assert asks.look(slow, KEYS) == asks.look(slow, KEYS) == found(4)
    assert slow.asked == [4]


def test_a_node_that_does_not_answer_is_late(slow):
    asks = Inquiry()
    assert asks.look(slow, KEYS) is None
    slow.seconds += inquiry._MATCH_SECONDS
    with pytest.raises(aquifer.Late):
        asks.look(slow, KEYS)


@pytest.mark.parametrize("second", [found(4), found(1, pending_ms=50)])
def test_what_a_tier_did_not_say_in_time_is_asked_for_once_more(slow, second):
    asks = Inquiry()
    asks.ask(slow, aquifer.Chain(slow.known, KEYS))
    slow.seconds += 0.1
    slow.answer(found(1, pending_ms=50))
    assert asks.look(slow, KEYS) is None
    slow.seconds += 0.04
    assert asks.look(slow, KEYS) is None and slow.asked == [4]
    slow.seconds += 0.02
    assert asks.look(slow, KEYS) is None and slow.asked == [4, 4]
    slow.answer(second)
    assert asks.look(slow, KEYS) == second
    assert slow.asked == [4, 4]


def test_a_tier_that_would_take_too_long_is_not_waited_for(slow):
    asks = Inquiry()
    asks.ask(slow, aquifer.Chain(slow.known, KEYS))
    slow.seconds += 0.1
    slow.answer(found(1, pending_ms=200))
    assert asks.look(slow, KEYS) == found(1, pending_ms=200)
    assert slow.asked == [4]


def test_a_tier_that_is_silent_the_second_time_costs_what_it_has_and_nothing_else(slow):
    asks = Inquiry()
    asks.ask(slow, aquifer.Chain(slow.known, KEYS))
    slow.answer(found(1, pending_ms=0))
    assert asks.look(slow, KEYS) is None and slow.asked == [4, 4]
    slow.seconds += inquiry._MATCH_SECONDS
    assert asks.look(slow, KEYS) == found(1, pending_ms=0)


def test_a_request_that_stood_in_line_hears_what_is_true_now(slow):
    asks = Inquiry()
    asks.ask(slow, aquifer.Chain(slow.known, KEYS))
    slow.answer(found(1))
    slow.seconds += inquiry._YOUNG_SECONDS
    assert asks.look(slow, KEYS) is None and slow.asked == [4, 4]
    slow.answer(found(4))
    slow.seconds += 2 * inquiry._YOUNG_SECONDS  # So long is a step.
    assert asks.look(slow, KEYS) == found(4)


def test_a_request_that_has_no_room_keeps_its_place_while_it_is_asked_about_again(slow):
    """None would let others pass it."""
    asks = Inquiry()
    asks.ask(slow, aquifer.Chain(slow.known, KEYS))
    slow.answer(found(1))
    assert asks.look(slow, KEYS) == found(1)
    slow.seconds += inquiry._YOUNG_SECONDS
    assert asks.look(slow, KEYS) == found(1) and slow.asked == [4, 4]
    slow.answer(found(4))
    assert asks.look(slow, KEYS) == found(4)


def test_more_blocks_and_a_preemption_are_another_question(slow):
    asks = Inquiry()
    asks.ask(slow, aquifer.Chain(slow.known, KEYS))
    slow.answer(found(4))
    assert asks.look(slow, KEYS) == asks.look(slow, KEYS[:64]) == found(4)
    assert asks.look(slow, KEYS + bytes(32)) is None and slow.asked == [4, 5]
    slow.answer(found(5))
    assert asks.look(slow, KEYS + bytes(32)) == found(5)
    asks.forget()
    assert asks.look(slow, KEYS) is None and slow.asked == [4, 5, 4]


# ---- With a node ----

def looked(hand, request):
    """What an engine hears, which asks again in its next step."""
    return scheduler.SchedulerSide.matched_tokens(hand.scheduler, request, 0)


def test_the_schedulers_thread_waits_for_no_answer(hand, node, monkeypatch):
    monkeypatch.setattr(inquiry, "_MATCH_SECONDS", 600.0)  # It would be noticed.
    store(hand, 1)
    still(node)
    requests = [made_request(f"asks {number}", text(4, 1)) for number in range(20)]
    for request in requests:
        hand.scheduler.on_new_request(request)
    assert [looked(hand, request) for request in requests for _ in range(2)] == [None] * 40
    connector = object.__new__(AquiferConnector)
    connector._scheduling = hand.scheduler
    monkeypatch.setattr(type(hand.scheduler), "matched_tokens", scheduler.SchedulerSide.matched_tokens)
    assert connector.get_num_new_matched_tokens(requests[0], 0) == (None, False)
    monkeypatch.undo()
    go_on(node)
    for request in requests:
        assert hand.scheduler.matched_tokens(request, 0) == 4 * BLOCK
    assert "failed_calls" not in (hand.scheduler.take_stats() or Stats()).data


def test_a_request_that_is_aborted_while_it_is_asked_about_leaves_nothing(hand, node):
    store(hand, 1)
    still(node)
    request = made_request("aborted", text(4, 1))
    hand.scheduler.on_new_request(request)
    assert looked(hand, request) is None
    assert hand.scheduler.finished(request, []) is False
    results = hand.step()
    assert not results.finished_recving and not results.finished_sending and hand.scheduler._tracked == {}
    go_on(node)
    again = made_request("aborted", text(4, 1))  # A name may come again.
    assert hand.begin_load(again, FIRST) == 4 * BLOCK
    assert hand.until("aborted") is False


@pytest.fixture
def redis(tmp_path):
    if shutil.which("redis-server") is None:
        pytest.skip("there is no redis-server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""], cwd=tmp_path,
                               stdout=subprocess.DEVNULL)
    yield types.SimpleNamespace(port=port, pid=process.pid)
    process.kill()
    process.wait()


def test_a_durable_tier_that_stands_still_holds_up_no_scheduler_and_costs_no_hit_of_the_node(tmp_path, redis):
    config = tmp_path / "node.toml"
    config.write_text(f'[[tier]]\nname = "far"\nkind = "redis"\nendpoints = ["127.0.0.1:{redis.port}"]\ntls = false\n')
    with aquifer.Node(str(tmp_path / "node.sock"), dram="256MiB", config=str(config)) as node:
        with node.connect() as client:
            aquifer.cache.wait_for(lambda: any(tier.tier is Tier.DURABLE and tier.in_service
                                               for tier in client.stats().tiers), 30)
        made = Hand(node.socket)
        store(made, 1)
        stand_still(redis.pid)
        further = made_request("further", text(4, 1)[:4 * BLOCK] + text(2, 2))
        for request in (made_request("new", text(4, 3)), further):
            made.scheduler.on_new_request(request)
            assert looked(made, request) is None  # The node asks the tier.
        assert made.scheduler.matched_tokens(further, 0) == 4 * BLOCK
        assert "failed_calls" not in (made.scheduler.take_stats() or Stats()).data  # The node has answered.
        os.kill(redis.pid, signal.SIGCONT)
        made.close()


def test_no_layer_is_preceded_or_followed_by_a_call(hand, monkeypatch):
    """vLLM makes two for each layer of every step while a connector says that it has metadata."""
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
    from vllm.model_executor.layers.attention import attention, kv_transfer_utils
    connector, called = object.__new__(AquiferConnector), []
    connector._working, connector._connector_metadata = hand.worker, None
    monkeypatch.setattr(attention, "get_attention_context", lambda name: (object(), None, None, None))
    monkeypatch.setattr(kv_transfer_utils, "get_kv_transfer_group", lambda: connector)
    for question in ("has_kv_transfer_group", "is_v1_kv_transfer_group"):
        monkeypatch.setattr(kv_transfer_utils, question, lambda: True)
    for call in ("wait_for_layer_load", "save_kv_layer"):
        monkeypatch.setattr(AquiferConnector, call, lambda self, name, *args: called.append(name))
    layer = kv_transfer_utils.maybe_transfer_kv_layer(lambda layer_name: "computed")
    KVConnectorBase_V1.bind_connector_metadata(connector, StepMetadata())
    assert layer("layers.0") == "computed" and called == ["layers.0"] * 2  # As others are.
    connector.clear_connector_metadata()
    connector.bind_connector_metadata(StepMetadata())
    assert layer("layers.0") == "computed" and called == ["layers.0"] * 2
    connector.wait_for_save()


# ---- At start ----

@pytest.mark.parametrize("policy, told", [("recompute", 0), ("fail", 1)])
def test_a_policy_that_fails_requests_is_warned_of(monkeypatch, policy, told):
    from aquifer import vllm as connector
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
    warned = []
    monkeypatch.setattr(connector.logger, "warning", lambda said, *args: warned.append(said % args))
    monkeypatch.setattr(connector.KVConnectorBase_V1, "__init__", lambda *_: None)
    monkeypatch.setattr(connector, "read_shape", lambda *_: None)
    monkeypatch.setattr(connector, "SchedulerSide", lambda *_: None)
    transfer = types.SimpleNamespace(kv_connector_extra_config={}, kv_load_failure_policy=policy, engine_id="engine")
    AquiferConnector(types.SimpleNamespace(kv_transfer_config=transfer), KVConnectorRole.SCHEDULER, None)
    assert len(warned) == told
    assert all("'fail'" in said and '"recompute"' in said for said in warned)
