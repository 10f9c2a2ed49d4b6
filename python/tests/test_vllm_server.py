"""aquifer.vllm behind vLLM's OpenAI server, through OpenAI's client, over a node with a drive. What is right,
transformers says: it computes the same model without vLLM and without a cache."""
from __future__ import annotations

import concurrent.futures
import functools
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

import aquifer
from conftest import node_process
from models import make_tokenizer
from vllm_engine import make_model, transfer_config

BLOCK = 256
ANSWER = 12  # Tokens.
TEXT = "".join(f"{number} green bottles are hanging on the wall. " for number in range(30))  # A token a byte.


def _post(address):
    urllib.request.urlopen(urllib.request.Request(address, method="POST"), timeout=60).read()


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    folder = tmp_path_factory.mktemp("node")
    with aquifer.Node(str(folder / "node.sock"), dram="256MiB", nvme=[f"{folder}/drive:1GiB"]) as started:
        yield started


@pytest.fixture(scope="module")
def server(tmp_path_factory, node):
    folder = tmp_path_factory.mktemp("server")
    make_model(folder / "model")
    make_tokenizer().save_pretrained(folder / "model")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    transfer = transfer_config(socket=node.socket, always=True, deadline_ms=60000)
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
    yield Served(address, folder / "model")
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)


class Served:
    """What a user of the server does, and what is right."""

    def __init__(self, address, model):
        import openai
        self.address = address
        self._model = model
        self._client = openai.OpenAI(base_url=address + "/v1", api_key="none")

    def ask(self, prompt, **options):
        """A text, or tokens. The answer, which is right, and how many tokens the server had."""
        answer = self._client.completions.create(
            model="small", prompt=prompt, max_tokens=ANSWER, temperature=0, logprobs=1,
            extra_body={"ignore_eos": True, "return_token_ids": True, **options})
        (choice,) = answer.choices
        tokens, logprobs = self._greedy(tuple(choice.prompt_token_ids))
        assert choice.token_ids == tokens and choice.logprobs.token_logprobs == pytest.approx(logprobs, abs=2e-3)
        details = answer.usage.prompt_tokens_details
        return choice, details.cached_tokens if details else 0

    def forget(self):
        """The engine's own cache is empty."""
        _post(self.address + "/reset_prefix_cache")

    def ask_until_recalled(self, prompt, tokens):
        """A store may end after its answer."""
        for _ in range(100):
            self.forget()
            choice, cached = self.ask(prompt)
            if cached == tokens:
                return choice
        raise AssertionError(f"{cached} tokens are recalled, and not {tokens}")

    @functools.cached_property
    def _llama(self):
        import torch
        from transformers import LlamaForCausalLM
        return LlamaForCausalLM.from_pretrained(self._model, dtype=torch.float32).eval()

    @functools.lru_cache(maxsize=None)
    def _greedy(self, ids):
        """The tokens that follow, and their log-probabilities."""
        import torch
        with torch.no_grad():
            output = self._llama.generate(
                torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), min_new_tokens=ANSWER,
                max_new_tokens=ANSWER, do_sample=False, pad_token_id=0, eos_token_id=None,
                return_dict_in_generate=True, output_logits=True)
        tokens = output.sequences[0, len(ids):].tolist()
        return tokens, [torch.log_softmax(step[0], -1)[token].item() for step, token in zip(output.logits, tokens)]


def whole_blocks(tokens):
    return tokens // BLOCK * BLOCK


def test_the_server_recalls_and_says_so(server, node):
    first, cached = server.ask(TEXT, kv_transfer_params={"aquifer": {"session": "bottles"}})
    assert cached == 0
    shared = whole_blocks(len(first.prompt_token_ids))
    server.ask_until_recalled(TEXT, shared)
    metrics = urllib.request.urlopen(server.address + "/metrics", timeout=60).read().decode()
    loaded = [line for line in metrics.splitlines() if line.startswith("vllm:aquifer_loaded_blocks_total")]
    assert float(loaded[0].split()[-1]) >= shared // BLOCK
    with node.connect() as client:
        assert client.prestage(session="bottles")[0] >= shared // BLOCK
    # Another text with the same beginning recalls what they share.
    server.forget()
    assert server.ask(TEXT[:900] + "And then there were none.")[1] == whole_blocks(900)


def test_the_next_turn_recalls_the_answer_too(server):
    """So long that the answer ends a block."""
    ids = list((TEXT * 2).encode())[:3 * BLOCK - ANSWER + 1]
    prompt = [3 + byte % 250 for byte in ids]
    first, _ = server.ask(prompt)
    server.ask_until_recalled(prompt + first.token_ids + prompt[:50], 3 * BLOCK)


def test_requests_at_once_that_begin_alike_are_right(server):
    texts = [f"{TEXT[:600]} Number {number}. {TEXT[:300]}" for number in range(6)]
    for _ in range(2):
        server.forget()
        with concurrent.futures.ThreadPoolExecutor(len(texts)) as pool:
            list(pool.map(server.ask, texts))


def test_the_server_goes_on_while_its_node_is_gone_and_finds_it_again(server, node):
    text = "Once more. " + TEXT
    first, _ = server.ask(text)
    recalled = whole_blocks(len(first.prompt_token_ids))
    server.ask_until_recalled(text, recalled)
    with node.connect() as client:
        client.flush()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:  # Requests that load and store meanwhile.
        server.forget()
        asked = [pool.submit(server.ask, each) for each in (text, TEXT, "Another. " + TEXT, "Third. " + TEXT)]
        os.kill(node_process(node._process.pid), signal.SIGKILL)
        node._process.wait(30)
        for each in asked:
            each.result()
    server.forget()
    assert server.ask(text)[1] == 0
    node.start_again()
    server.ask_until_recalled(text, recalled)
