"""The reference engine (docs/engines/reference.md) against transformers, and against OpenAI's own client."""
from __future__ import annotations

import subprocess
import time
import urllib.request

import openai
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from aquifer._native import program_path

torch.set_num_threads(1)  # Others run at the same time, and threads that wait for each other would spin.

DIRECTORY = "directory Bababa 417 ; Bababe 88 ; Babadi 5 ; "


# ---- Against transformers ----

SHAPES = [
    dict(),
    dict(num_key_value_heads=1, num_hidden_layers=4),
    dict(num_key_value_heads=4, hidden_size=96, head_dim=40, intermediate_size=200, tie_word_embeddings=True),
    dict(rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
                          "high_freq_factor": 4.0, "original_max_position_embeddings": 512}),
]


def write_model(directory, dtype, **changes):
    values = dict(vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
                  num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096,
                  initializer_range=0.1)
    torch.manual_seed(3)
    LlamaForCausalLM(LlamaConfig(**{**values, **changes})).to(dtype).save_pretrained(directory)


@pytest.mark.parametrize("dtype, shape", [*((torch.bfloat16, shape) for shape in SHAPES),
                                          (torch.float16, {}), (torch.float32, {})])
def test_logits_agree_with_transformers_at_every_position(tmp_path, dtype, shape):
    write_model(tmp_path, dtype, **shape)
    # Their sums in float32, as ours are. Read anew: casting a model also rounds its rotations.
    model = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    tokens = torch.randint(0, 512, (1, 2000), generator=torch.Generator().manual_seed(4))
    (tmp_path / "tokens").write_text(" ".join(str(token) for token in tokens[0].tolist()))
    with torch.no_grad():
        expected = model(tokens).logits[0]
    raw = subprocess.run([program_path(), "reference", "--model", tmp_path, "--logits", tmp_path / "tokens"],
                         check=True, stdout=subprocess.PIPE).stdout
    ours = torch.frombuffer(bytearray(raw), dtype=torch.float32).reshape(2000, 512)
    # Our K and V are in bfloat16, which has eight bits.
    error = (ours - expected).abs().amax(dim=1) / expected.std()
    print(f"largest error {error.max():.4f} standard deviations, mean {error.mean():.4f}")
    assert error.max() < 0.06, f"position {error.argmax()} is off by {error.max():.3f} standard deviations"
    agreement = (ours.argmax(dim=1) == expected.argmax(dim=1)).float().mean()
    assert agreement > 0.97


# ---- Against OpenAI's client ----

class Replica:
    """`aquifer reference` as a process of its own."""

    def __init__(self, *arguments):
        self._process = subprocess.Popen([program_path(), "reference", "--port", "0", *arguments],
                                         stdout=subprocess.PIPE, text=True)
        for line in self._process.stdout:
            if "serving on " in line:
                self.url = line.split("serving on ")[1].strip()
                return
        raise AssertionError(f"it ended with {self._process.wait()}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.terminate()
        assert self._process.wait(60) == 0

    def client(self):
        return openai.OpenAI(base_url=self.url, api_key="none", max_retries=0, timeout=120)

    def metric(self, name):
        with urllib.request.urlopen(self.url.removesuffix("/v1") + "/metrics") as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith(name + " "):
                    return float(line.split()[1])
        raise AssertionError(f"there is no metric {name}")


@pytest.fixture(scope="module")
def replica():
    with Replica("--no-cache") as started:
        yield started


def ask(question):
    return [{"role": "user", "content": DIRECTORY + question}]


def test_the_official_client_is_answered_at_once_and_in_pieces(replica):
    client = replica.client()
    assert [model.id for model in client.models.list()] == ["constructed"]
    whole = client.chat.completions.create(
        model="constructed", temperature=0, messages=ask("ask Babadi Bababa . Babadi"))
    assert whole.choices[0].message.content == " 5 Bababa 417 ."
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage.prompt_tokens == 16
    assert whole.usage.completion_tokens == 4
    assert whole.usage.prompt_tokens_details.cached_tokens == 0
    pieces = list(client.chat.completions.create(
        model="constructed", temperature=0, messages=ask("ask Babadi Bababa . Babadi"), stream=True,
        stream_options={"include_usage": True}))
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices) == " 5 Bababa 417 ."
    assert pieces[-1].usage.completion_tokens == 4
    assert pieces[-2].choices[0].finish_reason == "stop"


def test_completions_take_text_and_tokens(replica):
    client = replica.client()
    text = DIRECTORY + "ask Bababe . Bababe"
    answer = client.completions.create(model="constructed", prompt=text, temperature=0, max_tokens=1)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (" 88", "length")
    streamed = client.completions.create(model="constructed", prompt=text, temperature=0, stream=True)
    assert "".join(piece.choices[0].text for piece in streamed) == " 88 ."
    stopped = client.completions.create(model="constructed", prompt=text, temperature=0, stop=[" ."])
    assert (stopped.choices[0].text, stopped.choices[0].finish_reason) == (" 88", "stop")
    # The beginning, "Bababa 1 ; ask Bababa . Bababa"; names begin at 8, numbers behind 12288 of them.
    tokens = [0, 8, 12297, 2, 3, 8, 1, 8]
    assert client.completions.create(model="constructed", prompt=tokens, temperature=0).choices[0].text == " 1 ."


def test_what_is_wrong_is_said_as_openai_says_it(replica):
    client = replica.client()
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt'"):
        client.completions.create(model="gpt", prompt="ask")
    for wrong in (dict(prompt="Nobody"), dict(prompt=[99999]), dict(prompt=[]), dict(prompt="ask", n=2),
                  dict(prompt="ask", temperature=9), dict(prompt="ask", max_tokens=0),
                  dict(prompt="ask", logprobs=3), dict(prompt=[3] * 40000)):
        with pytest.raises(openai.BadRequestError) as refused:
            client.completions.create(model="constructed", **wrong)
        assert refused.value.body["type"] == "invalid_request_error"
    with pytest.raises(openai.BadRequestError, match="messages"):
        client.chat.completions.create(model="constructed", messages=[])
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="constructed", input="ask")


def test_a_client_that_hangs_up_frees_its_pages():
    with Replica("--no-cache", "--model", "random", "--shape", "64,64,1,2,2,32") as random:
        # An answer as long as it may be; ends are unlikely, and would be asked for again.
        stream = random.client().completions.create(model="random", prompt="abc", max_tokens=4000, stream=True,
                                                    temperature=0)
        next(iter(stream))
        stream.close()
        deadline = time.monotonic() + 60
        while random.metric("aquifer_reference_running") > 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert random.metric("aquifer_reference_running") == 0
        assert random.metric("aquifer_reference_pages_in_use") == 0


def test_cached_tokens_count_what_another_replica_computed(node):
    names = [f"{x}{y}ba" for x in ("Ba", "Be", "Di", "Do", "Fa") for y in (
        "ba", "be", "di", "do", "fa", "fe", "gi", "ko", "ka", "la", "li", "lo", "ma", "me", "ni", "no")]
    text = "directory " + " ".join(f"{name} {number} ;" for number, name in enumerate(names))
    text += " ask Faniba . Faniba"
    expected = f" {names.index('Faniba')} ."
    assert len(names) * 3 < 256  # Less than a block: repeat it with tokens that say nothing.
    text = "; " * 600 + text
    with Replica("--socket", node.socket, "--always") as first:
        answer = first.client().completions.create(model="constructed", prompt=text, temperature=0)
        assert answer.choices[0].text == expected
        deadline = time.monotonic() + 60
        while first.metric("aquifer_reference_stored_blocks_total") < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
    with Replica("--socket", node.socket, "--always") as second:
        answer = second.client().completions.create(model="constructed", prompt=text, temperature=0)
        assert answer.choices[0].text == expected
        assert answer.usage.prompt_tokens_details.cached_tokens == 768
        assert answer.usage.aquifer["dram_tokens"] == 768
