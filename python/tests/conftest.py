"""Fixtures that tests share: a node of their own on a socket in a temporary directory, and a small layout."""
from __future__ import annotations

import hashlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

# The processes of an engine read thousands of modules each: compiled once, a start takes a third of the time.
sys.dont_write_bytecode = False
sys.pycache_prefix = str(pathlib.Path(__file__).resolve().parents[2] / "build" / "pycache")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix



def avoid_broken_tiles():
    """Some virtual machines name AMX among what their processor can do and end whoever uses it: torch, in bfloat16."""
    if "amx_bf16" not in pathlib.Path("/proc/cpuinfo").read_text() or "ONEDNN_MAX_CPU_ISA" in os.environ:
        return
    multiply = ("import torch\n"
                "torch.nn.Linear(64, 128).bfloat16()(torch.zeros(128, 64).bfloat16())")
    tried = subprocess.run([sys.executable, "-c", multiply], stderr=subprocess.DEVNULL, check=False)
    if tried.returncode == -signal.SIGILL:
        os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_BF16"


avoid_broken_tiles()

import aquifer  # noqa: E402
from aquifer._native import program_path  # noqa: E402

TOKENS = 16


def pytest_collection_modifyitems(config, items):
    """./test NAME-FILTER."""
    wanted = os.environ.get("AQUIFER_TEST_FILTER")
    if wanted:
        left = [item for item in items if not re.search(wanted, item.name)]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if re.search(wanted, item.name)]


def node_process(keeper):
    """The node below the shell that keeps it."""
    for pid in pathlib.Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split():
        try:
            if os.path.samefile(f"/proc/{pid}/exe", program_path()):
                return int(pid)
        except OSError:
            pass  # It has just ended.
    raise AssertionError("there is no node")


def stand_still(pid):
    """Stops a process, and returns when no thread of it runs any more: it goes on for a moment after the signal."""
    os.kill(pid, signal.SIGSTOP)
    aquifer.cache.wait_for(lambda: all(stat.read_text().rpartition(")")[2].split()[0] == "T"
                                       for stat in pathlib.Path(f"/proc/{pid}/task").glob("*/stat")), 60)


@pytest.fixture
def node(tmp_path):
    with aquifer.Node(str(tmp_path / "node.sock"), dram="256MiB") as started:
        yield started


@pytest.fixture
def cache(node):
    with node.connect() as connected:
        yield connected


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory):
    with aquifer.Node(str(tmp_path_factory.mktemp("node") / "node.sock"), dram="512MiB") as started:
        yield started


@pytest.fixture
def client(shared_node):
    """Of a node that a module's tests share; it has nothing at first."""
    with shared_node.connect() as connected:
        connected.evict(everything=True)
        yield connected


@pytest.fixture(params=["node", "embedded"])
def any_cache(request, tmp_path):
    """Both ways to have a cache do the same."""
    if request.param == "node":
        with aquifer.Node(str(tmp_path / "node.sock"), dram="256MiB") as started, started.connect() as made:
            yield made
    else:
        with aquifer.open_cache(dram_bytes=256 << 20) as made:
            yield made


@pytest.fixture
def layout():
    return aquifer.Layout(
        model=hashlib.sha256(b"a model").digest(), kv_format="test", tokens_per_block=TOKENS,
        groups=(aquifer.KvGroup(layers=2, kv_heads=2, key_dim=64, value_dim=64,
                                dtype=aquifer.DType.FLOAT32),))


def chain_of(cache, layout, tokens):
    keys = aquifer.derive_keys(layout.root(cache.tenant), tokens, layout.tokens_per_block)
    return aquifer.Chain(cache.register(layout), keys)


@pytest.fixture
def running(monkeypatch):
    """Call it: a vLLM engine has started by then. Times of files are in the past, but for what is done later."""
    from aquifer.vllm import identity
    monkeypatch.setattr(identity, "_CLOCK_SECONDS", 0.0)
    started = []

    def start():
        time.sleep(0.1)  # A file's time is a little older than the clock's.
        started.append(time.time())
        monkeypatch.setattr(identity, "_started", lambda: started[0])
        time.sleep(0.1)
    return start
