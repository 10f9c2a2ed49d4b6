"""What moving blocks costs a GPU's own work: matrix products alone, and while 4 GiB of KV are loaded, or loaded and
stored, again and again.

usage: python bench/gpu_gemm.py

Prints one JSON object a line. Needs torch with a GPU and the aquifer package."""
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
ROUNDS = 9
SIDE = 8192


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
    """Each of `work` is done over and over, on a thread of its own."""
    stop = threading.Event()

    def repeat(one):
        while not stop.is_set():
            one()

    threads = [threading.Thread(target=repeat, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def compare(work, left, right):
    """The products' times alone and beside `work`, in turn, since a GPU's clock wanders by more than it costs."""
    alone, beside = [], []
    for _ in range(ROUNDS):
        alone.append(products_ms(left, right))
        with going_on(work):
            beside.append(products_ms(left, right))
    return statistics.median(alone), statistics.median(beside)


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
            limit, ours = (tflops / ms for ms in compare(work, left, right))
            print(json.dumps({"name": f"gpu.gemm/beside-{name}", "unit": "TFLOP/s", "limit": limit,
                              "limit_is": "the same products of 8192 x 8192 in bf16 alone", "ours": ours,
                              "ratio": ours / limit, "goal": 0.97, "peers": {},
                              "load_gbps": statistics.median(loader.rates),
                              "store_gbps": statistics.median(storer.rates) if storer.rates else 0}), flush=True)
        for mover in (loader, storer):
            mover.client.close()


if __name__ == "__main__":
    main()
