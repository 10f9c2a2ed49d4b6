"""The cache from Python, over a real node and inside the process."""
from __future__ import annotations

import itertools
import os
import resource
import select
import signal
import subprocess
import sys
import threading

import pytest

import aquifer
from conftest import TOKENS, chain_of, node_process, stand_still

BLOCKS = 4


def _slots(cache, chain, parent):
    """Slots for all blocks, once their memory is ready."""
    while True:
        slots = cache.reserve(chain, parent)
        if all(slot.outcome != aquifer.Outcome.REFUSED for slot in slots):
            return slots
        assert {slot.refusal for slot in slots} <= {"none", "warming"}
        cache.abort(slots)


def _store(cache, chain, parent):
    slots = _slots(cache, chain, parent)
    for number, slot in enumerate(slots):
        assert slot.outcome == aquifer.Outcome.SLOT
        slot.data[:] = bytes([number + 1]) * len(slot.data)
    assert cache.commit(slots) == [True] * len(slots)


def test_blocks_come_back_as_they_were_stored(any_cache, layout):
    chain = chain_of(any_cache, layout, range(BLOCKS * 16))
    assert any_cache.match(chain) == aquifer.Match(0, 0, 0.0, 0.0, ())
    _store(any_cache, chain, layout.root())

    found = any_cache.match(chain)
    assert found.matched == found.pays == BLOCKS
    assert [(run.first, run.count, run.tier, run.state) for run in found.runs] == [
        (0, BLOCKS, aquifer.Tier.DRAM, aquifer.RunState.READY)]
    assert any_cache.match(chain, have=1).matched == BLOCKS - 1
    with any_cache.fetch(chain) as blocks:
        for number, block in enumerate(blocks):
            assert block.why == "ok" and block.tier == aquifer.Tier.DRAM
            assert bytes(block.data) == bytes([number + 1]) * layout.block_bytes()
            assert block.data.readonly
        assert number == BLOCKS - 1
        assert any_cache.stats().counters["lent_slots"] == BLOCKS
    assert any_cache.stats().counters["lent_slots"] == 0


def test_a_fetch_that_is_left_early_gives_everything_back(cache, layout):
    chain = chain_of(cache, layout, range(BLOCKS * 16))
    _store(cache, chain, layout.root())
    for _ in range(20):
        with cache.fetch(chain) as blocks:
            next(iter(blocks))
        cache.fetch(chain).close()
    aquifer.cache.wait_for(lambda: cache.stats().counters["lent_slots"] == 0, 20)


def test_a_fetch_that_is_dropped_gives_everything_back(cache, layout):
    chain = chain_of(cache, layout, range(BLOCKS * 16))
    _store(cache, chain, layout.root())
    for taken in range(BLOCKS + 1):
        list(itertools.islice(cache.fetch(chain), taken))
        aquifer.cache.wait_for(lambda: cache.stats().counters["lent_slots"] == 0, 20)


def test_data_stays_lent_for_as_long_as_somebody_looks_at_it(cache, layout):
    chain = chain_of(cache, layout, range(BLOCKS * 16))
    _store(cache, chain, layout.root())
    parts = [block.data[:8] for block in cache.fetch(chain)]
    assert cache.stats().counters["lent_slots"] == BLOCKS
    assert cache.evict(chain) == BLOCKS
    _store(cache, chain_of(cache, layout, range(1, 1 + BLOCKS * 16)), layout.root())
    assert [bytes(part) for part in parts] == [bytes([number + 1]) * 8 for number in range(BLOCKS)]
    del parts[1:]
    assert cache.stats().counters["lent_slots"] == BLOCKS  # All of a fetch go together.
    parts.clear()
    aquifer.cache.wait_for(lambda: cache.stats().counters["lent_slots"] == 0, 20)


def test_misses_are_answers(cache, layout):
    chain = chain_of(cache, layout, range(BLOCKS * 16))
    with cache.fetch(chain) as blocks:
        assert [block.why for block in blocks] == ["not found"] * BLOCKS


def test_care_reaches_the_blocks(any_cache, layout):
    chain = chain_of(any_cache, layout, range(BLOCKS * 16))
    _store(any_cache, chain, layout.root())
    assert any_cache.pin(chain, 60) == BLOCKS
    any_cache.hint(chain, "talk", aquifer.SessionState.WILL_CONTINUE, priority=3, durable=True, return_seconds=60)
    assert any_cache.prestage(session="talk") == (BLOCKS, BLOCKS)
    for tokens in range(1000, 1020):
        any_cache.report_prefill(chain.registered, tokens, 0, tokens * 0.25)
    found = any_cache.match(chain)
    assert found.recompute_ms > 0
    assert any_cache.evict(session="talk") == BLOCKS
    assert any_cache.match(chain).matched == 0
    with pytest.raises(aquifer.NotFound):
        any_cache.evict(session="nobody")
    for call in (any_cache.evict, any_cache.prestage):
        with pytest.raises(aquifer.Invalid, match="NUL"):
            call(session="talk\0of others")


def test_what_was_flushed_survives_a_restart(tmp_path, layout):
    socket = str(tmp_path / "node.sock")
    drive = str(tmp_path / "drive")
    os.mkdir(drive)
    with aquifer.Node(socket, dram="256MiB", nvme=[drive + ":512MiB"]) as node, node.connect() as cache:
        chain = chain_of(cache, layout, range(BLOCKS * 16))
        _store(cache, chain, layout.root())
        cache.flush(aquifer.Tier.NVME)
    with aquifer.Node(socket, dram="256MiB", nvme=[drive + ":512MiB"]) as node, node.connect() as cache:
        chain = chain_of(cache, layout, range(BLOCKS * 16))
        assert [run.tier for run in cache.match(chain).runs] == [aquifer.Tier.NVME]
        with cache.fetch(chain, timeout=30) as blocks:
            assert [block.data[0] for block in blocks] == [1, 2, 3, 4]


def test_a_client_survives_its_node(tmp_path, layout):
    socket = str(tmp_path / "node.sock")
    node = aquifer.Node(socket, dram="128MiB")
    cache = node.connect()
    chain = chain_of(cache, layout, range(BLOCKS * 16))
    node.close()
    with pytest.raises(aquifer.Unavailable):
        cache.match(chain)
    with aquifer.Node(socket, dram="128MiB"):
        def back():
            try:
                return cache.match(chain).matched == 0
            except aquifer.Unavailable:
                return False
        aquifer.cache.wait_for(back, 30)
    cache.close()


def test_errors_say_what_to_do(cache, layout, tmp_path):
    with pytest.raises(aquifer.Unavailable, match="no node answers"):
        aquifer.connect(str(tmp_path / "nowhere.sock"))
    with pytest.raises(aquifer.Invalid, match="32 bytes"):
        aquifer.Chain(cache.register(layout), b"short")
    with pytest.raises(aquifer.Invalid):
        cache.match(aquifer.Chain(aquifer.Registered(4711, layout), bytes(32)))
    with pytest.raises(aquifer.Invalid, match="priority"):
        cache.hint(aquifer.Chain(cache.register(layout), bytes(32)), "talk", priority=9)
    with pytest.raises(aquifer.Invalid, match="return_seconds"):
        cache.hint(aquifer.Chain(cache.register(layout), bytes(32)), "talk", return_seconds=-1)
    with pytest.raises(aquifer.Unavailable, match="did not start"):
        aquifer.Node(str(tmp_path / "other.sock"), dram="nonsense")
    cache.close()
    with pytest.raises(aquifer.Unavailable, match="closed"):
        cache.stats()


def test_pending_calls_can_wait_be_cancelled_and_be_dropped(cache, layout):
    chain = chain_of(cache, layout, range(BLOCKS * 16))
    pending = cache.begin_match(chain)
    aquifer.cache.wait_for(pending.done, 20)
    assert pending.result().matched == 0
    with pytest.raises(aquifer.Invalid, match="taken"):
        pending.result()
    for _ in range(50):
        cache.begin_match(chain)
        cache.begin_prestage(chain).cancel()
    assert cache.match(chain).matched == 0


def test_a_time_that_is_over_is_not_waited_for(node, cache, layout):
    """Less than nothing is left where a deadline passed on the way. It is no word for ever."""
    chain = chain_of(cache, layout, range(4 * TOKENS))
    stand_still(node_process(node._process.pid))
    said = []

    def ask():
        with pytest.raises(aquifer.Late):
            cache.begin_match(chain).result(-0.5)
        said.append("late")
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(5)
    os.kill(node_process(node._process.pid), signal.SIGCONT)
    asking.join(60)
    assert said == ["late"]


def test_a_node_that_hangs_holds_up_a_match_for_its_timeout_alone(node, cache, layout):
    chain = chain_of(cache, layout, range(4 * TOKENS))
    assert cache.match(chain, timeout=60).matched == 0
    stand_still(node_process(node._process.pid))
    for ask in (lambda: cache.match(chain, timeout=0.05), lambda: cache.stats(timeout=0.05)):
        with pytest.raises(aquifer.Late):
            ask()
    os.kill(node_process(node._process.pid), signal.SIGCONT)
    assert cache.match(chain, 0, 60).matched == 0


def test_a_process_with_many_files_waits_all_the_same(node, cache, layout):
    """Node and pool hold thousands, and select() knows 1024."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1024)]
    try:
        with node.connect() as late:
            assert late.fileno() >= 1024
            chain = chain_of(late, layout, range(4 * TOKENS))
            stand_still(node_process(node._process.pid))
            threading.Timer(0.5, os.kill, [node_process(node._process.pid), signal.SIGCONT]).start()
            assert [block.why for block in late.fetch(chain, timeout=30.0)] == ["not found"] * 4
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_whoever_has_time_may_wait_for_ever(any_cache, layout):
    chain = chain_of(any_cache, layout, range(4 * TOKENS))
    assert any_cache.begin_match(chain).result(float("inf")).matched == 0
    assert [block.why for block in any_cache.fetch(chain, timeout=float("inf"))] == ["not found"] * 4


def test_threads_have_clients_of_their_own(cache, layout):
    failures = []

    def work(number):
        try:
            with cache.join() as mine:
                chain = chain_of(mine, layout, range(number * 1000, number * 1000 + BLOCKS * 16))
                for _ in range(20):
                    mine.match(chain)
                _store(mine, chain, layout.root())
                assert mine.match(chain).matched == BLOCKS
        except Exception as error:  # Shown by the assertion below.
            failures.append(error)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_child_process_makes_its_own(cache, layout):
    pid = os.fork()
    if pid == 0:
        try:
            cache.stats()
        except aquifer.Invalid as error:
            os._exit(0 if "fork" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert cache.stats().tiers


def test_a_child_does_not_wait_for_threads_that_it_has_not(cache, layout):
    """The fork comes while another thread is in the middle of a call."""
    begun, end = threading.Event(), threading.Event()

    def call():
        with cache._lock:
            begun.set()
            end.wait(60)
    thread = threading.Thread(target=call)
    thread.start()
    assert begun.wait(60)
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        try:
            cache.stats()
        except aquifer.Invalid:
            cache.close()
            os._exit(0)
        os._exit(1)
    _, status = os.waitpid(pid, 0)
    end.set()
    thread.join()
    assert status == 0
    assert cache.stats().counters  # Nothing was taken from the parent.


def test_a_private_node_ends_with_the_process_that_started_it(tmp_path):
    socket = str(tmp_path / "node.sock")
    code = f"""import aquifer, os
aquifer.Node({socket!r}, dram='128MiB')
print(aquifer.Node(dram='128MiB').socket, flush=True)
os._exit(0)"""
    other = subprocess.run([sys.executable, "-c", code], check=True, text=True, stdout=subprocess.PIPE).stdout.strip()

    def gone():
        try:
            aquifer.connect(socket, timeout=1.0).close()
            return False
        except aquifer.Late:
            return False
        except aquifer.Unavailable:
            return True
    aquifer.cache.wait_for(gone, 30)
    aquifer.cache.wait_for(lambda: not os.path.exists(os.path.dirname(other)), 30)


@pytest.mark.parametrize("socket", [None, "node.sock"])
def test_a_private_node_that_does_not_start_says_why(tmp_path, socket):
    """Also where its folder, with what it said, goes when it ends."""
    with pytest.raises(aquifer.Unavailable, match="did not start:\n.*lots"):
        aquifer.Node(socket and str(tmp_path / socket), dram="lots")


def test_a_private_node_whose_keeper_was_killed_is_started_again():
    """Nobody has taken the folder away."""
    node = aquifer.Node(dram="128MiB")
    last = node_process(node._process.pid)
    node._process.kill()
    node._process.wait(30)
    assert not node.running()
    ended = os.pidfd_open(last)
    os.kill(last, signal.SIGKILL)
    assert select.select([ended], [], [], 30)[0]  # Only then has it let go of its socket.
    os.close(ended)
    node.start_again()
    node.connect().close()
    node.close()
    assert not os.path.exists(os.path.dirname(node.socket))


def test_a_private_node_drains_though_its_engine_is_killed_with_all_its_descendants(tmp_path, layout):
    """So vLLM ends an engine that takes longer than five seconds to end by itself."""
    psutil = pytest.importorskip("psutil")
    drive = f"{tmp_path}/drive:512MiB"
    code = f"""import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})
import aquifer, test_cache, time
from conftest import *
layout = layout.__wrapped__()
node = aquifer.Node(dram='128MiB', nvme=[{drive!r}])
cache = node.connect()
chain = chain_of(cache, layout, range(test_cache.BLOCKS * 16))
test_cache._store(cache, chain, layout.root())
print(node.socket, flush=True)
time.sleep(600)"""
    engine = subprocess.Popen([sys.executable, "-c", code], text=True, stdout=subprocess.PIPE)
    folder = os.path.dirname(engine.stdout.readline().strip())
    assert os.path.exists(folder)
    for process in [*psutil.Process(engine.pid).children(recursive=True), engine]:
        process.kill()
    engine.wait()
    aquifer.cache.wait_for(lambda: not os.path.exists(folder), 60)
    with aquifer.Node(str(tmp_path / "node.sock"), dram="128MiB", nvme=[drive]) as node, node.connect() as cache:
        assert cache.match(chain_of(cache, layout, range(BLOCKS * 16))).matched == BLOCKS


def test_a_private_node_that_hangs_is_ended_within_a_bound_and_leaves_no_folder(monkeypatch):
    monkeypatch.setattr(aquifer.node, "_DRAIN_SECONDS", 1)
    node = aquifer.Node(dram="128MiB")
    ended = os.pidfd_open(node_process(node._process.pid))
    stand_still(node_process(node._process.pid))
    node.close()
    assert select.select([ended], [], [], 0)[0]
    os.close(ended)
    assert not node.running() and not os.path.exists(os.path.dirname(node.socket))


def test_observing_finds_and_stores_nothing(node, layout):
    with node.connect() as cache:
        chain = chain_of(cache, layout, range(BLOCKS * 16))
        _store(cache, chain, layout.root())
        assert cache.match(chain).matched == BLOCKS
    with node.connect(observe=True) as cache:
        assert cache.match(chain_of(cache, layout, range(BLOCKS * 16))).matched == 0
        chain = chain_of(cache, layout, range(1000, 1000 + BLOCKS * 16))
        assert {slot.outcome for slot in cache.reserve(chain, layout.root())} == {aquifer.Outcome.REFUSED}


def test_doctor_tells_about_the_package():
    done = subprocess.run([sys.executable, "-m", "aquifer", "doctor"], text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"aquifer {aquifer.__version__}" in done.stdout
    assert "memory speed" in done.stdout
