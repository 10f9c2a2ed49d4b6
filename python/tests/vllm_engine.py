"""A vLLM engine in a process of its own, which does what it is told line by line, so that one start (half a
minute) serves many scenarios. Run as a program, it is that process; Engine is the other end."""
from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time

MODEL = dict(vocab_size=1024, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=8,
             num_key_value_heads=2, head_dim=32, max_position_embeddings=16384, initializer_range=0.12,
             bos_token_id=1, eos_token_id=2)


def make_model(folder):
    """Random weights whose answer depends on the whole context."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**MODEL)).save_pretrained(folder)


class Engine:
    def __init__(self, model, log, settings=None, **options):
        """`settings` of the connector; None: an engine without one."""
        if settings is not None:
            options["kv_transfer_config"] = {
                "kv_connector": "AquiferConnector", "kv_connector_module_path": "aquifer.vllm",
                "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {"always": True, "deadline_ms": 60000, **settings}}
        environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1",
                       "VLLM_LOGGING_LEVEL": "INFO", "VLLM_CPU_OMP_THREADS_BIND": options.pop("bind", "auto")}
        self._log = open(log, "w")
        self.log = str(log)
        self._process = subprocess.Popen([sys.executable, __file__, str(model), json.dumps(options)],
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
                                         env=environment)
        self._replies = []
        self._arrived = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self._process.stdout:
            if line.startswith("REPLY "):
                with self._arrived:
                    self._replies.append(json.loads(line[6:]))
                    self._arrived.notify()
            else:
                self._log.write(line)
        with self._arrived:
            self._replies.append({"error": f"the engine ended; see {self.log}"})
            self._arrived.notify()

    def begin(self, **command):
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def reply(self):
        with self._arrived:
            assert self._arrived.wait_for(lambda: self._replies, timeout=600), "the engine does not answer"
            answer = self._replies.pop(0)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def ask(self, *prompts, max_tokens=12, **options):
        """[{tokens, logprobs, cached}] for each prompt, all at once."""
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

    def close(self):
        if self._process.poll() is None:
            self._process.stdin.close()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._log.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _generate(llm, command):
    from vllm import SamplingParams
    extra = {"kv_transfer_params": command["params"]} if "params" in command else None
    params = SamplingParams(temperature=0, max_tokens=command["max_tokens"], detokenize=False, logprobs=1,
                            ignore_eos=True, extra_args=extra)
    prompts = [{"prompt_token_ids": prompt, **({"cache_salt": command["salt"]} if "salt" in command else {})}
               for prompt in command["prompts"]]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [{"tokens": list(output.outputs[0].token_ids), "cached": output.num_cached_tokens,
             "logprobs": [next(iter(step.values())).logprob for step in output.outputs[0].logprobs]}
            for output in outputs]


def _abort(llm, command):
    """Begins requests, steps the engine a few times, and aborts them."""
    from vllm import SamplingParams
    params = SamplingParams(temperature=0, max_tokens=64, detokenize=False, ignore_eos=True)
    for number, prompt in enumerate(command["prompts"]):
        llm.llm_engine.add_request(f"abort-{number}", {"prompt_token_ids": prompt}, params)
    for _ in range(command["steps"]):
        llm.llm_engine.step()
    llm.llm_engine.abort_request([f"abort-{number}" for number in range(len(command["prompts"]))], internal=False)
    while llm.llm_engine.has_unfinished_requests():
        llm.llm_engine.step()
    return True


def main():
    from vllm import LLM
    options = {"dtype": "float32", "max_model_len": 4096, "disable_log_stats": False, **json.loads(sys.argv[2])}
    llm = LLM(sys.argv[1], skip_tokenizer_init=True, enforce_eager=True, seed=0, **options)
    print("REPLY " + json.dumps({"result": "up"}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            if command["do"] == "generate":
                result = _generate(llm, command)
            elif command["do"] == "abort":
                result = _abort(llm, command)
            elif command["do"] == "metrics":
                result = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
            elif command["do"] == "reset_connector":
                result = bool(llm.reset_prefix_cache(reset_connector=True))
            else:
                result = bool(llm.reset_prefix_cache())
            answer = {"result": result}
        except Exception as error:
            answer = {"error": repr(error)}
        print("REPLY " + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
