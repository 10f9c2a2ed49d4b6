"""Time to first token of a Llama-3-8B-shaped model with random weights on a GPU: computed, recalled from a node's
memory, recalled from NVMe after the node was started anew, and loaded with torch.load; beside the time that the
host link takes for the bytes.

usage: python bench/transformers_gpu.py [--tokens N ...] [--directory DIR] [--dram SIZE]

Prints one JSON object a line. Needs torch with a GPU, transformers, and the aquifer package."""
import argparse
import json
import os
import statistics
import tempfile
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from aquifer.node import Node
from aquifer.transformers import Recall

TOKEN_BYTES = 128 << 10


def make_model():
    config = LlamaConfig(vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
                         num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=140000,
                         rope_theta=500000.0, initializer_range=0.02)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    return model


def timed(work):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    result = work()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1000, result


def forward(model, ids, cache):
    """The last token's logits."""
    with torch.inference_mode():
        return model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits


def continued(model, ids, cache):
    """The same from KV that is there, or is recalled. What torch prefers on an H200 gives other bits now and then from one
    and the same KV; this attention does not."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return forward(model, ids, cache)


def kept(cache, columns):
    """A plain cache with the first columns of another one's KV."""
    plain = DynamicCache()
    for index, layer in enumerate(cache.layers):
        plain.update(layer.keys[:, :, :columns], layer.values[:, :, :columns], index)
    return plain


def link_gbps():
    host = torch.empty(1 << 30, dtype=torch.uint8).pin_memory()
    there = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    times = [timed(lambda: there.copy_(host, non_blocking=True))[0] for _ in range(5)]
    return (1 << 30) / 1e6 / statistics.median(times)


def torch_file_ms(model, ids, cache, columns, directory):
    """Saving the KV with torch.save; then loading it and computing the rest."""
    path = os.path.join(directory, "kv.pt")
    layers = [(layer.keys[:, :, :columns].contiguous(), layer.values[:, :, :columns].contiguous())
              for layer in cache.layers]
    saved, _ = timed(lambda: torch.save(layers, path))
    del layers

    def load():
        plain = DynamicCache()
        for index, (keys, values) in enumerate(torch.load(path, map_location="cuda")):
            plain.update(keys, values, index)
        return continued(model, ids[:, columns:], plain)

    loaded, _ = timed(load)
    os.unlink(path)
    return saved, loaded


def measure(model, recall, restart, tokens, gbps, directory):
    ids = torch.randint(0, 128000, (1, tokens), generator=torch.Generator().manual_seed(tokens)).cuda()
    for _ in range(2):  # Warms up, the step of one token too.
        warm = DynamicCache()
        forward(model, ids[:, :4096], warm)
        forward(model, ids[:, 4096:4097], warm)
    row = {"name": f"transformers.ttft/{tokens // 1024}K-tokens", "unit": "ms"}
    row["computed"], _ = timed(lambda: forward(model, ids, DynamicCache()))

    cache = recall.cache()
    row["computed_and_stored"], _ = timed(lambda: forward(model, ids, cache))
    row["stored_behind"], _ = timed(lambda: recall.flush(120))
    columns = tokens - 1  # All but the token whose logits are wanted.
    for _ in range(2):  # The first one loads kernels.
        plain = kept(cache, columns)
        row["decode_step"], expected = timed(lambda: continued(model, ids[:, columns:], plain))
        del plain

    def recalled():
        again = recall.cache()
        took, logits = timed(lambda: continued(model, ids, again))
        assert again.recalled_tokens == columns, (again.recalled_tokens, columns, again.plain)
        for ours, computed in zip(again.layers, cache.layers):
            for now, then in ((ours.keys, computed.keys), (ours.values, computed.values)):
                assert torch.equal(now[:, :, :columns], then[:, :, :columns])
        return took, logits

    row["recalled_first"], logits = recalled()  # Before the node's memory is pinned in this process.
    same = torch.equal(logits, expected)
    time.sleep(1 + tokens * TOKEN_BYTES / (64 << 20) * 0.05)
    times = []
    for _ in range(3):
        took, logits = recalled()
        times.append(took)
        same = same and torch.equal(logits, expected)
    row["recalled_dram"] = statistics.median(times)
    row["torch_save"], row["torch_load"] = torch_file_ms(model, ids, cache, columns, directory)
    recall._storing.flush(timeout=120)
    restart()
    row["recalled_nvme"], logits = recalled()
    row["logits_identical"] = same and torch.equal(logits, expected)
    row["link"] = tokens * TOKEN_BYTES / 1e6 / gbps
    row["ratio"] = (1.15 * row["link"] + row["decode_step"]) / row["recalled_dram"]
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 32768, 131072])
    parser.add_argument("--directory", default="/var/tmp")
    parser.add_argument("--dram", default="24GiB")
    args = parser.parse_args()
    model = make_model()
    gbps = link_gbps()
    with tempfile.TemporaryDirectory(dir=args.directory) as directory:
        socket = os.path.join(directory, "node.sock")

        def start():
            return Node(socket, dram=args.dram, nvme=[os.path.join(directory, "nvme") + ":26GiB"])

        nodes = [start()]
        recall = Recall(model, nodes[0].connect(), digest=bytes(range(32)), always=True, deadline=60)

        def restart():
            nodes[0].close()
            nodes[0] = start()
            # The client finds it by itself; until then everything is computed.
            time.sleep(2)

        for tokens in args.tokens:
            print(json.dumps(measure(model, recall, restart, tokens, gbps, directory)), flush=True)
        recall.close()
        nodes[0].close()


if __name__ == "__main__":
    main()
