#!/usr/bin/env python3
"""What a call from Python costs, against a node of its own: python/measure_calls.py

Prints microseconds, the median of many. A batch of 1 is the price of a call; the rest is what a key or a
block adds, which is the library's work and no longer Python's.
"""
import hashlib
import statistics
import time

import aquifer

TOKENS_PER_BLOCK = 16


def median_us(call, repeat=300):
    times = []
    for _ in range(repeat):
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1000


class Memory:
    """A tensor without torch or numpy."""

    def __init__(self, shape):
        count = 4
        for length in shape:
            count *= length
        self._bytes = bytearray(count)
        import ctypes
        address = ctypes.addressof((ctypes.c_uint8 * count).from_buffer(self._bytes))
        self.__array_interface__ = {"shape": shape, "typestr": "<f4", "strides": None, "data": (address, False)}


def main():
    layout = aquifer.Layout(
        model=hashlib.sha256(b"measured").digest(), kv_format="measure", tokens_per_block=TOKENS_PER_BLOCK,
        groups=(aquifer.KvGroup(layers=4, kv_heads=2, key_dim=32, value_dim=32, dtype=aquifer.DType.FLOAT32),))
    most = 1024
    pages = list(range(64))
    tensors = aquifer.TensorMap(layout, aquifer.Family.FUSED,
                                [Memory((64, 2, TOKENS_PER_BLOCK, 64)) for _ in range(4)])
    tokens = aquifer.layout.token_array(range(most * TOKENS_PER_BLOCK))
    root = layout.root()
    with aquifer.Node(dram="512MiB") as node, node.connect() as cache:
        known = cache.register(layout)
        keys = aquifer.derive_keys(root, tokens, TOKENS_PER_BLOCK)
        chain = aquifer.Chain(known, keys)
        cache.store(chain.part_of(0, 64), root, tensors, pages, timeout=30)
        one = aquifer.layout.token_array(tokens[:TOKENS_PER_BLOCK])
        print("call                       batch   median us   us a key")
        print(f"no call at all                  - {median_us(lambda: None):11.2f}")
        print(f"aquifer_abi_version()           - {median_us(aquifer._native.library.aquifer_abi_version):11.2f}")

        def show(name, count, call):
            cost = median_us(call)
            print(f"{name:<24} {count:7} {cost:11.2f} {cost / count:10.2f}")
        show("derive_keys", 1, lambda: aquifer.derive_keys(root, one, TOKENS_PER_BLOCK))
        show("derive_keys", most, lambda: aquifer.derive_keys(root, tokens, TOKENS_PER_BLOCK))
        for count in (1, 64, most):
            part = chain.part_of(0, count)
            show("match", count, lambda: cache.match(part))
        for count in (1, 64):
            part = chain.part_of(0, count)
            show("load (64 KiB blocks)", count, lambda: cache.load(part, tensors, pages))
        part = chain.part_of(0, 64)
        show("store (all there)", 64, lambda: cache.store(part, root, tensors, pages))


main()
