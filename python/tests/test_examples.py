"""The Python programs in examples/ run as they stand, with a cache of their own and with a node."""
from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


def run(name, *arguments, **environment):
    done = subprocess.run([sys.executable, str(EXAMPLES / name), *arguments], text=True, capture_output=True,
                          env={**os.environ, **environment}, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_every_python_example_is_run_here():
    assert {path.name for path in EXAMPLES.glob("*.py")} == {"recall.py", "transformers_recall.py"}


@pytest.mark.parametrize("way", ["embedded", "node"])
def test_recall(way, request):
    pytest.importorskip("numpy")
    node = request.getfixturevalue("node") if way == "node" else None
    lines = run("recall.py", "--node", AQUIFER_SOCKET=node.socket) if node else run("recall.py")
    assert [line for line in lines if not line.startswith(" ")] == [
        "first: 0 of 1000 tokens recalled, right", "again: 768 of 1000 tokens recalled, right",
        "goes on: 768 of 1500 tokens recalled, right", "again: 1280 of 1500 tokens recalled, right"]
    if node:  # Another process recalls what the first has stored.
        assert run("recall.py", "--node", AQUIFER_SOCKET=node.socket)[0] == "first: 768 of 1000 tokens recalled, right"


def test_transformers_recall():
    pytest.importorskip("transformers")
    lines = run("transformers_recall.py")
    recalled = [int(line.split()[2]) for line in lines if line.startswith("turn")]
    # Once computing was timed, a load must pay: on a host that is busy it may not.
    assert recalled[0] == 0 and len(recalled) == 3 and recalled[1] in (0, 1280), lines
