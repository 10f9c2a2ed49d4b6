"""Small models with random weights whose answer depends on all of their text. Run as a program, it stores
and recalls from another process, one model of each kind: models.py SOCKET store|recall"""
from __future__ import annotations

import json
import sys

import torch
from transformers import (LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen2Config,
                          Qwen2ForCausalLM)

torch.set_num_threads(1)  # Others run at the same time, and threads that wait for each other would spin.

BLOCK = 256  # Of these models, by the product's rule.
KINDS = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM),
         "mistral": (MistralConfig, MistralForCausalLM)}


def make_model(kind, dtype=torch.float32, seed=0, **changes):
    config_class, model_class = KINDS[kind]
    values = dict(vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=3,
                  num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096,
                  initializer_range=0.12, bos_token_id=1, eos_token_id=None)
    if kind == "mistral":
        values["sliding_window"] = None
    if "rope_theta" in changes:
        changes["rope_parameters"] = {"rope_type": "default", "rope_theta": changes.pop("rope_theta")}
    torch.manual_seed(seed)
    return model_class(config_class(**{**values, **changes})).to(dtype).eval()


def make_tokenizer():
    """A token a byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: number + 3 for number, symbol in enumerate(symbols)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def prompt(length, seed=1):
    return torch.randint(1, 512, (1, length), generator=torch.Generator().manual_seed(seed))


class Counting:
    """How many tokens go through the model, rows times columns."""

    def __init__(self, model):
        self._model = model.get_input_embeddings()
        self.tokens = 0

    def __enter__(self):
        def count(module, args, output):
            self.tokens += args[0].numel()
        self._hook = self._model.register_forward_hook(count)
        return self

    def __exit__(self, *_):
        self._hook.remove()


def recalling(model, client, **options):
    """A Recall that recalls whatever there is, however busy the host is."""
    import aquifer.transformers
    return aquifer.transformers.Recall(model, client, deadline=60.0, always=True, **options)


def generate(model, ids, cache=None, mask=None, **options):
    """Eight tokens: the text with them, their logits, and how many tokens went through the model."""
    with Counting(model) as counted:
        output = model.generate(ids, attention_mask=torch.ones_like(ids) if mask is None else mask,
                                past_key_values=cache, max_new_tokens=8, do_sample=False, pad_token_id=0,
                                return_dict_in_generate=True, output_logits=True, **options)
    return output.sequences, torch.stack(output.logits), counted.tokens


def main():
    import aquifer
    told = {}
    with aquifer.connect(sys.argv[1]) as client:
        for kind in KINDS:
            recall = recalling(make_model(kind), client)
            cache = recall.cache()
            output, _, computed = generate(recall.model, prompt(700), cache)
            recall.close()
            told[kind] = {"tokens": output[0, 700:].tolist(), "recalled": cache.recalled_tokens, "computed": computed}
        if sys.argv[2] == "store":
            client.flush(aquifer.Tier.NVME)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
