"""An engine's use of Aquifer, in Python: it asks how much of a prompt's KV is there, loads that into its own
arrays, computes the rest, and stores it. Needs the package and numpy.

    python examples/recall.py             # with a cache in this process
    python examples/recall.py --node      # with the host's node (aquifer serve)
"""
import hashlib
import sys

import numpy

import aquifer

LAYERS, HEADS, DIM = 4, 2, 64


def compute(tokens, keys, values, first):
    """Stands for the model: it fills in the KV of the tokens from `first` on."""
    for layer in range(LAYERS):
        for place in range(first, len(tokens)):
            keys[layer][0, :, place] = tokens[place] + layer
            values[layer][0, :, place] = -tokens[place] - layer


def prefill(cache, known, tokens):
    """The KV of a prompt, recalled as far as it is there. Also how many of its tokens were not computed."""
    layout = known.layout
    root = layout.root(cache.tenant)
    chain = aquifer.Chain(known, aquifer.derive_keys(root, tokens, layout.tokens_per_block))
    keys, values = ([numpy.zeros((1, HEADS, len(tokens), DIM), numpy.float32) for _ in range(LAYERS)] for _ in "KV")
    tensors = aquifer.TensorMap(layout, aquifer.Family.SEQUENCES, keys, values)

    have = 0
    try:
        pays = cache.match(chain, timeout=0.25).pays  # So many blocks are faster loaded than computed.
        if pays:
            have = cache.load(chain.part_of(0, pays), tensors, [0], timeout=1.0).blocks
    except (aquifer.Unavailable, aquifer.Late):
        pass  # There is no node, or it is slow: compute.
    recalled = have * layout.tokens_per_block
    compute(tokens, keys, values, recalled)
    if have < len(chain):
        new = chain.part_of(have)
        parent = chain.key(have - 1) if have else root
        stored = cache.store(new, parent, tensors, [0], first_block=have, position=have, timeout=5.0)
        print(f"  stored {stored.stored} blocks of {layout.tokens_per_block} tokens")
    return keys, values, recalled


def main():
    cache = aquifer.connect() if "--node" in sys.argv[1:] else aquifer.open_cache(dram_bytes=256 << 20)
    with cache:
        group = aquifer.KvGroup(layers=LAYERS, kv_heads=HEADS, key_dim=DIM, value_dim=DIM, dtype=aquifer.DType.FLOAT32)
        model = hashlib.sha256(b"its configuration and weights").digest()
        known = cache.register(aquifer.Layout(model=model, kv_format="example.v1", groups=(group,)))
        question, longer = list(range(1000)), list(range(1000)) + list(range(500))
        for turn, tokens in (("first", question), ("again", question), ("goes on", longer), ("again", longer)):
            keys, values, recalled = prefill(cache, known, tokens)
            right = all((keys[layer][0, 0, :, 0] == numpy.add(tokens, layer)).all() for layer in range(LAYERS))
            print(f"{turn}: {recalled} of {len(tokens)} tokens recalled, {'right' if right else 'WRONG'}")


if __name__ == "__main__":
    main()
