"""Aquifer keeps the KV cache of inference engines in host memory and on drives, and lends it back.

    import aquifer
    cache = aquifer.connect()                        # the host's node; or aquifer.open_cache(...)
    known = cache.register(layout)                   # how the model's KV looks
    keys = aquifer.derive_keys(layout.root(), tokens, layout.tokens_per_block)
    chain = aquifer.Chain(known, keys)
    cache.match(chain).matched                       # blocks that need not be computed
    cache.load(chain, tensors, pages)                # into the engine's own pages
    cache.store(chain, layout.root(), tensors, pages)

The engines have modules of their own: aquifer.transformers, aquifer.vllm.
"""
from ._native import library as _library
from .cache import (Block, Cache, Chain, Fetch, Loaded, Match, Outcome, Pending, Registered, Run, RunState,
                    SessionState, Slot, Stats, Stored, Tier, TierStats, connect, open_cache)
from .errors import Busy, Corrupt, Error, Invalid, Late, NoSpace, NotFound, Unavailable
from .layout import (DType, Extra, Heads, Kind, KvGroup, Layout, derive_keys, fit_pages, heads_of_rank)
from .node import Node
from .tensors import Family, TensorMap, Verify

__version__ = _library.aquifer_version().decode()

__all__ = [
    "Block", "Busy", "Cache", "Chain", "Corrupt", "DType", "Error", "Extra", "Family", "Fetch", "Heads",
    "Invalid", "Kind", "KvGroup", "Late", "Layout", "Loaded", "Match", "NoSpace", "Node", "NotFound",
    "Outcome", "Pending", "Registered", "Run", "RunState", "SessionState", "Slot", "Stats", "Stored",
    "TensorMap", "Tier", "TierStats", "Unavailable", "Verify", "connect", "derive_keys", "fit_pages",
    "heads_of_rank", "open_cache",
]
