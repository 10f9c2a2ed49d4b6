"""aquifer.vllm behind vLLM's OpenAI server, through OpenAI's client, with a private node."""
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

from vllm_engine import make_model

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
    transfer = {"kv_connector": "AquiferConnector", "kv_connector_module_path": "aquifer.vllm", "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {"spawn": True, "spawn_dram": "256MiB", "always": True,
                                              "deadline_ms": 60000}}
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
    yield address
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)


def test_the_openai_server_recalls_and_says_so(server):
    import openai
    client = openai.OpenAI(base_url=server + "/v1", api_key="none")

    def ask(text):
        answer = client.completions.create(
            model="small", prompt=text, max_tokens=12, temperature=0, logprobs=1,
            extra_body={"ignore_eos": True, "return_token_ids": True,
                        "kv_transfer_params": {"aquifer": {"session": "bottles"}}})
        choice = answer.choices[0]
        details = answer.usage.prompt_tokens_details
        return choice.logprobs.token_logprobs, choice.text, details.cached_tokens if details else 0, answer.usage
    first, text, cached, usage = ask(TEXT)
    assert cached == 0
    for _ in range(100):  # A store may end after its answer.
        _post(server + "/reset_prefix_cache")
        again, same, cached, _ = ask(TEXT)
        assert same == text and again == pytest.approx(first, abs=2e-3)
        if cached:
            break
    assert cached == usage.prompt_tokens // BLOCK * BLOCK
    metrics = urllib.request.urlopen(server + "/metrics", timeout=60).read().decode()
    loaded = [line for line in metrics.splitlines() if line.startswith("vllm:aquifer_loaded_blocks_total")]
    assert float(loaded[0].split()[-1]) >= usage.prompt_tokens // BLOCK
    # Another text with the same beginning recalls what they share.
    _post(server + "/reset_prefix_cache")
    _, _, cached, _ = ask(TEXT[:900] + "And then there were none.")
    assert cached == 900 // BLOCK * BLOCK
