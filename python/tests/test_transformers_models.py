"""Which models aquifer.transformers recalls, and as which: what makes a model another one, and what is refused."""
from __future__ import annotations

import collections
import functools
import importlib.util
import os
import signal
import subprocess
import sys
import threading

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
numpy = pytest.importorskip("numpy")

import aquifer
import aquifer.transformers
from conftest import node_process, stand_still
from models import BLOCK, generate, make_model, prompt, recalling
from aquifer.configuration import configuration_bytes
from transformers import (AttentionInterface, AttentionMaskInterface, BartConfig, BartForCausalLM, DogeConfig,
                          DogeForCausalLM, DynamicCache, Glm4vConfig, Glm4vForConditionalGeneration, LlamaConfig,
                          LlamaForCausalLM, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2VLConfig,
                          Qwen2VLForConditionalGeneration, Qwen3VLConfig, Qwen3VLForConditionalGeneration, RobertaConfig,
                          RobertaForCausalLM, XmodConfig, XmodForCausalLM)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import and_masks, causal_mask_function, sdpa_mask, sliding_window_overlay

ROBERTA = dict(vocab_size=512, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=128,
               max_position_embeddings=2100, is_decoder=True, initializer_range=0.3, pad_token_id=1, type_vocab_size=1)


def test_another_model_type_rope_user_or_adapter_finds_nothing(client):
    ids = prompt(600)
    recall = recalling(make_model("llama"), client)
    generate(recall.model, ids, recall.cache())
    assert recall.flush()
    digest = recall.layout.model
    recall.close()
    others = {"weights": make_model("llama", seed=1), "type": make_model("llama", torch.bfloat16),
              "rope": make_model("llama", rope_theta=500.0), "norm": make_model("llama", rms_norm_eps=1e-5),
              "kind": make_model("qwen2")}
    for name, model in others.items():
        other = recalling(model, client)
        cache = other.cache()
        sequences, _, computed = generate(model, ids, cache)
        assert (cache.recalled_tokens, computed) == (0, 607), name
        assert torch.equal(sequences, generate(model, ids)[0])
        other.close()
    same = recalling(make_model("llama"), client)
    assert same.layout.model == digest
    salted = same.cache(cache_salt="somebody else")
    generate(same.model, ids, salted)
    assert salted.recalled_tokens == 0
    cache = same.cache()
    generate(same.model, ids, cache)
    assert cache.recalled_tokens == 2 * BLOCK
    same.close()


def test_weights_that_change_are_another_model(client):
    model = make_model("llama")
    recall = recalling(model, client)
    ids = prompt(600)
    generate(model, ids, recall.cache())
    assert recall.flush()
    with torch.no_grad():
        model.model.layers[0].self_attn.k_proj.weight.mul_(1.5)
    cache = recall.cache()
    sequences, _, _ = generate(model, ids, cache)
    assert cache.recalled_tokens == 0
    assert torch.equal(sequences, generate(model, ids)[0])
    recall.close()


def test_a_configuration_that_changes_is_another_model(client):
    """X-MOD looks into it at every forward pass, for the language whose adapters it is to use."""
    torch.manual_seed(0)
    model = XmodForCausalLM(XmodConfig(**ROBERTA, languages=["en_XX", "de_DE"], default_language="en_XX")).eval()
    recall = recalling(model, client)
    ids = prompt(600)
    generate(model, ids, recall.cache())
    going_on = recall.cache()
    generate(model, ids, going_on)
    assert recall.flush() and going_on.recalled_tokens == 2 * BLOCK
    model.set_default_language("de_DE")
    cache = recall.cache()
    sequences, logits, _ = generate(model, ids, cache)
    assert cache.recalled_tokens == 0 and cache.plain is None
    expected, expected_logits, _ = generate(model, ids)
    assert torch.equal(sequences, expected) and torch.allclose(logits, expected_logits, atol=1e-4)
    generate(model, torch.cat([ids, prompt(300, seed=2)], dim=1), going_on)
    assert going_on.plain == "the weights changed while it was used"
    recall.close()


def test_a_model_that_places_tokens_elsewhere_is_recalled_by_their_places_alone(client):
    """Without position ids, RoBERTa counts from behind the padding's; generate() gives it those from 0."""
    torch.manual_seed(0)
    model = RobertaForCausalLM(RobertaConfig(**ROBERTA)).eval()
    torch.nn.init.normal_(model.roberta.embeddings.position_embeddings.weight)
    recall = recalling(model, client)
    ids = prompt(600)
    generate(model, ids, recall.cache())
    assert recall.flush()
    cache = recall.cache()
    assert torch.equal(generate(model, ids, cache)[0], generate(model, ids)[0])
    assert cache.recalled_tokens == 2 * BLOCK
    cache = recall.cache()
    with torch.no_grad():
        expected = model(input_ids=ids, logits_to_keep=1).logits
        assert torch.equal(model(input_ids=ids, past_key_values=cache, logits_to_keep=1).logits, expected)
    assert cache.recalled_tokens == 0 and "no position ids" in cache.plain
    recall.close()


@pytest.mark.parametrize("write", [lambda weight: weight.mul_(1.5), lambda weight: weight.data.mul_(1.5),
                                   lambda weight: weight.data[weight.shape[0] // 2:].mul_(1.5),
                                   lambda weight: weight.data[-1:].mul_(1.5)])
def test_a_conversation_whose_weights_change_is_stored_no_more(write, client):
    """Its second turn is of other weights on top of the first one's KV: neither model's."""
    model = make_model("llama")
    recall = recalling(model, client)
    cache = recall.cache()
    first, _, _ = generate(model, prompt(300), cache)
    assert recall.flush() and recall.statistics.stored_blocks == 1
    with torch.no_grad():
        write(model.model.layers[0].self_attn.k_proj.weight)
    generate(model, torch.cat([first, prompt(300, seed=2)], dim=1), cache)
    assert recall.flush() and recall.statistics.stored_blocks == 1
    assert cache.plain == "the weights changed while it was used"
    recall.close()


def test_adapters_that_come_later_are_seen(client):
    model = make_model("llama")
    recall = recalling(model, client)
    model.peft_config = {}
    model.model.layers[0].self_attn.lora = torch.nn.Linear(2, 2)
    cache = recall.cache()
    generate(model, prompt(300), cache)
    assert "PEFT adapters" in cache.plain
    assert recall.flush() and recall.statistics.stored_blocks == 0
    recall.close()


def test_models_that_cannot_be_recalled_are_refused_by_name(client):
    def refused(match, model):
        with pytest.raises(aquifer.Invalid, match=match):
            aquifer.transformers.Recall(model, client)
    refused("DynamicSlidingWindowLayer", make_model("mistral", sliding_window=64))
    refused("training mode", make_model("llama").train())
    refused("dynamic", make_model("llama", rope_scaling={"rope_type": "dynamic", "factor": 2.0}))
    adapted = make_model("llama")
    adapted.peft_config = {}
    refused("PEFT", adapted)
    with torch.device("meta"):
        empty = make_model("llama")
    refused("meta|has no bytes", empty)
    with torch.inference_mode():
        uncounted = make_model("llama")
    refused("inference_mode", uncounted)
    small = dict(vocab_size=64, d_model=32, decoder_layers=1, decoder_attention_heads=2, decoder_ffn_dim=32)
    refused("keeps", BartForCausalLM(BartConfig(**small)).eval())


def test_a_model_that_chooses_among_equals_by_the_length_of_the_text_is_refused(client):
    """Doge: what a token attends to in a long text is not what it attended to before there was the rest of it."""
    torch.manual_seed(0)
    model = DogeForCausalLM(DogeConfig(vocab_size=512, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
                                       num_attention_heads=4, num_key_value_heads=2, keep_window_size=64,
                                       initializer_range=0.2)).eval()
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.A)  # As a trained one: all are equal with the zeros of a new one.
    caches = [DynamicCache(config=model.config) for _ in range(2)]
    with torch.no_grad():
        for cache, tokens in zip(caches, (300, 700)):
            model(input_ids=prompt(700)[:, :tokens], past_key_values=cache)
    values = [cache.layers[1].values[:, :, :300] for cache in caches]
    assert not torch.allclose(*values, atol=1e-2)
    with pytest.raises(aquifer.Invalid, match="keep_window_size"):
        recalling(model, client)


def test_a_text_that_began_before_the_model_was_known_is_not_stored(client, monkeypatch):
    """Its keys are nobody's."""
    known, digest = threading.Event(), aquifer.transformers.model_digest
    monkeypatch.setattr(aquifer.transformers, "model_digest", lambda model: known.wait(60) and digest(model))
    model = make_model("llama")
    recall = recalling(model, client, background=True)
    cache = recall.cache()
    with torch.no_grad():
        model(input_ids=prompt(300), past_key_values=cache)
        known.set()
        aquifer.cache.wait_for(lambda: not recall.busy_identifying, 30)
        model(input_ids=prompt(300, seed=2), past_key_values=cache)
    assert recall.flush() and recall.statistics.stored_blocks == 0
    cache.reset()  # And from now on it is like any other.
    generate(model, prompt(300), cache)
    assert recall.flush() and recall.statistics.stored_blocks == 1
    recall.close()


def test_a_model_that_changes_while_the_node_stands_still_is_known_later(tmp_path, monkeypatch):
    model = make_model("llama")
    ids = prompt(300)
    with aquifer.Node(str(tmp_path / "node.sock"), dram="256MiB") as node:
        recall = recalling(model, node.connect())
        before = recall.layout.model
        monkeypatch.setattr(aquifer.transformers, "_REGISTER_SECONDS", 0.2)
        with torch.no_grad():
            model.model.layers[0].self_attn.k_proj.weight.mul_(1.5)
        stand_still(node_process(node._process.pid))
        cache = recall.cache()
        sequences, _, _ = generate(model, ids, cache)
        assert cache.plain.startswith("nobody knows which model it is")
        assert torch.equal(sequences, generate(model, ids)[0])
        os.kill(node_process(node._process.pid), signal.SIGCONT)
        monkeypatch.setattr(aquifer.transformers, "_REGISTER_SECONDS", 30.0)

        def stored():
            generate(model, ids, recall.cache())
            return recall.flush() and recall.statistics.stored_blocks > 0
        aquifer.cache.wait_for(stored, 60)
        assert recall.layout.model not in (before, bytes(32))
        recall.close()


def test_a_model_that_becomes_another_type_is_looked_at_again(client):
    """float16 has as many bits as bfloat16, and a recalled KV would be read as the wrong one."""
    model = make_model("llama", torch.float16)
    recall = recalling(model, client)
    model.to(torch.bfloat16)
    ids = prompt(300)
    for recalled in (0, BLOCK):
        cache = recall.cache()
        generate(model, ids, cache)
        assert cache.recalled_tokens == recalled
        assert all(layer.keys.dtype == torch.bfloat16 for layer in cache.layers)
        assert recall.flush()
    assert recall.layout.groups[0].dtype == aquifer.DType.BFLOAT16
    recall.close()


def test_whoever_names_a_model_does_not_name_its_type(client):
    model = make_model("llama", torch.float16)
    recall = recalling(model, client, digest=bytes(range(32)))
    model.to(torch.bfloat16)
    cache = recall.cache()
    generate(model, prompt(300), cache)
    assert "another type" in cache.plain
    assert recall.flush() and recall.statistics.stored_blocks == 0
    recall.close()


def test_identifying_in_the_background_recalls_nothing_until_it_is_done(client, monkeypatch):
    model = make_model("llama")
    ids = prompt(600)
    before = recalling(model, client)
    generate(model, ids, before.cache())
    assert before.flush()
    before.close()
    known, digest = threading.Event(), aquifer.transformers.model_digest
    monkeypatch.setattr(aquifer.transformers, "model_digest", lambda model: known.wait(60) and digest(model))
    recall = recalling(model, client, background=True)
    cache = recall.cache()
    generate(model, ids, cache)
    assert cache.recalled_tokens == 0
    known.set()
    aquifer.cache.wait_for(lambda: not recall.busy_identifying, 30)
    cache = recall.cache()
    generate(model, ids, cache)
    assert cache.recalled_tokens == 2 * BLOCK
    assert recall.layout.model == aquifer.transformers.model_digest(model)
    recall.close()


@pytest.mark.parametrize("config_class, model_class", [
    (Qwen2VLConfig, Qwen2VLForConditionalGeneration), (Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration),
    (Qwen3VLConfig, Qwen3VLForConditionalGeneration), (Glm4vConfig, Glm4vForConditionalGeneration)])
def test_models_that_remember_where_images_were_are_refused(config_class, model_class, client):
    """A recalled prompt is one that goes on, to them: they would place it by the last images of whoever it was."""
    text = dict(vocab_size=512, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
                num_key_value_heads=2, head_dim=32, pad_token_id=0,
                rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]})
    vision = dict(depth=1, embed_dim=32, hidden_size=32, out_hidden_size=64, num_heads=2, intermediate_size=32)
    model = model_class(config_class(text_config=text, vision_config=vision)).eval()
    with pytest.raises(aquifer.Invalid, match="M-RoPE"):
        recalling(model, client)


class Doubled(torch.nn.Module):
    def forward(self, hidden):
        return 2 * torch.nn.functional.silu(hidden)


class Shifted(LlamaForCausalLM):
    """Another model by the name of a known one."""

    def forward(self, input_ids=None, **given):
        return super().forward(input_ids=(input_ids * 7) % 512, **given)


Shifted.__name__ = "LlamaForCausalLM"


def _colder(module, query, key, value, mask, scaling=None, **given):
    return sdpa_attention_forward(module, query, key, value, mask, scaling=4 * query.shape[-1] ** -0.5, **given)


@functools.wraps(sdpa_attention_forward)
def _disguised(*args, **given):
    return _colder(*args, **given)


def _attend_by(function):
    def change(model):
        AttentionInterface.register("ours", function)
        AttentionMaskInterface.register("ours", sdpa_mask)
        model.set_attn_implementation("ours")
    return change


def _activate_by(make):
    def change(model):
        for layer in model.model.layers:
            layer.mlp.act_fn = make().eval()
    return change


def _be_another_class(model):
    model.__class__ = Shifted


def _patch_one(model):
    part = model.model.layers[0].mlp
    part.forward = lambda hidden: 2 * type(part).forward(part, hidden)


def _set_otherwise(model):
    model.model.layers[0].input_layernorm.variance_epsilon = 0.5


def _attend_otherwise(model):
    model.model.layers[0].self_attn.scaling *= 4  # No module says it of itself.


@pytest.mark.parametrize("change", [_attend_by(_colder), _attend_by(_disguised), _activate_by(torch.nn.Tanh),
                                    _activate_by(Doubled), _be_another_class, _patch_one, _set_otherwise,
                                    _attend_otherwise])
def test_other_code_is_another_model(change, client):
    """With the same weights and the same configuration: for the Recall that was there before, and for a new one."""
    model = make_model("llama")
    recall = recalling(model, client)
    ids = prompt(300)
    generate(model, ids, recall.cache())
    assert recall.flush()
    before = recall.layout.model
    change(model)
    cache = recall.cache()
    assert torch.equal(generate(model, ids, cache)[0], generate(model, ids)[0])
    assert cache.recalled_tokens == 0 and cache.plain is None
    new = recalling(model, client)
    assert new.layout.model == recall.layout.model != before
    recall.close()
    new.close()


class Attend:
    """Holds how much colder it attends."""

    def __init__(self, times):
        self.times = times

    def __call__(self, module, query, key, value, mask, scaling=None, **given):
        return sdpa_attention_forward(module, query, key, value, mask, scaling=self.times * query.shape[-1] ** -0.5,
                                      **given)

    def attend(self, *args, **given):
        return self(*args, **given)


class Named(Attend):
    """Equal where it says the same, and so without a hash."""

    def __eq__(self, other):
        return self.times == other.times


def _attending(times):
    def attend(*args, **given):
        return Attend(times)(*args, **given)
    return attend


def _keeping(kept):
    def attend(*args, **given):
        return Attend(bool(kept))(*args, **given)
    return attend


def _scaling(times):
    class Scaling(torch.nn.Module):
        def forward(self, hidden):
            return times * torch.nn.functional.silu(hidden)
    return Scaling


def _scaling_by_class(times):
    class Scaling(torch.nn.Module):
        factor = times

        def forward(self, hidden):
            return self.factor * torch.nn.functional.silu(hidden)
    return Scaling


def _scaling_by_default(times):
    class Scaling(torch.nn.Module):
        def scaled(self, hidden, by=times):
            return by * hidden

        def forward(self, hidden):
            return self.scaled(torch.nn.functional.silu(hidden))
    return Scaling


def _attending_by_class(times):
    class Colder(Attend):
        @property
        def factor(self):
            return times

    def attend(*args, **given):
        return Attend(Colder(0).factor)(*args, **given)
    return attend


def _attending_by_made_object(times):
    class Colder:
        def __call__(self, *args, **given):
            return Attend(times)(*args, **given)
    return Colder()


def _masking_by(window):
    """What transformers' own functions have made is known by more than their names."""
    inside = sliding_window_overlay(window)

    def mask(*args, mask_function=causal_mask_function, **given):
        return sdpa_mask(*args, mask_function=and_masks(inside, mask_function), **{**given, "allow_is_causal_skip": False})

    def change(model):
        _attend_by(sdpa_attention_forward)(model)
        AttentionMaskInterface.register("ours", mask)
    return change


def _scale_by(number):
    """As numpy's square root of a size has it."""
    def change(model):
        for layer in model.model.layers:
            layer.self_attn.scaling = numpy.float64(number)
    return change


def _activate_with(function):
    def change(model):
        for layer in model.model.layers:
            layer.mlp.act_fn.forward = function
    return change


_TWICE, _THRICE = lambda hidden: 2 * hidden.tanh(), lambda hidden: 3 * hidden.tanh()


@pytest.mark.parametrize("one, other", [
    (_attend_by(functools.partial(sdpa_attention_forward, is_causal=None)),
     _attend_by(functools.partial(sdpa_attention_forward, is_causal=True))),
    (_attend_by(_attending(1)), _attend_by(_attending(4))),
    (_attend_by(Attend(1)), _attend_by(Attend(4))),
    (_attend_by(Attend(1).attend), _attend_by(Attend(4).attend)),
    (_activate_by(_scaling(1)), _activate_by(_scaling(4))),
    (_activate_by(_scaling_by_class(1)), _activate_by(_scaling_by_class(4))),
    (_activate_by(_scaling_by_default(1)), _activate_by(_scaling_by_default(4))),
    (_attend_by(_attending_by_class(1)), _attend_by(_attending_by_class(4))),
    (_attend_by(_attending_by_made_object(1)), _attend_by(_attending_by_made_object(4))),
    (_masking_by(8), _masking_by(128)),
    (_scale_by(0.2), _scale_by(0.8)),
    (_activate_with(functools.partial(torch.nn.functional.leaky_relu, negative_slope=0.1)),
     _activate_with(functools.partial(torch.nn.functional.leaky_relu, negative_slope=0.9))),
    (_activate_with(lambda hidden, times=1: times * hidden), _activate_with(lambda hidden, times=4: times * hidden)),
    (_activate_with(_TWICE), _activate_with(_THRICE))],
    ids=["partial", "closure", "object", "method", "class", "class attribute", "method's default", "closure's class",
         "object of a made class", "transformers' closure", "numpy's number", "partial forward", "default", "lambda"])
def test_what_a_function_holds_is_part_of_the_code(one, other, client):
    """By name and file they are the same, and they would recall each other's."""
    first, second, again = (make_model("llama") for _ in range(3))
    one(first)
    stored = recalling(first, client)
    ids = prompt(300)
    generate(first, ids, stored.cache())
    assert stored.flush() and stored.statistics.stored_blocks == 1
    for change, model, recalled in ((other, second, 0), (one, again, BLOCK)):
        change(model)
        recall = recalling(model, client)
        cache = recall.cache()
        assert torch.equal(generate(model, ids, cache)[0], generate(model, ids)[0])
        assert cache.recalled_tokens == recalled
        recall.close()
    stored.close()


def test_code_is_named_alike_in_every_process():
    """Sets have another order in each."""
    program = ("from aquifer.model_code import _code_digest\n"
               "print(_code_digest((lambda kind: kind in {'gelu', 'silu', 'relu', 'tanh'}).__code__))")
    said = {subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": str(seed)}, check=True,
                           capture_output=True, text=True).stdout for seed in range(3)}
    assert len(said) == 1


def _generated(text):
    space = {"torch": torch}
    exec(f"def generated(hidden):\n    return {text}\n", space)
    return space["generated"]


class Times(float):
    """Has attributes, and its number is none of them."""


class Slotted(Attend):
    __slots__ = ("others",)


def _doubled(hidden):
    return 2 * hidden


_doubled_op = torch.library.custom_op("aquifer_test::doubled", _doubled, mutates_args=(),
                                      schema="(Tensor hidden) -> Tensor")


@pytest.mark.parametrize("change, named", [
    (_activate_by(lambda: torch.jit.script(Doubled())), "act_fn is TorchScript"),
    (_activate_with(torch.jit.script(_doubled)), "holds a .*ScriptFunction"),
    (_activate_with(_doubled_op), "holds a CustomOpDef"),
    (_activate_with(torch.ops.aquifer_test.doubled), "holds a OpOverloadPacket"),
    (_activate_with(torch.full((1,), 4.0).mul), "holds a Tensor"),
    (_attend_by(_keeping(Times(4))), "holds a Times"),
    (_attend_by(_keeping(collections.OrderedDict(times=4))), "holds a OrderedDict"),
    (_attend_by(Slotted(4)), "holds a Slotted"),
    (_activate_by(lambda: torch.fx.symbolic_trace(Doubled())), "has no source file"),
    (_activate_with(_generated("2 * hidden")), "generated computes a part of it, and nobody knows how"),
    (_attend_by(_keeping(object())), "_keeping.<locals>.attend computes a part of it, and holds a object"),
    (_attend_by(_keeping(torch.nn.Linear(2, 2))), "_keeping.<locals>.attend computes .*, and holds a Linear"),
    (_attend_by(Named(1)), "a Named computes a part of it, .* has no hash")])
def test_code_that_nobody_can_name_is_refused_by_name(change, named, client):
    model = make_model("llama")
    recall = recalling(model, client)
    change(model)
    with pytest.raises(aquifer.Invalid, match=named):
        recalling(model, client)
    cache = recall.cache()
    assert torch.equal(generate(model, prompt(20), cache)[0], generate(model, prompt(20))[0])
    assert cache.plain.startswith("nobody knows which model it is")
    recall.close()


def test_a_function_that_is_registered_by_the_same_name_is_another():
    model = make_model("llama")
    _attend_by(_colder)(model)
    first = aquifer.transformers.weights_version(model), aquifer.transformers.model_digest(model)
    assert first == (aquifer.transformers.weights_version(model), aquifer.transformers.model_digest(model))
    AttentionInterface.register("ours", _disguised)
    second = aquifer.transformers.weights_version(model), aquifer.transformers.model_digest(model)
    assert first[0] != second[0] and first[1] != second[1]


def test_the_source_of_code_that_is_nobodys_release_counts(tmp_path):
    model = make_model("llama")
    digests = set()
    for number, text in enumerate(("hidden.tanh()", "hidden.tanh()", "hidden.sin()")):
        file = tmp_path / f"{number}.py"
        file.write_text("import torch\nclass Own(torch.nn.Module):\n    def forward(self, hidden):\n"
                        f"        return {text}\n")
        spec = importlib.util.spec_from_file_location("own_activation", file)
        sys.modules["own_activation"] = loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        _activate_by(loaded.Own)(model)
        digests.add(aquifer.transformers.model_digest(model))
    del sys.modules["own_activation"]
    assert len(digests) == 2


def test_code_without_a_source_is_refused_by_name(client):
    space = {"torch": torch, "__name__": "typed_in"}
    exec("class Typed(torch.nn.Module):\n    def forward(self, hidden):\n        return hidden.tanh()\n", space)
    model = make_model("llama")
    _activate_by(space["Typed"])(model)
    with pytest.raises(aquifer.Invalid, match="typed_in.Typed"):
        recalling(model, client)
    recalling(model, client, digest=bytes(range(32))).close()  # Its user knows.


def test_tensors_that_wrap_others_are_refused(client, monkeypatch, caplog):
    """Their address is nobody's: to hash what is there would end the process."""
    from torch.testing._internal.two_tensor import TwoTensor
    model = make_model("llama")
    known = recalling(model, client)
    weight = model.model.layers[0].mlp.up_proj.weight.detach()
    model.model.layers[0].mlp.up_proj.weight = torch.nn.Parameter(TwoTensor(weight, weight.clone()), requires_grad=False)
    with pytest.raises(aquifer.Invalid, match="LlamaForCausalLM cannot be recalled: .*up_proj.weight is a TwoTensor"):
        recalling(model, client)
    for look in (aquifer.transformers.model_digest, aquifer.transformers.weights_version):
        with pytest.raises(aquifer.Invalid, match="TwoTensor"):
            look(model)
    cache = known.cache()
    generate(model, prompt(20), cache)
    assert "TwoTensor" in cache.plain
    known.close()
    monkeypatch.setattr(aquifer.transformers, "_check_kind", lambda model: None)
    recall = recalling(model, client, background=True)
    aquifer.cache.wait_for(lambda: not recall.busy_identifying, 30)
    cache = recall.cache()
    generate(model, prompt(20), cache)
    assert "TwoTensor" in cache.plain and "TwoTensor" in caplog.text
    recall.close()


class Packed(torch.nn.Parameter):
    """As quantised weights are: four bits each, and their scales beside them."""


def _pack(model):
    for layer in model.model.layers:
        layer.mlp = torch.ao.quantization.quantize_dynamic(layer.mlp, {torch.nn.Linear}, torch.float16).eval()


def _pack_one(model):
    part = model.model.layers[0].mlp.up_proj
    part.weight = Packed(part.weight.detach().clone(), requires_grad=False)


def _scale_beside(model):
    model.model.layers[0].mlp.up_proj.meta = {"scales": [torch.ones(4)]}


def _hide(model):
    """So that it is not saved with the others, say."""
    model.model.layers[0].mlp.guides = [torch.nn.Linear(4, 4)]


def _slope(model):
    model.model.layers[0].self_attn.slopes = numpy.arange(4.0)


def _refer(model):
    model.model.layers[0].mlp.neighbours = [model.model.layers[1].mlp]


@pytest.mark.parametrize("change, named", [
    (_pack, "layers.0.mlp.gate_proj._packed_params._packed_params of LinearPackedParams is neither"),
    (_pack_one, "layers.0.mlp.up_proj.weight is a Packed"), (_scale_beside, "up_proj.meta of Linear is neither"),
    (_hide, "layers.0.mlp.guides of LlamaMLP is neither"), (_slope, "layers.0.self_attn.slopes of LlamaAttention is neither")])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_weights_that_are_not_in_parameters_are_refused(change, named, client):
    """They would be in no name: models that differ in them would recall each other's KV."""
    model = make_model("llama")
    before = recalling(model, client)
    change(model)
    with pytest.raises(aquifer.Invalid, match=f"LlamaForCausalLM cannot be recalled: .*{named}"):
        recalling(model, client)
    cache = before.cache()
    ids = prompt(300)
    assert torch.equal(generate(model, ids, cache)[0], generate(model, ids)[0])
    assert before.flush() and before.statistics.stored_blocks == (change in (_scale_beside, _hide, _slope))
    before.close()


def test_a_module_that_is_named_twice_is_no_other_model(client):
    model = make_model("llama")
    digest = aquifer.transformers.model_digest(model)
    _refer(model)
    recall = recalling(model, client)
    assert recall.layout.model == digest
    recall.close()


def test_a_part_of_a_model_in_training_mode_is_not_stored(client):
    """Each module drops out by itself."""
    model = make_model("llama", attention_dropout=0.5)
    recall = recalling(model, client)
    model.model.layers[1].self_attn.train()
    cache = recall.cache()
    generate(model, prompt(300), cache)
    assert cache.plain == "training mode"
    assert recall.flush() and recall.statistics.stored_blocks == 0
    with pytest.raises(aquifer.Invalid, match="training mode"):
        recalling(model, client)
    recall.close()


def test_what_is_harmless_in_a_configuration_is_not_so_below_it():
    def told(kind):
        return configuration_bytes(LlamaConfig(quantization_config={
            "quant_method": "quark", "model_type": "llama", "global_quant_config": {"input_tensors": {"dtype": kind}}}))
    assert told("fp8_e4m3") != told("int8")
    vision = dict(depth=1, embed_dim=32, hidden_size=64, num_heads=2)
    told_of = [configuration_bytes(Qwen2VLConfig(text_config=dict(hidden_size=size, use_cache=use), vision_config=vision))
               for size, use in ((64, True), (64, False), (32, True))]
    assert told_of[0] == told_of[1] != told_of[2]


def test_a_model_that_fails_when_it_is_tried_is_refused_in_its_words(client):
    """X-MOD without a language."""
    config = XmodConfig(**ROBERTA, languages=["en_XX", "de_DE"])
    with pytest.raises(aquifer.Invalid, match="XmodForCausalLM cannot be recalled: .*language"):
        recalling(XmodForCausalLM(config).eval(), client)
