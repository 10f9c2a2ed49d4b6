"""An engine whose model the connector does not know runs all the same, and says so once; and whether there is a node can
be seen. No engine is started."""
import os
import signal
import threading
import types

import pytest

pytest.importorskip("vllm")
import prometheus_client  # noqa: E402
import torch  # noqa: E402
from vllm.config import KVTransferConfig  # noqa: E402
from vllm.distributed import parallel_state  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole  # noqa: E402
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec  # noqa: E402

import aquifer  # noqa: E402
import aquifer.vllm as connector  # noqa: E402
from aquifer.vllm import node_link  # noqa: E402
from aquifer.vllm.messages import GAUGES, PromMetrics, Stats  # noqa: E402
from conftest import node_process, stand_still  # noqa: E402
from test_vllm_sides import Hand, made_request, text  # noqa: E402

GROUPS = [types.SimpleNamespace(layer_names=["layers.0"], kv_cache_spec=spec) for spec in (
    FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=8, dtype=torch.float32),
    SlidingWindowSpec(block_size=16, num_kv_heads=2, head_size=8, dtype=torch.float32, sliding_window=64))]


def engine(groups, **settings):
    """The two configurations of which vLLM makes a connector."""
    transfer = KVTransferConfig(kv_connector="AquiferConnector", kv_role="kv_both", engine_id="by hand",
                                kv_load_failure_policy="recompute", kv_connector_extra_config=settings)
    parallel = types.SimpleNamespace(tensor_parallel_size=1)
    model = types.SimpleNamespace(dtype=torch.float32, get_total_num_kv_heads=lambda: 2)
    return (types.SimpleNamespace(kv_transfer_config=transfer, parallel_config=parallel, model_config=model,
                                  cache_config=types.SimpleNamespace(cache_dtype="auto")),
            types.SimpleNamespace(kv_cache_groups=groups, num_blocks=8))


def made(role, groups=GROUPS, **settings):
    config, cache_config = engine(groups, **settings)
    return connector.AquiferConnector(config, role, cache_config)


@pytest.fixture(autouse=True)
def told(monkeypatch):
    monkeypatch.setattr(parallel_state, "get_tensor_model_parallel_rank", lambda: 0)
    monkeypatch.setattr(node_link, "model_digest", lambda config: bytes(32))
    said = []
    monkeypatch.setattr(connector.logger, "warning", lambda text, *args: said.append(text % args))
    return said


def output():
    return types.SimpleNamespace(finished_sending=None, finished_recving=None, failed_recving=None,
                                 kv_connector_worker_meta=None)


def check_is_idle(scheduling, working, request):
    """A request goes through all of a step, and nothing is told, kept, loaded or stored."""
    scheduling.on_new_request(request)
    assert scheduling.get_num_new_matched_tokens(request, 0) == (0, False)
    scheduling.update_state_after_alloc(request, None, 0)
    message = scheduling.build_connector_meta(types.SimpleNamespace())
    working.handle_preemptions(message)
    working.bind_connector_metadata(message)
    working.start_load_kv(None)
    working.wait_for_save()
    results = working.get_transfer_results(set())
    assert not (results.finished_sending or results.finished_recving or results.failed_recving)
    assert working.build_connector_worker_meta() is None and working.get_kv_connector_stats() is None
    scheduling.update_connector_output(output())
    assert scheduling.request_finished_all_groups(request, ([1], [2])) == (False, None)
    assert scheduling.request_finished_all_groups(request, ()) == (False, None)
    assert not scheduling.has_pending_block_frees() and scheduling.reset_cache() is True


def test_a_model_that_is_not_known_runs_without_a_connector_and_says_so_once(told):
    before = threading.active_count()
    scheduling, working = made(KVConnectorRole.SCHEDULER), made(KVConnectorRole.WORKER)
    working.register_kv_caches({"layers.0": torch.zeros(1)})
    check_is_idle(scheduling, working, made_request("any", text(4, 1)))
    assert scheduling.get_kv_connector_stats().data == {"unsupported": 1}
    assert scheduling.get_kv_connector_stats() is None  # No step costs anything.
    assert len(told) == 1 and "2 KV groups (FullAttentionSpec, SlidingWindowSpec)" in told[0]
    assert "WITHOUT Aquifer" in told[0] and '"unsupported": "fail"' in told[0]
    assert threading.active_count() == before
    scheduling.shutdown()
    working.shutdown()


@pytest.mark.parametrize("role", list(KVConnectorRole))
def test_whoever_wants_the_start_to_end_there_may_say_so(role):
    with pytest.raises(aquifer.Invalid, match="2 KV groups"):
        made(role, unsupported="fail")


@pytest.mark.parametrize("unsupported", ["run", "fail"])
def test_settings_that_are_wrong_end_the_start_in_any_case(unsupported):
    with pytest.raises(aquifer.Invalid, match="sokcet"):
        made(KVConnectorRole.SCHEDULER, unsupported=unsupported, sokcet="x")


def test_a_refusal_that_only_a_worker_can_see_reaches_the_scheduler_before_the_first_step(told, node):
    """Tensors of a shape that nobody knows."""
    scheduling = made(KVConnectorRole.SCHEDULER, GROUPS[:1], socket=node.socket)
    working = made(KVConnectorRole.WORKER, GROUPS[:1], socket=node.socket)
    assert working.get_handshake_metadata() is None and told == []
    working.register_kv_caches({"layers.0": torch.zeros(8, 2, 16, 3, 5)})
    scheduling.set_xfer_handshake_metadata_pp_aware({(0, 0): working.get_handshake_metadata()})
    check_is_idle(scheduling, working, made_request("any", text(4, 1)))
    assert scheduling.get_kv_connector_stats().data == {"unsupported": 1}
    assert len(told) == 1 and "the KV tensor of layers.0" in told[0]


def test_a_release_of_vllm_with_other_names_is_not_known_either(told, monkeypatch):
    def renamed(*_):
        raise AttributeError("'Spec' object has no attribute 'head_size_v'")
    monkeypatch.setattr(connector, "read_shape", renamed)
    scheduling, working = made(KVConnectorRole.SCHEDULER), made(KVConnectorRole.WORKER)
    check_is_idle(scheduling, working, made_request("any", text(4, 1)))
    assert len(told) == 1 and "head_size_v" in told[0]


# ---- Metrics ----

def test_a_gauge_has_the_last_value_and_a_counter_the_sum():
    stats = Stats(data={"stored_blocks": 2, "node_up": 1}).aggregate(Stats(data={"stored_blocks": 3, "node_up": 0}))
    assert stats.data == {"stored_blocks": 5, "node_up": 0}


def test_gauges_are_shown_as_gauges():
    kinds = {kind: kind for kind in (prometheus_client.Gauge, prometheus_client.Counter, prometheus_client.Histogram)}
    shown = PromMetrics(engine(GROUPS)[0], kinds, ["engine"], {0: ["0"]})
    shown.observe({"node_up": 1, "unsupported": 1, "stored_blocks": 4})
    shown.observe({"node_up": 0, "stored_blocks": 4})
    registry = prometheus_client.REGISTRY
    assert registry.get_sample_value("vllm:aquifer_node_up", {"engine": "0"}) == 0
    assert registry.get_sample_value("vllm:aquifer_unsupported", {"engine": "0"}) == 1
    assert registry.get_sample_value("vllm:aquifer_stored_blocks_total", {"engine": "0"}) == 8
    assert set(shown._gauges) == set(GAUGES)


# ---- A node that goes and comes back ----

class Told:
    def __init__(self, monkeypatch):
        self.lines = []
        for level in ("info", "warning"):
            monkeypatch.setattr(node_link.logger, level,
                                lambda said, *args, level=level: self.lines.append((level, said % args)))

    def count(self, level, words):
        return sum(1 for known, line in self.lines if known == level and words in line)


@pytest.mark.parametrize("way", ["killed", "hung"])
def test_a_node_that_goes_and_comes_back_is_seen_and_told_of_once(tmp_path, monkeypatch, way):
    monkeypatch.setattr(node_link, "_RETRY_SECONDS", 0.05)
    monkeypatch.setattr(node_link, "_CALL_SECONDS", 1.0 if way == "hung" else 20.0)
    told, wait = Told(monkeypatch), aquifer.cache.wait_for
    place = aquifer.Node(str(tmp_path / "node.sock"), dram="128MiB")
    hand = Hand(place.socket)

    def gauge(value):
        stats = hand.scheduler.take_stats()
        return stats is not None and stats.data.get("node_up") == value
    wait(lambda: gauge(1), 30)
    assert hand.scheduler.take_stats() is None  # Told once.
    assert told.count("info", "answers") == 1
    pid = node_process(place._process.pid)
    if way == "hung":
        stand_still(pid)
    else:
        os.kill(pid, signal.SIGKILL)
        place._process.wait(30)
    wait(lambda: gauge(0), 60)
    assert told.count("warning", "there is no node") >= 1 and told.count("info", "the node is back") == 0
    if way == "hung":
        os.kill(pid, signal.SIGCONT)
    else:
        place.start_again()
    wait(lambda: gauge(1), 60)
    assert told.count("info", "the node is back") == 1
    hand.close()
    place.close()


def test_an_engine_without_a_node_says_so_and_that_one_has_come(tmp_path, monkeypatch):
    monkeypatch.setattr(node_link, "_RETRY_SECONDS", 0.05)
    told, wait = Told(monkeypatch), aquifer.cache.wait_for
    link = node_link.NodeLink(None, _layout(), connector.read_settings({"socket": str(tmp_path / "node.sock")}), "by hand")
    wait(lambda: told.count("warning", "there is no node"), 30)
    assert not link.is_up
    with aquifer.Node(str(tmp_path / "node.sock"), dram="128MiB"):
        wait(lambda: link.is_up, 60)
        assert told.count("info", "node.sock answers") == 1
        link.close()
    assert told.count("warning", "there is no node") == 1  # However often it was tried.


def _layout():
    group = aquifer.KvGroup(layers=1, kv_heads=2, key_dim=8, value_dim=8, dtype=aquifer.DType.FLOAT32)
    return aquifer.Layout(model=bytes(32), kv_format="by hand", tokens_per_block=32, groups=(group,))


def test_a_mistake_in_params_is_counted_and_not_stored(tmp_path, monkeypatch):
    place = aquifer.Node(str(tmp_path / "node.sock"), dram="128MiB")
    hand = Hand(place.socket)
    hand.scheduler.take_stats()
    wrong = made_request("wrong", text(4, 1), kv_transfer_params={"aquifer": {"stor": False, "prio": 1}})
    assert hand.compute_and_end(wrong, list(range(8))) is False
    assert hand.scheduler.take_stats().data["invalid_params"] == 2
    right = made_request("right", text(4, 2), kv_transfer_params={"aquifer": {"ttl_seconds": 60}})
    assert hand.compute_and_end(right, list(range(8))) is True
    assert "invalid_params" not in (hand.scheduler.take_stats() or Stats()).data
    hand.close()
    place.close()
