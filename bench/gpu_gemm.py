"""Measures the cost of moving blocks to a GPU's own work: matrix products alone, and while 4 GiB of KV are loaded, or
loaded and stored, again and again.

usage: python bench/gpu_gemm.py

Prints one JSON object a line; `ratio` is the median over the rounds, with the lowest and the
highest round beside it. Needs torch with a GPU and the aquifer package."""
import contextlib
import json
import statistics
import threading
import time

import torch

import aquifer
from aquifer.cache import Chain
from aquifer.layout import DType, KvGroup, Layout
from aquifer.node import Node
from aquifer.tensors import Family, TensorMap

TOKENS = 32768
PRODUCTS = 400
ROUNDS = 10
SIDE = 8192
PAUSE_SECONDS = 0.1  # Before each measurement: a GPU that rested is faster for a while.


class Mover:
    """A sequence of Llama-3-8B's KV, and a client that moves it."""

    def __init__(self, node, salt):
        layout = Layout(model=bytes(32), kv_format="bench",
                        groups=(KvGroup(layers=32, kv_heads=8, key_dim=128, value_dim=128, dtype=DType.BFLOAT16),))
        shape = (1, 8, TOKENS, 128)
        layers = [torch.randn(shape, dtype=torch.bfloat16, device="cuda") for _ in range(64)]
        torch.cuda.synchronize()
        self.client = node.connect()
        self.map = TensorMap(layout, Family.SEQUENCES, layers[:32], layers[32:])
        self.root = layout.root(cache_salt=salt)
        keys = aquifer.derive_keys(self.root, [7] * TOKENS, layout.tokens_per_block)
        self.chain = Chain(self.client.register(layout), keys)
        self.rates = []

    def store(self):
        self.client.evict(self.chain)
        begin = time.perf_counter()
        stored = self.client.store(self.chain, self.root, self.map, [0], timeout=60)
        self.rates.append(stored.bytes / 1e9 / (time.perf_counter() - begin))

    def load(self):
        begin = time.perf_counter()
        loaded = self.client.load(self.chain, self.map, [0], timeout=60)
        self.rates.append(loaded.bytes / 1e9 / (time.perf_counter() - begin))


def products_ms(left, right):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(PRODUCTS):
        torch.mm(left, right)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


@contextlib.contextmanager
def going_on(work):
    """Repeats each of `work`, on a thread of its own."""
    stop = threading.Event()

    def repeat(one):
        while not stop.is_set():
            one()

    threads = [threading.Thread(target=repeat, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def compare(work, left, right):
    """The products' times in each round, alone and beside `work`. Both are measured in each round, because a
    GPU's clock wanders by more than the work costs. Each of them is first in every other round."""
    times = {"alone": [], "beside": []}
    for index in range(ROUNDS):
        for kind in sorted(times, reverse=index % 2 == 1):
            with going_on(work if kind == "beside" else []):
                time.sleep(PAUSE_SECONDS)
                times[kind].append(products_ms(left, right))
    return times["alone"], times["beside"]


def spread(values):
    """The width of the middle half of the values, as a part of the median."""
    low, middle, high = statistics.quantiles(values, n=4)
    return (high - low) / middle


def main():
    left, right = (torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    with Node(dram="10GiB") as node:
        loader, storer = Mover(node, "a"), Mover(node, "b")
        for mover in (loader, storer):
            mover.store()
            mover.load()
        time.sleep(8)  # By then the node's memory is pinned.
        for _ in range(2):
            loader.load()
            storer.store()
        products_ms(left, right)
        tflops = 2 * SIDE**3 * PRODUCTS / 1e9
        for name, work in (("loads", [loader.load]), ("loads-and-stores", [loader.load, storer.store])):
            loader.rates, storer.rates = [], []
            alone, beside = compare(work, left, right)
            limit, ours = (tflops / statistics.median(times) for times in (alone, beside))
            ratios = [one / other for one, other in zip(alone, beside)]
            print(json.dumps({"name": f"gpu.gemm/beside-{name}", "unit": "TFLOP/s", "limit": limit,
                              "limit_is": "the same products of 8192 x 8192 in bf16 alone", "ours": ours,
                              "ratio": statistics.median(ratios), "goal": 0.97, "peers": {},
                              "lowest_ratio": min(ratios), "highest_ratio": max(ratios),
                              "limit_spread": spread(alone), "ours_spread": spread(beside),
                              "load_gbps": statistics.median(loader.rates),
                              "store_gbps": statistics.median(storer.rates) if storer.rates else 0}), flush=True)
        for mover in (loader, storer):
            mover.client.close()


if __name__ == "__main__":
    main()
