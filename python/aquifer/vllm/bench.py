"""The rows of `aquifer bench vllm`: what the connector gives and what it costs, with real engines on this machine.

An engine without a connector, one with a connector that does nothing, one with Aquifer and a private node, and one with
vLLM's own ExampleConnector (files in a folder) answer the same prompts in turn. The model is small and random.
"""
from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import pathlib
import random
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Optional

_PROMPT_TOKENS = 8192
_ROUNDS, _QUICK_ROUNDS = 11, 5
_CROWD, _CROWD_TOKENS, _CROWD_OUTPUT = 8, 384, 48
_START_SECONDS, _ANSWER_SECONDS, _END_SECONDS = 600, 300, 60  # An engine that takes longer hangs.
_PAUSE_SECONDS = 1.0  # An engine's threads spin for a while when there is no more to do, and its stores end.
_MODEL = dict(vocab_size=1024, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=8,
              num_key_value_heads=2, head_dim=32, max_position_embeddings=16384, initializer_range=0.12,
              bos_token_id=1, eos_token_id=2)


# ---- In the engine's processes ----

_HOOKS = ("on_new_request", "get_num_new_matched_tokens", "update_state_after_alloc", "build_connector_meta",
          "update_connector_output", "request_finished_all_groups", "handle_preemptions", "bind_connector_metadata",
          "start_load_kv", "wait_for_layer_load", "save_kv_layer", "wait_for_save", "get_transfer_results",
          "build_connector_worker_meta", "get_kv_connector_stats", "get_external_cache_hit_sources",
          "has_pending_block_frees")


def measured_connector() -> type:
    """AquiferConnector with a stopwatch around every call that an engine's thread makes. The sums are left in
    $AQUIFER_BENCH_FOLDER, one file a process, for the parent to read."""
    from . import AquiferConnector

    class MeasuredConnector(AquiferConnector):
        seconds = dict.fromkeys(_HOOKS, 0.0)
        steps = 0

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        def around(self: Any, *args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return call(self, *args, **kwargs)
            finally:
                MeasuredConnector.seconds[call.__name__] += time.perf_counter() - started
                if call.__name__ in ("build_connector_meta", "get_transfer_results"):
                    MeasuredConnector.steps += 1
                    if MeasuredConnector.steps % 16 == 0:  # Writing it costs more than it counts.
                        folder = pathlib.Path(os.environ["AQUIFER_BENCH_FOLDER"])
                        new = folder / f"new-{os.getpid()}"
                        new.write_text(json.dumps(MeasuredConnector.seconds))
                        new.replace(folder / f"hooks-{os.getpid()}")
        return around
    for name in _HOOKS:
        setattr(MeasuredConnector, name, timed(getattr(AquiferConnector, name)))
    return MeasuredConnector


def idle_connector() -> type:
    """A connector that does nothing: what an engine loses with it is vLLM's own cost of having one."""
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, SupportsHMA

    class IdleConnector(KVConnectorBase_V1, SupportsHMA):
        def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
            return 0, False

        def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
            pass

        def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
            return KVConnectorMetadata()

        def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
            return False, None

        def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
            pass

        def wait_for_layer_load(self, layer_name: str) -> None:
            pass

        def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
            pass

        def wait_for_save(self) -> None:
            pass
    return IdleConnector


_CONNECTORS = {"MeasuredConnector": measured_connector, "IdleConnector": idle_connector}


def __getattr__(name: str) -> Any:
    if name in _CONNECTORS:  # vLLM asks for them by name; nobody else needs vLLM to read this module.
        globals()[name] = _CONNECTORS[name]()
        return globals()[name]
    raise AttributeError(name)


def _tokens(count: int, seed: int) -> list[int]:
    numbers = random.Random(seed)
    return [numbers.randrange(3, 1000) for _ in range(count)]


class _Llm:
    """What the parent asks an engine to do. Each answers with what can be said in JSON."""

    def __init__(self, model: str, transfer: Optional[dict[str, Any]]):
        from vllm import LLM, SamplingParams
        self._llm = LLM(model, dtype="float32", skip_tokenizer_init=True, enforce_eager=True, seed=0,
                        max_model_len=16384, max_num_batched_tokens=16384, kv_transfer_config=transfer)
        settings = dict(temperature=0, detokenize=False, ignore_eos=True)
        self._one = SamplingParams(max_tokens=1, **settings)
        self._many = SamplingParams(max_tokens=_CROWD_OUTPUT, **settings)

    def first_token(self, seed: int) -> dict[str, Any]:
        """Of a prompt that is not in the engine's own cache."""
        self._llm.reset_prefix_cache()
        started = time.perf_counter()
        (output,) = self._llm.generate([{"prompt_token_ids": _tokens(_PROMPT_TOKENS, seed)}], self._one, use_tqdm=False)
        return {"seconds": time.perf_counter() - started, "recalled": output.num_cached_tokens or 0}

    def crowd(self, seed: int) -> float:
        """Seconds for many requests that share nothing with what was before."""
        prompts = [{"prompt_token_ids": _tokens(_CROWD_TOKENS, 1000 * seed + n)} for n in range(_CROWD)]
        started = time.perf_counter()
        self._llm.generate(prompts, self._many, use_tqdm=False)
        return time.perf_counter() - started


def _serve(arguments: dict[str, Any]) -> None:
    llm = _Llm(arguments["model"], arguments["transfer"])
    with os.fdopen(arguments["answers"], "w") as answers:  # Standard output is for whatever vLLM has to say.
        print("null", file=answers, flush=True)
        for line in sys.stdin:
            question, seed = json.loads(line)
            print(json.dumps(getattr(llm, question)(seed)), file=answers, flush=True)


# ---- In the parent ----

class _Engine:
    """An engine in a process of its own, which is there from here on; it ends with the context."""

    def __init__(self, name: str, model: str, folder: pathlib.Path, transfer: Optional[dict[str, Any]]):
        print(f"aquifer bench: an engine with {name} starts", file=sys.stderr, flush=True)
        self.folder = folder
        self._name = name
        self._hangs = False
        folder.mkdir()
        if transfer is not None:
            transfer = {"kv_role": "kv_both", "kv_load_failure_policy": "recompute", **transfer}
        # On CPUs vLLM leaves one core more without work where there is a connector, and of two cores none: then worker and
        # scheduler are in each other's way, and 0.7 of the throughput is left.
        environment = {"VLLM_CPU_NUM_OF_RESERVED_CPU": "1", **os.environ, "VLLM_CPU_KVCACHE_SPACE": "2",
                       "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING", "AQUIFER_BENCH_FOLDER": str(folder)}
        self._log = open(folder / "log", "w+")
        answers, theirs = os.pipe()
        self._answers = os.fdopen(answers, "rb", buffering=0)
        arguments = json.dumps({"model": model, "transfer": transfer, "answers": theirs})
        self._process = subprocess.Popen([sys.executable, "-m", "aquifer.vllm.bench", "--engine", arguments], text=True,
                                         stdin=subprocess.PIPE, stdout=self._log, stderr=self._log, pass_fds=[theirs],
                                         env=environment, start_new_session=True)
        os.close(theirs)
        try:
            self._answer(_START_SECONDS)
        except SystemExit:
            self.__exit__()
            raise

    def __enter__(self) -> "_Engine":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._process.communicate(timeout=0 if self._hangs else _END_SECONDS)  # The end of its input is its end.
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._answers.close()
        self._log.close()

    def ask(self, question: str, seed: int) -> Any:
        assert self._process.stdin is not None
        try:
            print(json.dumps([question, seed]), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            pass  # It is gone, which the answer tells.
        return self._answer(_ANSWER_SECONDS)

    def _answer(self, seconds: float) -> Any:
        """Ends the benchmark with words where there is none in time."""
        end, heard = time.monotonic() + seconds, b""
        while not heard.endswith(b"\n"):
            self._hangs = not select.select([self._answers], [], [], max(0.0, end - time.monotonic()))[0]
            more = b"" if self._hangs else self._answers.read(1 << 16)
            if not more:
                said = f"did not answer within {seconds:g} s" if self._hangs else "ended"
                self._log.seek(0)
                sys.exit(f"aquifer bench: the engine with {self._name} {said}:\n{self._log.read()[-3000:]}")
            heard += more
        return json.loads(heard)

    def hook_seconds(self) -> float:
        """In our hooks, over all processes of the engine."""
        return sum(sum(json.loads(file.read_text()).values()) for file in self.folder.glob("hooks-*"))


@dataclasses.dataclass
class Row:
    """A row of `aquifer bench`, in its format."""
    name: str
    unit: str
    limit_is: str
    goal: float
    limit: float = 0.0
    ours: float = 0.0
    ratio: float = 0.0
    peers: dict[str, float] = dataclasses.field(default_factory=dict)
    note: str = ""

    def json(self) -> str:
        fields = ("name", "unit", "limit", "limit_is", "ours", "ratio", "peers", "goal")
        return json.dumps({field: getattr(self, field) for field in fields} | ({"note": self.note} if self.note else {}))

    def text(self) -> str:
        peers = "".join(f"  {name} {value:.1f}" for name, value in self.peers.items())
        return (f"{self.name:<22} {self.ours:10.2f} {self.limit:10.2f} {self.unit:<9} {self.ratio:7.2f} {self.goal:6.2f}{peers}\n"
                f"    limit: {self.limit_is}" + (f"\n    {self.note}" if self.note else ""))


def rows() -> list[Row]:
    return [Row("vllm.ttft/8K-tokens", "ms", "the same prompt computed, without a connector", 1.0),
            Row("vllm.hooks", "%", "the design's figure: 1 % of an engine's time in our hooks, with nothing to recall", 1.0),
            Row("vllm.throughput", "tokens/s", "the same requests on the same cores without a connector, with nothing to "
                "recall; what one costs that does nothing is vLLM's", 0.85)]


def _measure(rounds: int) -> list[Row]:
    first, hooks, throughput = rows()
    with tempfile.TemporaryDirectory(prefix="aquifer-bench-") as scratch:
        base = pathlib.Path(scratch)
        model = str(base / "model")
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM
        torch.manual_seed(0)
        LlamaForCausalLM(LlamaConfig(**_MODEL)).save_pretrained(model)
        connector = {"kv_connector": "MeasuredConnector", "kv_connector_module_path": "aquifer.vllm.bench",
                     "kv_connector_extra_config": {"spawn": True, "spawn_dram": "1GiB"}}
        files = {"kv_connector": "ExampleConnector",
                 "kv_connector_extra_config": {"shared_storage_path": str(base / "stored")}}
        idle = {"kv_connector": "IdleConnector", "kv_connector_module_path": "aquifer.vllm.bench"}
        with _Engine("no connector", model, base / "plain", None) as plain, \
                _Engine("Aquifer", model, base / "ours", connector) as ours:
            with _Engine("a connector that does nothing", model, base / "idle", idle) as nothing:
                _compare_crowds(plain, nothing, ours, rounds, hooks, throughput)
            with _Engine("ExampleConnector", model, base / "files", files) as example:
                _compare_first_tokens(plain, ours, example, rounds, first)
    return [first, hooks, throughput]


def _compare_crowds(plain: _Engine, idle: _Engine, ours: _Engine, rounds: int, hooks: Row, throughput: Row) -> None:
    engines = (plain, idle, ours)
    for engine in engines:
        engine.ask("crowd", 1000)  # Warms everything up.
    told = [ours.hook_seconds()]
    seconds = []
    for seed in range(1, rounds + 1):
        seconds.append([_crowd_seconds(engine, seed) for engine in engines])
        told.append(ours.hook_seconds())
    hooks.limit = 1.0
    hooks.ours, said_of_hooks = _median_of([100 * (after - before) / ours_took for before, after, (_, _, ours_took)
                                            in zip(told, told[1:], seconds)])
    hooks.ratio = hooks.limit / hooks.ours
    hooks.note = f"by the clock, also while a thread waits for a core; median of {rounds}: {said_of_hooks}"
    tokens = _CROWD * (_CROWD_TOKENS + _CROWD_OUTPUT)
    throughput.limit, throughput.peers["a connector that does nothing"], throughput.ours = (
        tokens / statistics.median(column) for column in zip(*seconds))
    throughput.ratio, said = _median_of([plain_took / ours_took for plain_took, _, ours_took in seconds])
    _, said_of_idle = _median_of([plain_took / idle_took for plain_took, idle_took, _ in seconds])
    throughput.note = (f"ratios of neighbours, median of {rounds}: {said}; of a connector that does nothing "
                       f"{said_of_idle}")


def _crowd_seconds(engine: _Engine, seed: int) -> float:
    time.sleep(_PAUSE_SECONDS)
    return float(engine.ask("crowd", seed))


def _median_of(ratios: list[float]) -> tuple[float, str]:
    """And, in words, with the order statistics that hold it with a probability of 99 % (of 11) or 94 % (of 5)."""
    ratios, outside = sorted(ratios), 1 if len(ratios) >= _ROUNDS else 0
    median = statistics.median(ratios)
    return median, f"{median:.3f} ({ratios[outside]:.3f} to {ratios[-1 - outside]:.3f})"


def _compare_first_tokens(plain: _Engine, ours: _Engine, example: _Engine, rounds: int, row: Row) -> None:
    for engine in (plain, ours, example):
        for seed in range(rounds):  # Two of them store; the first of each is to warm up.
            engine.ask("first_token", seed)
    time.sleep(1.0)  # For stores that end behind the answer.
    answers = [[engine.ask("first_token", seed) for engine in (plain, ours, example)] for seed in range(rounds)]
    row.limit, row.ours, row.peers["ExampleConnector"] = (
        1000 * statistics.median(answer["seconds"] for answer in column) for column in zip(*answers))
    row.ratio = row.limit / row.ours
    recalled = [min(answer["recalled"] for answer in column) for column in zip(*answers)]
    row.note = f"of {_PROMPT_TOKENS} tokens, {recalled[1]} were recalled by us and {recalled[2]} by ExampleConnector"


def main() -> None:
    parser = argparse.ArgumentParser(prog="aquifer bench", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", metavar="NAME", nargs="*", help="beginnings of row names (default: every row)")
    parser.add_argument("--list", action="store_true", help="say which rows there are and measure nothing")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", action="store_true", help="one JSON object a line and nothing else")
    parser.add_argument("--check", action="store_true", help="fail when a row misses its goal")
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.engine:
        _serve(json.loads(given.engine))
        return
    names = tuple(given.names) or ("vllm",)
    for name in names:
        if not any(row.name.startswith(name) for row in rows()):
            parser.error(f"no row's name begins with '{name}'; there are {', '.join(row.name for row in rows())}")
    wanted = [row for row in rows() if row.name.startswith(names)]
    if given.list:
        if not given.json:
            print(f"{'row':<21} {'unit':>12} {'goal':>6}  limit")
        for row in wanted:
            print(json.dumps({"name": row.name, "unit": row.unit, "goal": row.goal, "limit_is": row.limit_is})
                  if given.json else f"{row.name:<21} {row.unit:>12} {row.goal:6.2f}  {row.limit_is}")
        return
    if importlib.util.find_spec("vllm") is None:
        sys.exit("aquifer bench: the rows of vllm need vLLM in the Python that runs them, and "
                 f"{sys.executable} has none; next step: pip install vllm, or set AQUIFER_PYTHON")
    measured = [row for row in _measure(_QUICK_ROUNDS if given.quick else _ROUNDS) if row.name.startswith(names)]
    if not given.json:
        print(f"{'row':<22} {'ours':>10} {'limit':>10} {'unit':<9} {'ratio':>7} {'goal':>6}  peers")
    for row in measured:
        print(row.json() if given.json else row.text(), flush=True)
    if given.check and any(row.ratio < row.goal for row in measured):
        sys.exit("aquifer bench: a goal was missed")


if __name__ == "__main__":
    main()
