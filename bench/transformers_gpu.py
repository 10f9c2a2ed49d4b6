"""Time to first token of a Llama-3-8B-shaped model with random weights on a GPU: computed, recalled from a node's
memory, recalled from NVMe after a restart of the node, and loaded with torch.load. Beside it stands the time that the
host link takes for the bytes.

usage: python bench/transformers_gpu.py [--tokens N ...] [--directory DIR] [--dram SIZE]

Three rows for each length, in the format of `aquifer bench` and with fields of their own. transformers.ttft recalls
whatever it costs (always=True, deadline=60). transformers.ttft-defaults and -defaults-nvme let the node decide what
to recall, as a user's Recall does. A row's `options` says which it used. Times are in ms.

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

DEVICE = "cuda"
TOKEN_BYTES = 128 << 10
FORCED = {"always": True, "deadline": 60}
GOAL_TOKENS = 131072  # The design has a goal for this length.
REPEATED_TOKENS = 32768  # Longer prompts are computed once: that takes ten seconds and more.
LESSONS = (1024, 2048, 4096, 8192, 16384)  # Prefills from which the node learns what computing takes.


def make_model():
    config = LlamaConfig(vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
                         num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=140000,
                         rope_theta=500000.0, initializer_range=0.02)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(DEVICE):
        model = LlamaForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    return model


def timed(work):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    result = work()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1000, result


def median_ms(work, rounds):
    """Leaves out the first measurement if there are several: it makes kernels and takes memory."""
    if rounds > 1:
        timed(work)
    return statistics.median(timed(work)[0] for _ in range(rounds))


def prompt(tokens, seed):
    return torch.randint(0, 128000, (1, tokens), generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def forward(model, ids, cache):
    """The last token's logits."""
    with torch.inference_mode():
        return model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits


def continued(model, ids, cache):
    """The same from KV that is there, or is recalled. The attention that torch prefers on an H200 sometimes gives other
    bits from the same KV; flash attention does not."""
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
    there = torch.empty(1 << 30, dtype=torch.uint8, device=DEVICE)
    times = [timed(lambda: there.copy_(host, non_blocking=True))[0] for _ in range(5)]
    return (1 << 30) / 1e6 / statistics.median(times)


class Setup:
    """A node with a drive, the model, and two Recalls: one that always recalls, and one with the defaults."""

    def __init__(self, model, directory, dram):
        self.model = model
        self.directory = directory
        self._socket = os.path.join(directory, "node.sock")
        self._dram = dram
        self._node = self._start()
        self.client = self._node.connect()
        self.forced = Recall(model, self.client, digest=bytes(range(32)), **FORCED)
        self.usual = Recall(model, self.client, digest=bytes(range(32)))

    def _start(self):
        return Node(self._socket, dram=self._dram, nvme=[os.path.join(self.directory, "nvme") + ":26GiB"])

    def restart(self):
        """Restarts the node: stored blocks are then only on the drive, and the node has forgotten what it learned."""
        self.client.flush(timeout=120)
        self._node.close()
        self._node = self._start()
        time.sleep(2)  # The clients find the node by themselves; until then everything is computed.

    def teach(self):
        """Teaches the node how long computing takes, by a few prefills whose KV is then deleted."""
        cache = self.usual.cache(session="lessons")
        ids = prompt(sum(LESSONS), 1)
        first = 0
        for tokens in LESSONS:
            forward(self.model, ids[:, first:first + tokens], cache)
            first += tokens
        assert self.usual.flush(120) and cache.plain is None, cache.plain
        self.client.evict(session="lessons")

    def usual_ms(self, ids):
        """The first token's time with the defaults, and how many tokens were recalled for it."""
        cache = self.usual.cache()
        took, _ = timed(lambda: continued(self.model, ids, cache))
        assert self.usual.flush(120) and cache.plain is None, cache.plain
        return took, cache.recalled_tokens

    def close(self):
        self.forced.close()
        self.usual.close()
        self.client.close()
        self._node.close()


def torch_file_ms(model, ids, cache, columns, directory):
    """Saving the KV with torch.save; then loading it and computing the rest, read and mapped."""
    path = os.path.join(directory, "kv.pt")
    layers = [(layer.keys[:, :, :columns].contiguous(), layer.values[:, :, :columns].contiguous())
              for layer in cache.layers]
    saved, _ = timed(lambda: torch.save(layers, path))
    del layers

    def load(mmap):
        plain = DynamicCache()
        for index, (keys, values) in enumerate(torch.load(path, map_location=DEVICE, mmap=mmap)):
            plain.update(keys, values, index)
        return continued(model, ids[:, columns:], plain)

    rounds = 2 if ids.shape[1] <= REPEATED_TOKENS else 1
    read, mapped = (min(timed(lambda: load(mmap))[0] for _ in range(rounds)) for mmap in (False, True))
    os.unlink(path)
    return saved, read, mapped


def await_pins(tokens):
    """Waits until the node's memory is pinned for a client that has seen it."""
    time.sleep(1 + tokens * TOKEN_BYTES / (64 << 20) * 0.05)


def row_of(name, tokens, limit, limit_is, ours, goal, peers, options, **more):
    return {"name": f"transformers.{name}/{tokens // 1024}K-tokens", "unit": "ms", "limit": limit, "limit_is": limit_is,
            "ours": ours, "ratio": limit / ours, "peers": peers, "goal": goal, "options": options, **more}


def measure(setup, tokens, gbps):
    """The rows of one length."""
    model, recall = setup.model, setup.forced
    setup.client.evict(everything=True)
    ids = prompt(tokens, tokens)
    for _ in range(2):  # Warms up, the step of one token too.
        warm = DynamicCache()
        forward(model, ids[:, :4096], warm)
        forward(model, ids[:, 4096:4097], warm)
    del warm
    more = {}
    rounds = 3 if tokens <= REPEATED_TOKENS else 1
    computed = median_ms(lambda: forward(model, ids, DynamicCache()), rounds)
    # The defaults compute with continued()'s attention. It takes 279 ms for 8192 tokens where torch's own choice takes 252,
    # so only this is the same work.
    computed_alike = median_ms(lambda: continued(model, ids, DynamicCache()), rounds)

    cache = recall.cache()
    more["computed_and_stored"], _ = timed(lambda: forward(model, ids, cache))
    more["stored_behind"], stored = timed(lambda: recall.flush(120))
    assert stored and recall.statistics.dropped_stores == recall.statistics.failed_blocks == 0, recall.statistics
    columns = tokens - 1  # All but the token whose logits are wanted.
    steps = []
    for _ in range(6):
        plain = kept(cache, columns)
        took, expected = timed(lambda: continued(model, ids[:, columns:], plain))
        steps.append(took)
        del plain
    step = statistics.median(steps[1:])  # The first one loads kernels.

    def recalled():
        again = recall.cache()
        took, logits = timed(lambda: continued(model, ids, again))
        assert again.recalled_tokens == columns, (again.recalled_tokens, columns, again.plain)
        for ours, computed in zip(again.layers, cache.layers):
            for now, then in ((ours.keys, computed.keys), (ours.values, computed.values)):
                assert torch.equal(now[:, :, :columns], then[:, :, :columns])
        return took, torch.equal(logits, expected)

    more["recalled_first"], same = recalled()
    await_pins(tokens)
    again = [recalled() for _ in range(3)]
    setup.teach()
    setup.usual_ms(ids)
    await_pins(tokens)
    usual = [setup.usual_ms(ids) for _ in range(3)]
    more["torch_save"], more["torch_load_read"], more["torch_load_mmap"] = torch_file_ms(
        model, ids, cache, columns, setup.directory)
    setup.restart()
    more["recalled_nvme"], same_nvme = recalled()
    more["logits_identical"] = same and same_nvme and all(identical for _, identical in again)
    del cache
    setup.restart()
    setup.teach()
    usual_nvme, usual_nvme_tokens = setup.usual_ms(ids)  # While the memory that the lessons were stored into is pinned.
    await_pins(sum(LESSONS))
    after_pins, _ = setup.usual_ms(ids)

    link = tokens * TOKEN_BYTES / 1e6 / gbps
    peers = {"computed": computed, "torch.load": min(more["torch_load_read"], more["torch_load_mmap"])}
    yield row_of("ttft", tokens, 1.15 * link + step,
                 "1.15 times the host link's time for the KV, and a step of one token",
                 statistics.median(took for took, _ in again), 1.0 if tokens >= GOAL_TOKENS else 0.0, peers,
                 ", ".join(f"{name}={value}" for name, value in FORCED.items()), link=link, decode_step=step, **more)
    usual_ms, usual_tokens = (statistics.median(column) for column in zip(*usual))
    yield row_of("ttft-defaults", tokens, computed_alike, "the same prompt computed, with the same attention", usual_ms,
                 1.0, {"computed, with torch's own choice of attention": computed}, "defaults", recalled_tokens=usual_tokens)
    # A recall that does not pay is computed, and is as fast as computing; one measurement is off by so much.
    yield row_of("ttft-defaults-nvme", tokens, computed_alike, "the same prompt computed, with the same attention",
                 usual_nvme, 0.95, {"computed, with torch's own choice of attention": computed}, "defaults",
                 recalled_tokens=usual_nvme_tokens, after_pins=after_pins)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 32768, 131072])
    parser.add_argument("--directory", default="/var/tmp")
    parser.add_argument("--dram", default="24GiB")
    args = parser.parse_args()
    model = make_model()
    gbps = link_gbps()
    with tempfile.TemporaryDirectory(dir=args.directory) as directory:
        setup = Setup(model, directory, args.dram)
        for tokens in args.tokens:
            for row in measure(setup, tokens, gbps):
                print(json.dumps(row), flush=True)
        setup.close()


if __name__ == "__main__":
    main()
