"""A vLLM engine in a process of its own, which does what it is told line by line, so that one start (half a
minute) serves many scenarios. Run as a program, it is that process; Engine is the other end."""
from __future__ import annotations

import json
import os
import pathlib
import random
import select
import signal
import subprocess
import sys
import time

MODEL = dict(vocab_size=1024, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=8,
             num_key_value_heads=2, head_dim=32, max_position_embeddings=16384, initializer_range=0.12,
             bos_token_id=1, eos_token_id=2)
_HERE = pathlib.Path(__file__).parent
# For the engine's processes: vllm_gates.py, and a sitecustomize.py that shows their threads.
_MODULES = [str(_HERE), str(_HERE / "dumps")]
_START_SECONDS = 600
_SILENT_SECONDS = 90  # Then it is asked what it does,
_HUNG_SECONDS = 300  # and then it hangs.


def make_model(folder):
    """Random weights whose answer depends on the whole context."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**MODEL)).save_pretrained(folder)


SPECIAL = ("<|endoftext|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
END, BEGIN_IMAGE, END_IMAGE, IMAGE, VIDEO = range(256, 261)  # Behind the bytes.


def make_seeing_model(folder):
    """The same with eyes, in the manner of Qwen2-VL: 28 by 28 pixels are a token, and positions depend on the images in
    front."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import (PreTrainedTokenizerFast, Qwen2VLConfig, Qwen2VLForConditionalGeneration,
                              Qwen2VLImageProcessor, Qwen2VLProcessor, Qwen2VLVideoProcessor)
    symbols = {symbol: number for number, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    bytewise = Tokenizer(models.BPE(vocab=symbols, merges=[]))
    bytewise.pre_tokenizer, bytewise.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytewise, eos_token=SPECIAL[0],
                                        additional_special_tokens=list(SPECIAL[1:]))
    assert tokenizer.convert_tokens_to_ids(list(SPECIAL)) == [END, BEGIN_IMAGE, END_IMAGE, IMAGE, VIDEO]
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]}
    config = Qwen2VLConfig(
        text_config={**MODEL, "rope_parameters": rope, "eos_token_id": END},
        vision_config=dict(depth=2, embed_dim=64, num_heads=4, hidden_size=MODEL["hidden_size"], mlp_ratio=2,
                           initializer_range=MODEL["initializer_range"]),
        image_token_id=IMAGE, video_token_id=VIDEO, vision_start_token_id=BEGIN_IMAGE, vision_end_token_id=END_IMAGE)
    torch.manual_seed(0)
    Qwen2VLForConditionalGeneration(config).save_pretrained(folder)
    Qwen2VLProcessor(Qwen2VLImageProcessor(), tokenizer, Qwen2VLVideoProcessor()).save_pretrained(folder)


def make_adapter(folder, seed):
    """A LoRA adapter, as PEFT saves it, that changes keys, values and answers by much."""
    import torch
    from safetensors.torch import save_file
    rank, hidden, keys = 8, MODEL["hidden_size"], MODEL["num_key_value_heads"] * MODEL["head_dim"]
    numbers, weights = torch.Generator().manual_seed(seed), {}
    for layer in range(MODEL["num_hidden_layers"]):
        for name, outputs in (("q_proj", hidden), ("k_proj", keys), ("v_proj", keys)):
            module = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{module}.lora_A.weight"] = torch.randn(rank, hidden, generator=numbers) * 0.1
            weights[f"{module}.lora_B.weight"] = torch.randn(outputs, rank, generator=numbers) * 0.1
    pathlib.Path(folder).mkdir()
    save_file(weights, f"{folder}/adapter_model.safetensors")
    pathlib.Path(folder, "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none",
         "target_modules": ["q_proj", "k_proj", "v_proj"]}))


def transfer_config(connector="AquiferConnector", **settings):
    return {"kv_connector": connector, "kv_role": "kv_both",
            "kv_connector_module_path": "aquifer.vllm" if connector == "AquiferConnector" else "vllm_gates",
            "kv_load_failure_policy": "recompute", "kv_connector_extra_config": settings}


class Engine:
    def __init__(self, model, log, connector=None, gates=None, in_one_process=False, **options):
        """`connector`: a transfer_config(); None: an engine without one. `gates`: the folder of its gates. Of the
        options, which are LLM()'s, `ahead` makes it schedule asynchronously."""
        if connector is not None:
            options["kv_transfer_config"] = connector
        if in_one_process:  # Starts in half the time.
            options["distributed_executor_backend"] = "uni"
        self.log = str(log)
        environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "PYTHONFAULTHANDLER": "1",
                       "VLLM_LOGGING_LEVEL": "INFO", "VLLM_CPU_OMP_THREADS_BIND": options.pop("bind", "auto"),
                       "AQUIFER_TEST_DUMPS": self.log + ".threads",
                       "AQUIFER_TEST_GATES": str(gates or ""),
                       "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if in_one_process else "1",
                       "PYTHONPATH": os.pathsep.join([*_MODULES, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)}
        read_end, write_end = os.pipe()  # Three processes log into the standard output.
        with open(log, "w") as log_file:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(model), json.dumps(options), str(write_end)], stdin=subprocess.PIPE,
                stdout=log_file, stderr=log_file, text=True, env=environment, pass_fds=(write_end,),
                start_new_session=True)
        os.close(write_end)
        self._replies = os.fdopen(read_end, "rb", buffering=0)
        self._heard = b""
        self._waiting_to_start = True

    def begin(self, **command):
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def reply(self):
        started, dumped = time.monotonic(), 0
        while b"\n" not in self._heard:
            ready, _, _ = select.select([self._replies], [], [], 5.0)
            if ready:
                heard = self._replies.read(1 << 16)
                assert heard, f"the engine ended; see {self.log}"
                self._heard += heard
            silent = time.monotonic() - started
            if silent > (dumped + 1) * _SILENT_SECONDS and not self._waiting_to_start:
                self.show_threads()
                dumped += 1
            limit = _START_SECONDS if self._waiting_to_start else _HUNG_SECONDS
            assert silent < limit, f"the engine does not answer; see {self.log}*"
        line, self._heard = self._heard.split(b"\n", 1)
        self._waiting_to_start = False
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def show_threads(self):
        """What every thread of the engine does, into files beside the log."""
        log = pathlib.Path(self.log)
        with open(self.log + ".tasks", "a") as out:
            for dump in log.parent.glob(log.name + ".threads.*"):
                pid = int(dump.suffix[1:])
                for task in sorted(pathlib.Path(f"/proc/{pid}/task").glob("*")):
                    facts = {name: _text(task / name) for name in ("comm", "wchan", "syscall", "stack", "stat")}
                    out.write(f"{pid} {task.name} {json.dumps(facts)}\n")
                try:
                    os.kill(pid, signal.SIGUSR1)
                except ProcessLookupError:
                    pass

    def ask(self, *prompts, max_tokens=12, **options):
        """[{tokens, logprobs, cached}] for each prompt, all at once. A prompt is its tokens, or {tokens, images,
        names}: for each IMAGE in the tokens the seed of one, and what the client calls it, where it has a word for it."""
        self.begin(do="generate", prompts=prompts, max_tokens=max_tokens, **options)
        return self.reply()

    def forget(self):
        """Empties the engine's own prefix cache, once no request holds a page of it."""
        end = time.monotonic() + 60
        while True:
            self.begin(do="reset")
            if self.reply():
                return
            assert time.monotonic() < end, "pages are still held"
            time.sleep(0.05)

    def metrics(self):
        self.begin(do="metrics")
        return self.reply()

    def count(self, name):
        """One of the connector's counters. They come with a step, so that there has to be one."""
        self.ask([3, 4, 5], max_tokens=2)
        return self.metrics().get(f"vllm:aquifer_{name}", 0)

    def close(self):
        if self._process.poll() is None:
            self._process.stdin.close()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        self._replies.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _text(path):
    try:
        return path.read_text().strip()
    except OSError:
        return ""


# ---- In the engine's process ----

def _params(command):
    from vllm import SamplingParams
    extra = {"kv_transfer_params": command["params"]} if "params" in command else None
    return SamplingParams(temperature=0, max_tokens=command["max_tokens"], detokenize=False, logprobs=1,
                          ignore_eos=True, extra_args=extra)


def _hints(command):
    from vllm.v1.kv_hints import KvHintAction, KvHintsEnvelope
    if "hints" not in command:
        return None
    return KvHintsEnvelope("0.1", "message", [KvHintAction(f"action {number}", kind, version, payload)
                                              for number, (kind, version, payload) in enumerate(command["hints"])])


def _adapter(command):
    """(number, folder) of a LoRA adapter."""
    from vllm.lora.request import LoRARequest
    if "adapter" not in command:
        return None
    number, folder = command["adapter"]
    return LoRARequest(f"adapter {number}", number, folder)


def _prompt(given):
    if isinstance(given, list):
        return {"prompt_token_ids": given}
    images = [_image(seed) for seed in given["images"]]
    named = {"multi_modal_uuids": {"image": given["names"]}} if "names" in given else {}
    return {"prompt_token_ids": given["tokens"], "multi_modal_data": {"image": images}, **named}


def _image(seed, side=448):
    from PIL import Image
    return Image.frombytes("RGB", (side, side), random.Random(seed).randbytes(3 * side * side))


class _Told:
    """What the parent can ask for, by name."""

    def __init__(self, llm):
        self._llm = llm
        self._engine = llm.llm_engine
        self._next = 0
        self._names = []

    def generate(self, command):
        self.start(command)
        return self.finish(command)

    def finish(self, command):
        """The answers to all that were begun."""
        outputs = {}
        while self._engine.has_unfinished_requests():
            outputs.update((output.request_id, output) for output in self._engine.step() if output.finished)
        answers, self._names = [_answer(outputs[name]) for name in self._names], []
        return answers

    def start(self, command):
        """Begins requests, and takes as many steps of the engine with them as is said."""
        for prompt in command["prompts"]:
            name = f"r{self._next}"
            self._next += 1
            salted = {"cache_salt": command["salt"]} if "salt" in command else {}
            self._engine.add_request(name, {**_prompt(prompt), **salted}, _params(command),
                                     lora_request=_adapter(command), kv_hints=_hints(command),
                                     session_id=command.get("session_id"))
            self._names.append(name)
        for _ in range(command.get("steps", 0)):
            self._engine.step()
        return True

    def abort(self, command):
        self._engine.abort_request(self._names, internal=False)
        self._names = []
        while self._engine.has_unfinished_requests():
            self._engine.step()
        return True

    def metrics(self, command):
        return {metric.name: metric.value for metric in self._llm.get_metrics() if hasattr(metric, "value")}

    def add_lora(self, command):
        return bool(self._engine.add_lora(_adapter(command)))

    def reset_connector(self, command):
        return bool(self._llm.reset_prefix_cache(reset_connector=True))

    def reset_encoder(self, command):
        self._engine.reset_encoder_cache()
        return True

    def preempt(self, command):
        """All requests, and nothing of them is left in the engine's own prefix cache."""
        return bool(self._llm.llm_engine.reset_prefix_cache(reset_running_requests=True))

    def reset(self, command):
        if os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0":  # Else it takes the steps that are left by itself.
            self._engine.step()
        return bool(self._llm.reset_prefix_cache())


def _answer(output):
    return {"tokens": list(output.outputs[0].token_ids), "cached": output.num_cached_tokens,
            "logprobs": [next(iter(step.values())).logprob for step in output.outputs[0].logprobs]}


def main():
    from vllm import LLM
    replies = os.fdopen(int(sys.argv[3]), "w")

    def say(answer):
        replies.write(json.dumps(answer) + "\n")
        replies.flush()
    options = {"dtype": "float32", "max_model_len": 4096, "disable_log_stats": False,
               "skip_tokenizer_init": True, **json.loads(sys.argv[2])}
    if options.pop("ahead", False):
        from vllm_ahead import schedule_ahead
        schedule_ahead()
        options["worker_cls"] = "vllm_ahead.Worker"
    llm = LLM(sys.argv[1], enforce_eager=True, seed=0, **options)
    say({"result": "up"})
    told = _Told(llm)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            say({"result": getattr(told, command.pop("do"))(command)})
        except Exception as error:
            say({"error": repr(error)})


if __name__ == "__main__":
    main()
