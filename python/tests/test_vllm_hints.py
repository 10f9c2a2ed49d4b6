"""Wishes of vLLM's requests, and the settings of a user: no engine is started."""
import types

import pytest

pytest.importorskip("vllm")
import aquifer  # noqa: E402
from aquifer.cache import SessionState  # noqa: E402
from aquifer.vllm import hints  # noqa: E402
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


@pytest.mark.parametrize("params, said", [
    ({"aquifer": {"store": "false"}}, "store cannot be 'false'"), ({"aquifer": {"store": 0}}, "store cannot be 0"),
    ({"aquifer": {"ttl_seconds": "60"}}, "ttl_seconds cannot be '60'"),
    ({"aquifer": {"ttl_seconds": -1}}, "ttl_seconds"), ({"aquifer": {"ttl_seconds": 0}}, "ttl_seconds"),
    ({"aquifer": {"ttl_seconds": True}}, "ttl_seconds"), ({"aquifer": {"ttl_seconds": float("nan")}}, "ttl_seconds"),
    ({"aquifer": {"stor": False}}, "'stor' is unknown (is it 'store'?)"),
    ({"aquifer": {"ttl": 60}}, "'ttl' is unknown"), ({"aquifer": {7: 8}}, "7 is unknown"),
    ({"aquifer": 7}, "aquifer cannot be 7"), ({"aquifer": '{"store": false}'}, "aquifer cannot be"),
    ({"aquifier": {"store": False}}, "'aquifier' is unknown (is it 'aquifer'?)"),
    ({"Aquifer": {"store": False}}, "'Aquifer' is unknown (is it 'aquifer'?)"),
    ({"store": False}, "store stands beside"), ({"ttl_seconds": 60}, "ttl_seconds stands beside"),
    (7, "all of it is 7"), ({"kv_hint": 7}, "no list of actions"), ({"kv_hint": {"actions": [7]}}, "is 7"),
    ({"kv_hint": {"actions": [{"action_type": "aquifer.retian", "action_version": "1.0", "payload": {}}]}}, "retian"),
    ({"kv_hint": {"actions": [{"action_type": "aquifer.retain", "action_version": "2.0", "payload": {}}]}}, "2.0"),
    ({"kv_hint": {"actions": [{"action_type": "aquifer.retain", "action_version": "1.0",
                               "payload": {"store": "no"}}]}}, "store cannot be 'no'")])
def test_a_mistake_that_may_have_been_to_limit_storing_keeps_the_request_from_being_stored(params, said):
    wishes = read_wishes(request(params))
    ((_, mistake),) = wishes.mistakes
    assert wishes == Wishes(store=False, mistakes=wishes.mistakes)
    assert said in mistake and mistake.endswith("the request is not stored")


@pytest.mark.parametrize("name, value", [("priority", "high"), ("session", ["x"]), ("pin_seconds", True),
                                         ("return_seconds", -1), ("finished", "yes"), ("durable", 1)])
def test_a_mistake_that_limits_nothing_is_left_out_and_told(name, value):
    wishes = read_wishes(request({"aquifer": {name: value, "ttl_seconds": 60}}))
    ((kind, mistake),) = wishes.mistakes
    assert wishes == Wishes(ttl_seconds=60, mistakes=wishes.mistakes)
    assert kind == name and name in mistake and mistake.endswith("left out")


@pytest.mark.parametrize("params", [
    {"do_remote_prefill": True, "remote_host": "10.0.0.1", "remote_block_ids": [1]}, {"aquifer": None},
    {"aquifer": {"store": None, "ttl_seconds": None}}, {"aquifer": {}}, {"kv_hint": None},
    {"kv_hint": {"actions": [{"action_type": "kv.dance", "action_version": "9", "payload": 7}]}}])
def test_params_of_others_and_empty_values_are_no_mistake(params):
    assert read_wishes(request(params)) == Wishes()


def test_a_lifetime_is_never_rounded_to_none():
    assert read_wishes(request({"aquifer": {"ttl_seconds": 0.25}})).ttl_seconds == 1


def test_a_request_of_many_mistakes_is_read_to_the_eighth(monkeypatch):
    looked = []
    monkeypatch.setattr(hints.difflib, "get_close_matches", lambda *args: looked.append(args) or [])
    named = {f"name {number}": 1 for number in range(100_000)}
    wishes = read_wishes(request({**named, "aquifer": named}))
    assert not wishes.store and len(wishes.mistakes) == 8
    assert len(looked) <= 8 + 64  # And of others' params the first 64 are compared with "aquifer".


def test_each_kind_of_mistake_is_warned_of_once_and_32_kinds_at_most(monkeypatch):
    told = []
    monkeypatch.setattr(hints.logger, "warning", lambda said, *args: told.append(said % args))
    warnings = hints.Warnings()
    for value in ("a", "b"):
        warnings.tell(read_wishes(request({"aquifer": {"store": value}})).mistakes)
    assert len(told) == 1 and "store cannot be 'a': the request is not stored" in told[0]
    for number in range(100):
        warnings.tell(read_wishes(request({"aquifer": {f"name {number}": 1}})).mistakes)
    assert len(told) == 32 + 1 and "only counted" in told[-1]
    assert all(len(line) < 300 for line in told)


def test_a_warning_is_short_whatever_a_client_says():
    ((_, mistake),) = read_wishes(request({"aquifer": {"store": ["x" * 10_000_000] * 3}})).mistakes
    assert len(mistake) < 300


def test_names_are_cut_and_can_be_written():
    halves = [read_wishes(request(session_id=f"chat {half}")).session for half in ("\ud800", "\ud801", "?")]
    assert len(set(halves)) == 3 and all(name.encode().startswith(b"chat ") for name in halves)
    assert read_wishes(request(session_id="ä" * 128)).session == "ä" * 128
    names = [read_wishes(request(session_id="ä" * 200 + end)).session for end in ("1", "2", "2")]
    assert all(len(name.encode()) <= 256 and name.startswith("ä" * 100) for name in names)
    assert names[0] != names[1] == names[2]
    unnamed = read_wishes(request({"aquifer": {"session": "a\0b"}}, session_id="a\0c"))
    assert unnamed.session is None and unnamed.store


def test_vllms_own_session_is_taken_where_there_is_no_other():
    assert read_wishes(request(session_id="theirs")).session == "theirs"
    assert read_wishes(request({"aquifer": {"session": "ours"}}, "theirs")).session == "ours"


@pytest.mark.parametrize("through", ["engine", "http"])
def test_an_envelope_becomes_wishes_and_what_is_unknown_is_ignored(through):
    actions = [("kv.fetch", "1.0", {"block_hashes": [1]}), ("kv.dance", "1.0", {"session": "x"}),
               ("aquifer.retain", "1.2", {"session": "chat", "ttl_seconds": 60, "return_seconds": 90, "durable": True}),
               ("aquifer.pin", "1.0", {"seconds": 30}), ("aquifer.prefetch", "1.0", {"session": "next"})]
    if through == "engine":
        asked = request(hints=envelope(*actions))
    else:
        names = ("action_type", "action_version", "payload")
        asked = request({"kv_hint": {"actions": [dict(zip(names, action)) for action in actions]}})
    assert read_wishes(asked) == Wishes("chat", ttl_seconds=60, pin_seconds=30, prefetch=("next",),
                                        return_seconds=90, durable=True)


def test_one_request_prefetches_so_many_conversations_and_no_more():
    given = envelope(*[("aquifer.prefetch", "1.0", {"session": f"chat {number}"}) for number in range(100)])
    assert read_wishes(request(hints=given)).prefetch == tuple(f"chat {number}" for number in range(16))


def test_a_request_without_a_session_is_not_durable():
    """By which name would it be found?"""
    assert read_wishes(request({"aquifer": {"durable": True}})) == Wishes()


def test_params_go_before_an_envelope():
    given = envelope(("aquifer.retain", "1.0", {"session": "theirs", "priority": 3}))
    wishes = read_wishes(request({"aquifer": {"session": "ours"}}, hints=given))
    assert (wishes.session, wishes.priority) == ("ours", 3)


# ---- Settings ----

@pytest.mark.parametrize("given, named", [
    ({"sokcet": "x"}, "'socket'"), ({"spawn": True, "socket": "x"}, "spawn"), ({"deadline_ms": "soon"}, "deadline_ms"),
    ({"spawn": True, "tenant": "acme"}, "tenant"), ({"token_file": "/nowhere/token"}, "token_file"),
    ({"observe": 1}, "observe"), ({"deadline_ms": -1}, "deadline_ms"), ({"deadline_ms": float("inf")}, "deadline_ms"),
    ({"deadline_ms": float("nan")}, "deadline_ms"), ({"spawn": True, "spawn_nvme": 5}, "spawn_nvme"),
    ({"spawn": True, "spawn_nvme": ["/drive", 5]}, "spawn_nvme"), ({"unsupported": "ignore"}, "unsupported"),
    ({"unsupported": False}, "unsupported")])
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
