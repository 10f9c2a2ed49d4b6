"""aquifer.vllm behind vLLM's OpenAI server, through OpenAI's client, with a private node. What is right, transformers
says: it computes the same model without vLLM and without a cache."""
from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

if os.environ.get("AQUIFER_TEST_LEVEL", "full") != "full":
    pytest.skip("a vLLM server takes minutes: with ./test --full", allow_module_level=True)
if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM is not installed", allow_module_level=True)

from vllm_engine import make_model, transfer_config

BLOCK = 256
TEXT = "".join(f"{number} green bottles are hanging on the wall. " for number in range(30))  # A token a byte.


def _save_tokenizer(folder):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: number + 3 for number, symbol in enumerate(symbols)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)


def _post(address):
    urllib.request.urlopen(urllib.request.Request(address, method="POST"), timeout=60).read()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    make_model(folder / "model")
    _save_tokenizer(folder / "model")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    transfer = transfer_config(spawn=True, spawn_dram="256MiB", always=True, deadline_ms=60000)
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder / "model"),
               "--served-model-name", "small", "--dtype", "float32", "--enforce-eager", "--max-model-len", "4096",
               "--host", "127.0.0.1", "--port", str(port), "--enable-prompt-tokens-details",
               "--kv-transfer-config", json.dumps(transfer)]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_SERVER_DEV_MODE": "1"}
    with open(folder / "server.log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    address = f"http://127.0.0.1:{port}"
    end = time.monotonic() + 600
    while True:
        assert process.poll() is None and time.monotonic() < end, (folder / "server.log").read_text()[-3000:]
        try:
            urllib.request.urlopen(address + "/health", timeout=5).read()
            break
        except OSError:
            time.sleep(0.5)
    yield address, folder / "model"
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)


def _greedy(model, ids, count):
    """The tokens that follow, and their log-probabilities."""
    import torch
    from transformers import LlamaForCausalLM
    llama = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    with torch.no_grad():
        output = llama.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                                min_new_tokens=count, max_new_tokens=count, do_sample=False, pad_token_id=0,
                                eos_token_id=None, return_dict_in_generate=True, output_logits=True)
    tokens = output.sequences[0, len(ids):].tolist()
    return tokens, [torch.log_softmax(step[0], -1)[token].item() for step, token in zip(output.logits, tokens)]


def test_the_openai_server_recalls_and_says_so(server):
    import openai
    address, model = server
    client = openai.OpenAI(base_url=address + "/v1", api_key="none")

    def ask(text):
        answer = client.completions.create(
            model="small", prompt=text, max_tokens=12, temperature=0, logprobs=1,
            extra_body={"ignore_eos": True, "return_token_ids": True,
                        "kv_transfer_params": {"aquifer": {"session": "bottles"}}})
        (choice,) = answer.choices
        details = answer.usage.prompt_tokens_details
        return choice, details.cached_tokens if details else 0
    first, cached = ask(TEXT)
    prompt_tokens = len(first.prompt_token_ids)
    tokens, logprobs = _greedy(model, first.prompt_token_ids, 12)
    assert first.token_ids == tokens and first.logprobs.token_logprobs == pytest.approx(logprobs, abs=2e-3)
    assert cached == 0
    for _ in range(100):  # A store may end after its answer.
        _post(address + "/reset_prefix_cache")
        again, cached = ask(TEXT)
        assert again.token_ids == tokens and again.logprobs.token_logprobs == pytest.approx(logprobs, abs=2e-3)
        if cached:
            break
    assert cached == prompt_tokens // BLOCK * BLOCK
    metrics = urllib.request.urlopen(address + "/metrics", timeout=60).read().decode()
    loaded = [line for line in metrics.splitlines() if line.startswith("vllm:aquifer_loaded_blocks_total")]
    assert float(loaded[0].split()[-1]) >= prompt_tokens // BLOCK
    # Another text with the same beginning recalls what they share.
    _post(address + "/reset_prefix_cache")
    other, cached = ask(TEXT[:900] + "And then there were none.")
    assert cached == 900 // BLOCK * BLOCK
    assert other.token_ids == _greedy(model, other.prompt_token_ids, 12)[0]
