"""How a model's KV looks, and the names of its blocks."""
from __future__ import annotations

import ctypes
import dataclasses
import enum
from array import array
from typing import Iterable, Optional, Sequence, Union

from . import _native
from ._native import KEY_BYTES, library
from .errors import Invalid, check

Tokens = Union[Sequence[int], array, memoryview]


class DType(enum.IntEnum):
    FLOAT32 = 1
    FLOAT16 = 2
    BFLOAT16 = 3
    FLOAT8_E4M3 = 4
    FLOAT8_E5M2 = 5
    INT8 = 6
    UINT8 = 7


class Kind(enum.IntEnum):
    """What a group of layers keeps."""
    FULL = 1
    WINDOW = 2
    LATENT = 3
    STATE = 4


@dataclasses.dataclass(frozen=True)
class KvGroup:
    """Layers that share one shape."""
    layers: int
    kv_heads: int
    key_dim: int
    value_dim: int
    dtype: DType
    kind: Kind = Kind.FULL
    window_tokens: int = 0
    opaque_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class Layout:
    """Two engines share blocks exactly when their layouts are equal.

    `model` is a digest of the model's configuration and weights, `kv_format` a name that changes when
    the meaning of the bytes does. tokens_per_block 0 takes the rule that all engines follow.
    """
    model: bytes
    kv_format: str
    groups: tuple[KvGroup, ...]
    tokens_per_block: int = 0

    def __post_init__(self) -> None:
        if len(self.model) != 32:
            raise ValueError(f"model is a digest of 32 bytes, not {len(self.model)}")
        object.__setattr__(self, "groups", tuple(self.groups))
        if self.tokens_per_block == 0:
            tokens = ctypes.c_uint32()
            check(library.aquifer_tokens_per_block(self.native(), ctypes.byref(tokens)))
            object.__setattr__(self, "tokens_per_block", tokens.value)

    def native(self) -> _native.Layout:
        groups = (_native.KvGroup * len(self.groups))()
        for to, group in zip(groups, self.groups):
            to.kind, to.dtype, to.layers, to.kv_heads = group.kind, group.dtype, group.layers, group.kv_heads
            to.key_dim, to.value_dim = group.key_dim, group.value_dim
            to.window_tokens, to.opaque_bytes = group.window_tokens, group.opaque_bytes
        return _native.Layout(
            size=ctypes.sizeof(_native.Layout), tokens_per_block=self.tokens_per_block,
            model=(ctypes.c_uint8 * 32)(*self.model), kv_format=text_bytes(self.kv_format), groups=groups,
            group_count=len(self.groups))

    def fingerprint(self) -> bytes:
        digest = ctypes.create_string_buffer(32)
        check(library.aquifer_layout_fingerprint(self.native(), digest))
        return digest.raw

    def block_bytes(self, group: int = 0) -> int:
        count = ctypes.c_uint64()
        check(library.aquifer_block_bytes(self.native(), group, ctypes.byref(count)))
        return count.value

    def root(self, tenant: str = "local", adapter: Optional[bytes] = None, cache_salt: str = "") -> bytes:
        """The key in front of every chain. `adapter` is a digest of 32 bytes; `cache_salt` keeps users of
        one tenant apart."""
        given = _native.ChainRoot(
            size=ctypes.sizeof(_native.ChainRoot), tenant=text_bytes(tenant),
            layout_fingerprint=(ctypes.c_uint8 * 32)(*self.fingerprint()),
            adapter_digest=(ctypes.c_uint8 * 32)(*(adapter or bytes(32))), cache_salt=text_bytes(cache_salt))
        key = _native.Key()
        check(library.aquifer_derive_root(ctypes.byref(given), ctypes.byref(key)))
        return bytes(key.bytes)


def fit_pages(tokens_per_block: int, page_tokens: int, can_cut: bool) -> int:
    """The tokens per block that an engine with such pages uses; raises Invalid where none fits."""
    tokens = ctypes.c_uint32()
    check(library.aquifer_fit_pages(tokens_per_block, page_tokens, int(can_cut), ctypes.byref(tokens)))
    return tokens.value


@dataclasses.dataclass(frozen=True)
class Heads:
    """Which kv heads a tensor-parallel rank holds. Of ranks that hold the same, one writes them."""
    begin: int
    end: int
    writes: bool


def heads_of_rank(kv_heads: int, ranks: int, rank: int) -> Heads:
    begin, end, writes = ctypes.c_uint32(), ctypes.c_uint32(), ctypes.c_int32()
    check(library.aquifer_heads_of_rank(kv_heads, ranks, rank, ctypes.byref(begin), ctypes.byref(end),
                                        ctypes.byref(writes)))
    return Heads(begin.value, end.value, writes.value != 0)


@dataclasses.dataclass(frozen=True)
class Extra:
    """Something besides tokens that a block depends on, such as the hash of an image (tag 1)."""
    block: int
    tag: int
    value: bytes


def text_bytes(text: str) -> bytes:
    """A name as the library wants it, which ends one at its first NUL: two that differ behind it would be one."""
    if "\0" in text:
        raise Invalid(f"{text!r} has a NUL in it, and nothing behind that would count; take it out, or give a digest "
                      "of the text in its place")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Invalid(f"{text!r} cannot be written as UTF-8") from None


def token_array(tokens: Tokens) -> array:
    """Token ids as the library wants them. Arrays of 32-bit integers are taken as they are."""
    if isinstance(tokens, array) and tokens.itemsize == 4:
        return tokens
    try:
        view = memoryview(tokens)  # type: ignore[arg-type]
    except TypeError:
        return array("I", tokens)
    if view.itemsize != 4:
        return array("I", view.tolist())
    made = array("I")
    made.frombytes(view.cast("B"))
    return made


def derive_keys(parent: bytes, tokens: Tokens, tokens_per_block: int,
                extras: Iterable[Extra] = ()) -> bytes:
    """The keys of every whole block of tokens, 32 bytes each, one after the other. `parent` is the root
    or the last key of a chain that goes on."""
    if len(parent) != KEY_BYTES:
        raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(parent)}")
    ids = token_array(tokens)
    count = len(ids) // tokens_per_block if tokens_per_block > 0 else 0
    keys = ctypes.create_string_buffer(max(count, 1) * KEY_BYTES)
    prompt = _native.Prompt(tokens=ids.buffer_info()[0] if ids else None, token_count=len(ids),
                            keys=ctypes.addressof(keys), key_room=count)
    ctypes.memmove(ctypes.addressof(prompt.parent), parent, KEY_BYTES)
    listed = sorted(extras, key=lambda extra: extra.block)
    if listed:
        native = (_native.Extra * len(listed))()
        for to, extra in zip(native, listed):
            to.block, to.tag, to.value, to.value_bytes = extra.block, extra.tag, extra.value, len(extra.value)
        prompt.extras, prompt.extra_count = native, len(listed)
    check(library.aquifer_derive_chains(ctypes.byref(prompt), 1, tokens_per_block))
    return keys.raw[:prompt.key_count * KEY_BYTES]
