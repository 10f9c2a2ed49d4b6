"""What a request of vLLM's asks of the cache, and what a user may set: no engine is started."""
import types

import pytest

pytest.importorskip("vllm")
import aquifer  # noqa: E402
from aquifer.cache import SessionState  # noqa: E402
from aquifer.vllm.hints import Wishes, read_wishes  # noqa: E402
from aquifer.vllm.settings import read_settings  # noqa: E402


def request(params=None, session_id=None, hints=None):
    return types.SimpleNamespace(kv_transfer_params=params, session_id=session_id, kv_hints=hints)


def envelope(*actions):
    from vllm.v1.kv_hints import KvHintAction, KvHintsEnvelope
    return KvHintsEnvelope("0.1", "message", [KvHintAction("id", kind, version, payload)
                                              for kind, version, payload in actions])


def test_a_request_that_says_nothing_wishes_nothing():
    wishes = read_wishes(request())
    assert wishes == Wishes() and not wishes.for_the_node and wishes.store


def test_params_become_wishes():
    wishes = read_wishes(request({"aquifer": {"session": "chat", "priority": 99, "ttl_seconds": 60, "store": False,
                                              "finished": True, "pin_seconds": 5}}))
    assert wishes == Wishes("chat", SessionState.FINISHED, 7, 60, 5, False)
    assert wishes.for_the_node


@pytest.mark.parametrize("params", [7, {"aquifer": 7}, {"aquifer": {"session": ["x"], "priority": "high"}},
                                    {"aquifer": {"ttl_seconds": float("nan"), "pin_seconds": True}},
                                    {"kv_hint": 7}, {"kv_hint": {"actions": [7, None, {"action_type": 7}]}}])
def test_what_makes_no_sense_is_left_out(params):
    assert read_wishes(request(params)) == Wishes()


def test_names_are_cut_and_can_be_written():
    halves = [read_wishes(request(session_id=f"chat {half}")).session for half in ("\ud800", "\ud801", "?")]
    assert len(set(halves)) == 3 and all(name.encode().startswith(b"chat ") for name in halves)
    assert read_wishes(request(session_id="ä" * 128)).session == "ä" * 128
    names = [read_wishes(request(session_id="ä" * 200 + end)).session for end in ("1", "2", "2")]
    assert all(len(name.encode()) <= 256 and name.startswith("ä" * 100) for name in names)
    assert names[0] != names[1] == names[2]
    assert read_wishes(request({"aquifer": {"session": "a\0b"}}, session_id="a\0c")) == Wishes()


def test_vllms_own_session_is_taken_where_there_is_no_other():
    assert read_wishes(request(session_id="theirs")).session == "theirs"
    assert read_wishes(request({"aquifer": {"session": "ours"}}, "theirs")).session == "ours"


@pytest.mark.parametrize("through", ["engine", "http"])
def test_an_envelope_becomes_wishes_and_what_is_unknown_is_ignored(through):
    actions = [("kv.fetch", "1.0", {"block_hashes": [1]}), ("kv.dance", "1.0", {"session": "x"}),
               ("aquifer.retain", "1.2", {"session": "chat", "ttl_seconds": 60, "return_seconds": 90, "durable": True}),
               ("aquifer.retain", "2.0", {"session": "another version"}),
               ("aquifer.pin", "1.0", {"seconds": 30}), ("aquifer.prefetch", "1.0", {"session": "next"}),
               ("aquifer.prefetch", "1.0", {"session": 7})]
    if through == "engine":
        asked = request(hints=envelope(*actions))
    else:
        names = ("action_type", "action_version", "payload")
        asked = request({"kv_hint": {"actions": [dict(zip(names, action)) for action in actions]}})
    assert read_wishes(asked) == Wishes("chat", ttl_seconds=60, pin_seconds=30, prefetch=("next",),
                                        return_seconds=90, durable=True)


def test_one_request_prefetches_so_many_conversations_and_no_more():
    hints = envelope(*[("aquifer.prefetch", "1.0", {"session": f"chat {number}"}) for number in range(100)])
    assert read_wishes(request(hints=hints)).prefetch == tuple(f"chat {number}" for number in range(16))


def test_what_has_no_name_is_not_durable():
    """By which name would it be found?"""
    assert read_wishes(request({"aquifer": {"durable": True}})) == Wishes()


def test_what_a_request_says_itself_goes_before_an_envelope():
    hints = envelope(("aquifer.retain", "1.0", {"session": "theirs", "priority": 3}))
    wishes = read_wishes(request({"aquifer": {"session": "ours"}}, hints=hints))
    assert (wishes.session, wishes.priority) == ("ours", 3)


# ---- Settings ----

@pytest.mark.parametrize("given, named", [
    ({"sokcet": "x"}, "'socket'"), ({"spawn": True, "socket": "x"}, "spawn"), ({"deadline_ms": "soon"}, "deadline_ms"),
    ({"spawn": True, "tenant": "acme"}, "tenant"), ({"token_file": "/nowhere/token"}, "token_file"),
    ({"observe": 1}, "observe"), ({"deadline_ms": -1}, "deadline_ms"), ({"deadline_ms": float("inf")}, "deadline_ms"),
    ({"deadline_ms": float("nan")}, "deadline_ms"), ({"spawn": True, "spawn_nvme": 5}, "spawn_nvme"),
    ({"spawn": True, "spawn_nvme": ["/drive", 5]}, "spawn_nvme")])
def test_settings_that_are_wrong_are_named(given, named):
    with pytest.raises(aquifer.Invalid, match=named):
        read_settings(given)


def test_settings_are_read(tmp_path):
    assert read_settings({"deadline_ms": 20}).deadline_ms == 20.0
    assert read_settings({"spawn": True, "spawn_nvme": "/drive"}).spawn_nvme == ("/drive",)
    token = tmp_path / "token"
    token.write_text("secret\n")
    settings = read_settings({"token_file": str(token), "tenant": "acme"})
    assert settings.token() == "secret"
    token.write_text("another\n")
    assert settings.token() == "another"
    token.unlink()
    with pytest.raises(aquifer.Invalid):
        settings.token()
