"""An engine's tensors, described once, so that the library can copy between them and the cache.

A tensor is anything that torch would call one (data_ptr(), shape, stride(), element_size(),
untyped_storage()), or that shows an __array_interface__, as numpy's arrays do. Neither package is needed.
Memory of the host and of CUDA devices can be described.
"""
from __future__ import annotations

import ctypes
import dataclasses
import enum
from array import array
from typing import Any, Optional, Sequence, Union

from . import _native
from ._native import library
from .errors import Invalid, check
from .layout import Heads, Layout


class Family(enum.IntEnum):
    """What the dimensions are: B pages, 2 K and V, H heads, N tokens of a page, C elements."""
    KV_FIRST = 1  # [2, B, N, H, C] a layer: vLLM to 0.22.
    PAGE_FIRST = 2  # [B, 2, N, H, C] a layer: FlashInfer, vLLM 0.23 to 0.25.
    FUSED = 3  # [B, H, N, C], each C a K and then a V: vLLM from 0.26.
    CPU_PACKED = 4  # The same on CPUs, packed inside a page's head.
    LATENT = 5  # [B, N, C]: MLA.
    APART = 6  # [B, N, H, C], K and V.
    SLOTS = 7  # [B * N, H, C], K and V: SGLang.
    SEQUENCES = 8  # [B, H, N, C], K and V; a page is a sequence: transformers.
    OPAQUE = 9  # [B, ...], only the engine knows.


class Verify(enum.IntEnum):
    """When a load compares a block's checksum with what it copies."""
    COPYING = 0
    FIRST = 1
    NEVER = 2


@dataclasses.dataclass(frozen=True)
class _Memory:
    data: int
    bytes: int
    shape: Sequence[int]
    strides: Sequence[int]  # In elements.
    element_bytes: int
    is_read_only: bool = False


def _memory_of(tensor: Any) -> _Memory:
    if hasattr(tensor, "data_ptr"):
        if tensor.device.type not in ("cpu", "cuda"):
            raise Invalid(f"a tensor is on {tensor.device}; only memory of the host and of CUDA can be described")
        size = tensor.element_size()
        end = tensor.untyped_storage().nbytes() - tensor.storage_offset() * size
        return _Memory(tensor.data_ptr(), end, tuple(tensor.shape), tensor.stride(), size)
    described = tensor.__array_interface__
    shape = described["shape"]
    size = int(described["typestr"][2:])
    strides = described["strides"]
    if strides is None:
        steps, step = [], 1
        for length in reversed(shape):
            steps.append(step)
            step *= length
        strides = tuple(reversed(steps))
    else:
        strides = tuple(stride // size for stride in strides)
    end = (sum((n - 1) * s for n, s in zip(shape, strides)) + 1) * size if all(shape) else 0
    address, is_read_only = described["data"]
    return _Memory(address, end, shape, strides, size, is_read_only)


def _native_tensors(memories: Sequence[_Memory]) -> tuple[Any, list[Any]]:
    """The descriptions, and what must live as long as they are used."""
    made = (_native.Tensor * max(len(memories), 1))()
    kept: list[Any] = []
    for to, memory in zip(made, memories):
        shape = (ctypes.c_uint64 * len(memory.shape))(*memory.shape)
        strides = (ctypes.c_uint64 * len(memory.shape))(*memory.strides)
        kept += [shape, strides]
        to.data, to.bytes, to.shape, to.strides = memory.data, memory.bytes, shape, strides
        to.dimension_count, to.element_bytes = len(memory.shape), memory.element_bytes
    return made, kept


class TensorMap:
    """Where an engine, or one rank of it, keeps the KV of one group. Keeps the tensors alive."""

    def __init__(self, layout: Layout, family: Family, tensors: Sequence[Any],
                 values: Sequence[Any] = (), *, group: int = 0, heads: Optional[Heads] = None,
                 page_tokens: int = 0, layers_in_front: bool = False):
        """`values` where K and V are apart; `page_tokens` for SLOTS and OPAQUE; `layers_in_front` where
        one tensor has the layers as its first dimension. Raises Invalid, naming what does not fit."""
        self._handle = ctypes.c_void_p()
        self._tensors = (tuple(tensors), tuple(values))
        native_layout = layout.native()
        memories = list(map(_memory_of, tensors)), list(map(_memory_of, values))
        self.is_read_only = any(memory.is_read_only for each in memories for memory in each)
        keys, kept_keys = _native_tensors(memories[0])
        others, kept_values = _native_tensors(memories[1])
        described = _native.Tensors(
            size=ctypes.sizeof(_native.Tensors), family=family, layout=ctypes.pointer(native_layout),
            group=group, head_begin=heads.begin if heads else 0, head_end=heads.end if heads else 0,
            page_tokens=page_tokens, layers_in_front=int(layers_in_front), tensors=keys,
            tensor_count=len(tensors), values=others, value_count=len(values))
        check(library.aquifer_map_tensors(ctypes.byref(described), ctypes.byref(self._handle)))
        del kept_keys, kept_values
        facts = _native.TensorFacts(size=ctypes.sizeof(_native.TensorFacts))
        check(library.aquifer_tensor_map_facts(self._handle, ctypes.byref(facts)))
        self.tokens_per_block: int = facts.tokens_per_block
        self.pages_per_block: int = facts.pages_per_block
        self.blocks_per_page: int = facts.blocks_per_page
        self.page_count: int = facts.page_count
        self.block_bytes: int = facts.block_bytes

    @property
    def native(self) -> ctypes.c_void_p:
        return self._handle

    def __del__(self) -> None:
        if self._handle:
            library.aquifer_tensor_map_free(self._handle)
            self._handle = ctypes.c_void_p()


def page_array(pages: Union[Sequence[int], array]) -> array:
    """A page table as the library wants it."""
    return pages if isinstance(pages, array) and pages.typecode == "I" else array("I", pages)
