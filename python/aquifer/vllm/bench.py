"""`aquifer bench vllm`: what the connector gives and what it costs, with real engines on this machine.

One after the other: an engine without a connector, one with Aquifer and a private node, and one with vLLM's
own ExampleConnector (files in a folder). All three answer the same prompts. The model is small and random.
"""
from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Optional

_PROMPT_TOKENS = 8192
_RUNS = 5
_CROWD, _CROWD_TOKENS, _CROWD_OUTPUT = 8, 384, 48
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


def __getattr__(name: str) -> Any:
    if name == "MeasuredConnector":  # vLLM asks for it by name; nobody else needs vLLM to read this module.
        globals()[name] = measured_connector()
        return globals()[name]
    raise AttributeError(name)


def _tokens(count: int, seed: int) -> list[int]:
    numbers = random.Random(seed)
    return [numbers.randrange(3, 1000) for _ in range(count)]


def _engine(arguments: dict[str, Any]) -> None:
    from vllm import LLM, SamplingParams
    llm = LLM(arguments["model"], dtype="float32", skip_tokenizer_init=True, enforce_eager=True, seed=0,
              max_model_len=16384, max_num_batched_tokens=16384, kv_transfer_config=arguments["transfer"])
    one = SamplingParams(temperature=0, max_tokens=1, detokenize=False, ignore_eos=True)
    many = SamplingParams(temperature=0, max_tokens=_CROWD_OUTPUT, detokenize=False, ignore_eos=True)

    def first_token(seed: int) -> tuple[float, int]:
        started = time.perf_counter()
        (output,) = llm.generate([{"prompt_token_ids": _tokens(_PROMPT_TOKENS, seed)}], one, use_tqdm=False)
        return time.perf_counter() - started, output.num_cached_tokens or 0

    def crowd(seed: int) -> float:
        prompts = [{"prompt_token_ids": _tokens(_CROWD_TOKENS, 1000 * seed + n)} for n in range(_CROWD)]
        started = time.perf_counter()
        llm.generate(prompts, many, use_tqdm=False)
        return time.perf_counter() - started
    first_token(100)  # Warms everything up.
    crowd(100)
    hooks_before = _hook_seconds(arguments["folder"])
    crowds = [crowd(seed) for seed in range(1, _RUNS + 1)]
    hooks = {name: seconds - hooks_before.get(name, 0.0)
             for name, seconds in _hook_seconds(arguments["folder"]).items()}
    computed = [first_token(seed)[0] for seed in range(1, _RUNS + 1)]
    time.sleep(1.0)  # For stores that end behind the answer.
    recalled = []
    if arguments["transfer"] is not None:
        for seed in range(1, _RUNS + 1):
            llm.reset_prefix_cache()
            recalled.append(first_token(seed))
    print("RESULT " + json.dumps({"computed": computed, "recalled": recalled, "crowds": crowds, "hooks": hooks}),
          flush=True)


def _hook_seconds(folder: str) -> dict[str, float]:
    """By name, over all processes of the engine."""
    total: dict[str, float] = {}
    for file in pathlib.Path(folder).glob("hooks-*"):
        for name, seconds in json.loads(file.read_text()).items():
            total[name] = total.get(name, 0.0) + seconds
    return total


# ---- In the parent ----

def _run(name: str, model: str, folder: pathlib.Path, transfer: Optional[dict[str, Any]]) -> dict[str, Any]:
    print(f"  {name}: an engine starts", file=sys.stderr, flush=True)
    folder.mkdir()
    if transfer is not None:
        transfer = {"kv_role": "kv_both", "kv_load_failure_policy": "recompute", **transfer}
    arguments = json.dumps({"model": model, "transfer": transfer, "folder": str(folder)})
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "2", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING",
                   "AQUIFER_BENCH_FOLDER": str(folder)}
    done = subprocess.run([sys.executable, "-m", "aquifer.vllm.bench", "--engine", arguments], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line[7:])
    sys.exit(f"aquifer bench vllm: the engine with {name} failed:\n{done.stderr[-3000:]}")


def _milliseconds(values: list[float]) -> str:
    ordered = sorted(1000 * value for value in values)
    return f"{statistics.median(ordered):9.1f} ms   ({ordered[0]:.1f} to {ordered[-1]:.1f})"


def main(arguments: Optional[list[str]] = None) -> None:
    parser = argparse.ArgumentParser(prog="aquifer bench vllm", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object and nothing else")
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.engine:
        _engine(json.loads(given.engine))
        return
    with tempfile.TemporaryDirectory(prefix="aquifer-bench-") as scratch:
        base = pathlib.Path(scratch)
        model = str(base / "model")
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM
        torch.manual_seed(0)
        LlamaForCausalLM(LlamaConfig(**_MODEL)).save_pretrained(model)
        plain = _run("no connector", model, base / "plain", None)
        ours = _run("Aquifer", model, base / "ours", {
            "kv_connector": "MeasuredConnector", "kv_connector_module_path": "aquifer.vllm.bench",
            "kv_connector_extra_config": {"spawn": True, "spawn_dram": "1GiB"}})
        files = _run("ExampleConnector", model, base / "files", {
            "kv_connector": "ExampleConnector",
            "kv_connector_extra_config": {"shared_storage_path": str(base / "stored")}})
    result = {"plain": plain, "aquifer": ours, "example": files}
    if given.json:
        print(json.dumps(result))
        return
    ratios = [a / b for a, b in zip(plain["crowds"], ours["crowds"])]
    share = sum(ours["hooks"].values()) / sum(ours["crowds"])
    slowest = sorted(ours["hooks"], key=ours["hooks"].__getitem__, reverse=True)[:3]
    print(f"time to first token of {_PROMPT_TOKENS} tokens, median of {_RUNS} (least to most)")
    print(f"  computed, no connector            {_milliseconds(plain['computed'])}")
    print(f"  recalled through Aquifer          {_milliseconds([s for s, _ in ours['recalled']])}, "
          f"{ours['recalled'][0][1]} tokens recalled")
    print(f"  recalled through ExampleConnector {_milliseconds([s for s, _ in files['recalled']])}, "
          f"{files['recalled'][0][1]} tokens recalled")
    print(f"nothing to recall: {_CROWD} requests of {_CROWD_TOKENS} + {_CROWD_OUTPUT} tokens at once, {_RUNS} times")
    print(f"  throughput with Aquifer ÷ without {statistics.median(ratios):9.3f}      "
          f"({min(ratios):.3f} to {max(ratios):.3f})")
    print(f"  time in Aquifer's hooks ÷ all     {share:9.4f}      (at most 0.01; the most is in {', '.join(slowest)})")


if __name__ == "__main__":
    main()
