"""`aquifer bench vllm` without engines: what becomes of their answers, and of those that do not answer."""
import pathlib
import types

import pytest

pytest.importorskip("vllm")
from aquifer.vllm import bench  # noqa: E402


@pytest.fixture
def engine(monkeypatch, tmp_path):
    """Call it with a shell's text, which is the engine's process; `$answers` is where it answers."""
    def start(text):
        program = tmp_path / "python"
        find = """answers=/dev/fd/$(grep -o '"answers": [0-9]*' <<< "$4" | grep -o '[0-9]*')"""
        program.write_text(f"#!/bin/bash\n{find}\n{text}")
        program.chmod(0o755)
        monkeypatch.setattr(bench.sys, "executable", str(program))
        return bench._Engine("a fake", "no model", tmp_path / "engine", None)
    return start


@pytest.mark.parametrize("text, said", [("echo why; exit 3", "ended:\nwhy"),
                                        ("echo why; sleep 600", "did not answer within 2 s:\nwhy"),
                                        ("printf nul > $answers; sleep 600", "did not answer within")])
def test_an_engine_that_does_not_start_ends_the_benchmark_with_words(engine, monkeypatch, text, said):
    monkeypatch.setattr(bench, "_START_SECONDS", 2.0)
    with pytest.raises(SystemExit, match="the engine with a fake " + said):
        engine(text)


@pytest.mark.parametrize("text, said", [("exit 3", "ended"), ("exec sleep 600", "did not answer within 1 s")])
def test_an_engine_that_answers_no_more_ends_the_benchmark_with_words(engine, monkeypatch, text, said):
    monkeypatch.setattr(bench, "_ANSWER_SECONDS", 1.0)
    with pytest.raises(SystemExit, match="the engine with a fake " + said):
        with engine("echo null > $answers; read; echo 7 > $answers; read; " + text) as made:
            assert made.ask("crowd", 1) == 7
            process = made._process
            made.ask("crowd", 2)
    assert process.returncode is not None
    assert not pathlib.Path(f"/proc/{process.pid}").exists()


def test_what_a_connector_costs_that_does_nothing_stands_beside_ours(monkeypatch):
    monkeypatch.setattr(bench, "_PAUSE_SECONDS", 0.0)
    engines = [types.SimpleNamespace(ask=lambda question, seed, took=took: took,
                                     hook_seconds=iter((0.0, 0.01, 0.02, 0.5, 0.51, 0.52)).__next__) for took in (0.7, 1.0, 1.25)]
    _, hooks, throughput = bench.rows()
    bench._compare_crowds(*engines, 5, hooks, throughput)
    tokens = bench._CROWD * (bench._CROWD_TOKENS + bench._CROWD_OUTPUT)
    assert (throughput.limit, throughput.ours) == pytest.approx((tokens / 0.7, tokens / 1.25))
    assert throughput.peers == pytest.approx({"a connector that does nothing": tokens})
    assert throughput.ratio == pytest.approx(0.56) and hooks.ours == pytest.approx(100 * 0.01 / 1.25)
    assert throughput.note == ("ratios of neighbours, median of 5: 0.560 (0.560 to 0.560); of a connector that does "
                               "nothing 0.700 (0.700 to 0.700)")


def test_vllm_finds_the_connector_that_does_nothing():
    assert bench.IdleConnector is bench.IdleConnector and not bench.IdleConnector.__abstractmethods__
