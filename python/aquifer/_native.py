"""libaquifer.so by ctypes: include/aquifer/aquifer.h, declaration by declaration, and nothing more.

The other modules of this package are the only callers. What a call means is said in that header.
Calls that wait, copy or read let other Python threads run meanwhile. Those that take a few microseconds (_SHORT) do not:
who gives the interpreter's lock away for them gets it back when another thread has had its turn, milliseconds later.
"""
from __future__ import annotations

import ctypes
import os
import pathlib
from ctypes import (POINTER, Structure, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_uint16,
                    c_uint32, c_uint64, c_uint8, c_void_p)

ABI_VERSION = 2
KEY_BYTES = 32

_PACKAGE = pathlib.Path(__file__).resolve().parent
_RELEASE_BUILD = _PACKAGE.parent.parent / "build" / "release"  # Of a source tree.


def _find(name: str, variable: str) -> pathlib.Path:
    named = os.environ.get(variable)
    if named:
        return pathlib.Path(named)
    for folder in (_PACKAGE / "native", _RELEASE_BUILD):
        if (folder / name).exists():
            return folder / name
    raise ImportError(f"{name} is neither in {_PACKAGE / 'native'} nor in {_RELEASE_BUILD}. "
                      f"Install the wheel, build the release preset, or set {variable}.")


def program_path() -> pathlib.Path:
    """The `aquifer` program that belongs to this package."""
    return _find("aquifer", "AQUIFER_PROGRAM")


class KvGroup(Structure):
    _fields_ = [("kind", c_int32), ("dtype", c_int32), ("layers", c_uint32), ("kv_heads", c_uint32),
                ("key_dim", c_uint32), ("value_dim", c_uint32), ("window_tokens", c_uint32),
                ("reserved", c_uint32), ("opaque_bytes", c_uint64)]


class Layout(Structure):
    _fields_ = [("size", c_uint32), ("tokens_per_block", c_uint32), ("model", c_uint8 * 32),
                ("kv_format", c_char_p), ("groups", POINTER(KvGroup)), ("group_count", c_size_t)]


class ChainRoot(Structure):
    _fields_ = [("size", c_uint32), ("reserved", c_uint32), ("tenant", c_char_p),
                ("layout_fingerprint", c_uint8 * 32), ("adapter_digest", c_uint8 * 32),
                ("cache_salt", c_char_p)]


class Key(Structure):
    _fields_ = [("bytes", c_uint8 * KEY_BYTES)]


class Extra(Structure):
    _fields_ = [("block", c_size_t), ("tag", c_uint32), ("reserved", c_uint32), ("value", c_char_p),
                ("value_bytes", c_size_t)]


class Prompt(Structure):
    _fields_ = [("parent", Key), ("tokens", c_void_p), ("token_count", c_size_t),
                ("extras", POINTER(Extra)), ("extra_count", c_size_t), ("keys", c_void_p),
                ("key_room", c_size_t), ("key_count", c_size_t)]


class ConnectOptions(Structure):
    _fields_ = [("size", c_uint32), ("observe", c_int32), ("tenant", c_char_p), ("engine", c_char_p),
                ("socket", c_char_p), ("token", c_char_p), ("timeout_nanos", c_int64)]


class TenantOptions(Structure):
    _fields_ = [("name", c_char_p), ("dram_floor_bytes", c_uint64), ("dram_ceiling_bytes", c_uint64),
                ("nvme_floor_bytes", c_uint64), ("nvme_ceiling_bytes", c_uint64),
                ("ttl_seconds", c_int64)]


class OpenOptions(Structure):
    _fields_ = [("size", c_uint32), ("worker_threads", c_uint32), ("tenant", c_char_p),
                ("engine", c_char_p), ("dram_bytes", c_uint64), ("keep_available_bytes", c_uint64),
                ("nvme_directories", POINTER(c_char_p)), ("nvme_directory_count", c_size_t),
                ("nvme_bytes", c_uint64), ("nvme_segment_bytes", c_uint64),
                ("write_bytes_per_second", c_uint64), ("nvme_sync", c_int32), ("nvme_engine", c_int32),
                ("tenants", POINTER(TenantOptions)), ("tenant_count", c_size_t),
                ("overdue_nanos", c_int64), ("assumed_prefill_ms_per_token", c_double)]


class Chain(Structure):
    _fields_ = [("layout", c_uint32), ("group", c_uint16), ("part", c_uint16), ("keys", c_char_p),
                ("key_count", c_size_t)]


class MatchArgs(Structure):
    _fields_ = [("size", c_uint32), ("reserved", c_uint32), ("chain", Chain), ("have", c_uint64)]


class FetchArgs(Structure):
    _fields_ = [("size", c_uint32), ("reserved", c_uint32), ("chain", Chain), ("timeout_nanos", c_int64)]


class ReserveArgs(Structure):
    _fields_ = [("size", c_uint32), ("position", c_uint32), ("chain", Chain), ("parent", Key),
                ("engine_hashes", c_void_p)]


class LaneSums(Structure):
    _fields_ = [("a", c_uint64), ("b", c_uint64)]


class Checksum(Structure):
    _fields_ = [("low", c_uint64), ("high", c_uint64)]


class CommitOp(Structure):
    _fields_ = [("reservation", c_uint64), ("head_begin", c_uint32), ("head_end", c_uint32),
                ("sums", LaneSums)]


class PinArgs(Structure):
    _fields_ = [("size", c_uint32), ("reserved", c_uint32), ("chain", Chain), ("seconds", c_int64)]


class PrestageArgs(Structure):
    _fields_ = [("size", c_uint32), ("reserved", c_uint32), ("chain", Chain), ("session", c_char_p),
                ("timeout_nanos", c_int64)]


class EvictArgs(Structure):
    _fields_ = [("size", c_uint32), ("everything", c_int32), ("chain", Chain), ("session", c_char_p)]


class ReleaseOp(Structure):
    _fields_ = [("lease", c_uint64), ("corrupt", c_int32), ("reserved", c_uint32)]


class HintArgs(Structure):
    _fields_ = [("size", c_uint32), ("state", c_int32), ("chain", Chain), ("session", c_char_p),
                ("ttl_seconds", c_int64), ("priority", c_int32), ("durability", c_int32),
                ("return_seconds", c_int64)]


class Matched(Structure):
    _fields_ = [("size", c_uint32), ("reserved", c_uint32), ("matched", c_uint64),
                ("run_count", c_uint64), ("pays", c_uint64), ("load_ms", c_double),
                ("recompute_ms", c_double)]


class Run(Structure):
    _fields_ = [("first", c_uint64), ("count", c_uint64), ("tier", c_int32), ("state", c_int32),
                ("estimated_ms", c_double)]


class Fetched(Structure):
    _fields_ = [("code", c_int32), ("tier", c_int32), ("data", c_void_p), ("data_bytes", c_uint64),
                ("lease", c_uint64), ("checksum", Checksum)]


class Reserved(Structure):
    _fields_ = [("outcome", c_int32), ("refusal", c_int32), ("wait_ms", c_double),
                ("reservation", c_uint64), ("slot", c_void_p), ("slot_bytes", c_uint64)]


class Committed(Structure):
    _fields_ = [("code", c_int32), ("published", c_int32)]


class Counts(Structure):
    _fields_ = [("size", c_uint32), ("reserved", c_uint32), ("pinned", c_uint64), ("found", c_uint64),
                ("staged", c_uint64), ("evicted", c_uint64), ("left", c_uint64)]


class TierStats(Structure):
    _fields_ = [("tier", c_int32), ("in_service", c_int32), ("capacity_bytes", c_uint64),
                ("used_bytes", c_uint64), ("blocks", c_uint64), ("tenant_bytes", c_uint64),
                ("read_gbps", c_double), ("drive_count", c_uint64)]


class Counter(Structure):
    _fields_ = [("name", c_char_p), ("value", c_uint64)]


class Tensor(Structure):
    _fields_ = [("data", c_void_p), ("bytes", c_uint64), ("shape", POINTER(c_uint64)),
                ("strides", POINTER(c_uint64)), ("dimension_count", c_uint32),
                ("element_bytes", c_uint32)]


class Tensors(Structure):
    _fields_ = [("size", c_uint32), ("family", c_int32), ("layout", POINTER(Layout)), ("group", c_uint32),
                ("head_begin", c_uint32), ("head_end", c_uint32), ("page_tokens", c_uint32),
                ("layers_in_front", c_int32), ("reserved", c_uint32), ("tensors", POINTER(Tensor)),
                ("tensor_count", c_size_t), ("values", POINTER(Tensor)), ("value_count", c_size_t)]


class TensorFacts(Structure):
    _fields_ = [("size", c_uint32), ("tokens_per_block", c_uint32), ("pages_per_block", c_uint32),
                ("blocks_per_page", c_uint32), ("page_count", c_uint64), ("block_bytes", c_uint64)]


class LoadArgs(Structure):
    _fields_ = [("size", c_uint32), ("verify", c_int32), ("chain", Chain), ("map", c_void_p),
                ("pages", c_void_p), ("page_count", c_size_t), ("first_block", c_uint64),
                ("timeout_nanos", c_int64)]


class Loaded(Structure):
    _fields_ = [("size", c_uint32), ("code", c_int32), ("blocks", c_uint64), ("bytes", c_uint64),
                ("tier_blocks", c_uint64 * 4)]


class StoreArgs(Structure):
    _fields_ = [("size", c_uint32), ("position", c_uint32), ("chain", Chain), ("parent", Key),
                ("engine_hashes", c_void_p), ("map", c_void_p), ("pages", c_void_p),
                ("page_count", c_size_t), ("first_block", c_uint64), ("timeout_nanos", c_int64)]


class Stored(Structure):
    _fields_ = [("size", c_uint32), ("refusal", c_int32), ("stored", c_uint64), ("published", c_uint64),
                ("had", c_uint64), ("being_filled", c_uint64), ("refused", c_uint64), ("failed", c_uint64),
                ("bytes", c_uint64)]


_ANY = c_void_p  # An opaque handle, or an array whose items the caller has laid out.

# Name: (result, arguments). c_int32 is an aquifer_code.
_FUNCTIONS = {
    "aquifer_abi_version": (c_uint32, []),
    "aquifer_version": (c_char_p, []),
    "aquifer_code_name": (c_char_p, [c_int32]),
    "aquifer_refusal_name": (c_char_p, [c_int32]),
    "aquifer_error": (c_char_p, []),
    "aquifer_tokens_per_block": (c_int32, [POINTER(Layout), POINTER(c_uint32)]),
    "aquifer_fit_pages": (c_int32, [c_uint32, c_uint32, c_int32, POINTER(c_uint32)]),
    "aquifer_block_bytes": (c_int32, [POINTER(Layout), c_size_t, POINTER(c_uint64)]),
    "aquifer_layout_fingerprint": (c_int32, [POINTER(Layout), _ANY]),
    "aquifer_derive_root": (c_int32, [POINTER(ChainRoot), POINTER(Key)]),
    "aquifer_derive_chains": (c_int32, [POINTER(Prompt), c_size_t, c_uint32]),
    "aquifer_copy_and_sum_lanes": (c_int32, [_ANY, c_size_t, c_uint64, _ANY, POINTER(LaneSums)]),
    "aquifer_sum_lanes": (c_int32, [_ANY, c_size_t, c_uint64, POINTER(LaneSums)]),
    "aquifer_finish_checksum": (c_int32, [POINTER(LaneSums), c_uint64, POINTER(Checksum)]),
    "aquifer_connect": (c_int32, [POINTER(ConnectOptions), POINTER(c_void_p)]),
    "aquifer_open": (c_int32, [POINTER(OpenOptions), POINTER(c_void_p)]),
    "aquifer_join": (c_int32, [_ANY, c_char_p, c_char_p, POINTER(c_void_p)]),
    "aquifer_close": (None, [_ANY]),
    "aquifer_request_new": (c_void_p, []),
    "aquifer_request_free": (None, [_ANY]),
    "aquifer_poll": (c_int32, [_ANY, POINTER(c_size_t)]),
    "aquifer_wait": (c_int32, [_ANY, _ANY, c_int64]),
    "aquifer_event_fd": (c_int, [_ANY]),
    "aquifer_cancel": (c_int32, [_ANY, _ANY]),
    "aquifer_register_layout": (c_int32, [_ANY, _ANY, POINTER(Layout)]),
    "aquifer_match": (c_int32, [_ANY, _ANY, POINTER(MatchArgs)]),
    "aquifer_fetch": (c_int32, [_ANY, _ANY, POINTER(FetchArgs)]),
    "aquifer_reserve": (c_int32, [_ANY, _ANY, POINTER(ReserveArgs)]),
    "aquifer_commit": (c_int32, [_ANY, _ANY, _ANY, c_size_t]),
    "aquifer_flush": (c_int32, [_ANY, _ANY, c_int32, c_int64]),
    "aquifer_pin": (c_int32, [_ANY, _ANY, POINTER(PinArgs)]),
    "aquifer_prestage": (c_int32, [_ANY, _ANY, POINTER(PrestageArgs)]),
    "aquifer_evict": (c_int32, [_ANY, _ANY, POINTER(EvictArgs)]),
    "aquifer_drain": (c_int32, [_ANY, _ANY, c_int64]),
    "aquifer_stats": (c_int32, [_ANY, _ANY]),
    "aquifer_release": (c_int32, [_ANY, _ANY, c_size_t]),
    "aquifer_abort": (c_int32, [_ANY, _ANY, c_size_t]),
    "aquifer_hint": (c_int32, [_ANY, POINTER(HintArgs)]),
    "aquifer_report_prefill": (c_int32, [_ANY, c_uint32, c_uint32, c_uint32, c_double]),
    "aquifer_request_done": (c_int32, [_ANY]),
    "aquifer_request_completed": (c_size_t, [_ANY]),
    "aquifer_request_status": (c_int32, [_ANY]),
    "aquifer_request_message": (c_char_p, [_ANY]),
    "aquifer_request_block_message": (c_char_p, [_ANY, c_size_t]),
    "aquifer_request_layout": (c_int32, [_ANY, POINTER(c_uint32)]),
    "aquifer_request_matched": (c_int32, [_ANY, POINTER(Matched)]),
    "aquifer_request_runs": (c_int32, [_ANY, c_size_t, _ANY, c_size_t]),
    "aquifer_request_fetched": (c_int32, [_ANY, c_size_t, _ANY, c_size_t]),
    "aquifer_request_reserved": (c_int32, [_ANY, c_size_t, _ANY, c_size_t]),
    "aquifer_request_committed": (c_int32, [_ANY, c_size_t, _ANY, c_size_t]),
    "aquifer_request_counts": (c_int32, [_ANY, POINTER(Counts)]),
    "aquifer_request_stats": (c_int32, [_ANY, POINTER(c_size_t), POINTER(c_size_t)]),
    "aquifer_request_tiers": (c_int32, [_ANY, c_size_t, _ANY, c_size_t]),
    "aquifer_request_counters": (c_int32, [_ANY, c_size_t, _ANY, c_size_t]),
    "aquifer_map_tensors": (c_int32, [POINTER(Tensors), POINTER(c_void_p)]),
    "aquifer_tensor_map_free": (None, [_ANY]),
    "aquifer_tensor_map_facts": (c_int32, [_ANY, POINTER(TensorFacts)]),
    "aquifer_heads_of_rank": (c_int32, [c_uint32, c_uint32, c_uint32, POINTER(c_uint32),
                                        POINTER(c_uint32), POINTER(c_int32)]),
    "aquifer_load": (c_int32, [_ANY, POINTER(LoadArgs), POINTER(Loaded)]),
    "aquifer_store": (c_int32, [_ANY, POINTER(StoreArgs), POINTER(Stored)]),
}

# They ask, look, take an answer that is there, or let go of it. None waits for anybody, nor for a lock that is held for
# longer. The keys of a million tokens take milliseconds, as long as it takes to make an array of them, which lets nobody
# run either.
_SHORT = frozenset((
    "aquifer_derive_chains", "aquifer_match", "aquifer_prestage", "aquifer_poll", "aquifer_request_new",
    "aquifer_request_free", "aquifer_request_done", "aquifer_request_completed", "aquifer_request_status",
    "aquifer_request_matched", "aquifer_request_runs", "aquifer_request_counts", "aquifer_report_prefill"))


def _load() -> ctypes.CDLL:
    path = _find("libaquifer.so", "AQUIFER_LIBRARY")
    library = ctypes.CDLL(str(path))
    holding = ctypes.PyDLL(str(path))  # The same, and the interpreter's lock is kept.
    version = library.aquifer_abi_version()
    if version < ABI_VERSION:
        raise ImportError(f"{path} speaks version {version} of the C interface; this package needs "
                          f"{ABI_VERSION}. Update the library.")
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(holding if name in _SHORT else library, name)
        function.restype = result
        function.argtypes = arguments
        setattr(library, name, function)
    return library


library = _load()
