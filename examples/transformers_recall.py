"""Hugging Face transformers with Aquifer: the second turn of a conversation computes only what is new. A small random
model is made on the spot; nothing is downloaded. Needs torch and transformers beside the package.

    python examples/transformers_recall.py             # with a cache in this process
    python examples/transformers_recall.py --node      # with the host's node (aquifer serve)
"""
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import aquifer
import aquifer.transformers


def main():
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=1024, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=4096)).eval()
    cache = aquifer.connect() if "--node" in sys.argv[1:] else aquifer.open_cache(dram_bytes=256 << 20)
    recall = aquifer.transformers.Recall(model, cache)
    text = torch.randint(3, 1000, (1, 1500))
    for turn in (1, 2, 3):
        kept = recall.cache(session="chat 7")  # A new cache without any KV of its own.
        text = model.generate(text, attention_mask=torch.ones_like(text), past_key_values=kept, max_new_tokens=20,
                              do_sample=False, pad_token_id=0, eos_token_id=None)
        print(f"turn {turn}: {kept.recalled_tokens} of {text.shape[1] - 20} tokens recalled")
        recall.flush()  # Only so that the next turn, which comes at once, finds all of this one.
        text = torch.cat([text, torch.randint(3, 1000, (1, 100))], dim=1)  # The user's next text.
    print(recall.statistics)
    recall.close()


if __name__ == "__main__":
    main()
