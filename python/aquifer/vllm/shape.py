"""How an engine's KV looks, from vLLM's own description; what is not known is refused by name, at start."""
from __future__ import annotations

import dataclasses
import re
from typing import Any

import torch
import vllm
from vllm.v1.kv_cache_interface import FullAttentionSpec

from ..errors import Invalid
from ..layout import DType, Heads, KvGroup, Layout, fit_pages, heads_of_rank
from ..tensors import Family, TensorMap

_DTYPES = {torch.float32: DType.FLOAT32, torch.float16: DType.FLOAT16, torch.bfloat16: DType.BFLOAT16}


def _refuse(why: str) -> Invalid:
    return Invalid(f"AquiferConnector: {why}")


@dataclasses.dataclass(frozen=True)
class Shape:
    """Of one engine. `layout` has no model yet: that is known later."""
    layout: Layout
    page_tokens: int  # Of the scheduler's pages.
    layer_names: tuple[str, ...]  # In the model's order.
    ranks: int
    family: Family = Family.CPU_PACKED

    @property
    def block_tokens(self) -> int:
        return self.layout.tokens_per_block

    def pages_of(self, blocks: int) -> int:
        """So many pages hold the first blocks of a request."""
        return -(-blocks * self.block_tokens // self.page_tokens)

    def heads(self, rank: int) -> Heads:
        return heads_of_rank(self.layout.groups[0].kv_heads, self.ranks, rank)


def _check_parallel(vllm_config: Any) -> None:
    parallel = vllm_config.parallel_config
    for name in ("pipeline_parallel_size", "decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            raise _refuse(f"{name} is {getattr(parallel, name)}, and only 1 is known")
    if getattr(parallel, "nnodes", 1) > 1:
        raise _refuse("the ranks of an engine are to be on one host")


def _check_outputs(vllm_config: Any) -> None:
    """The engine ends where it is to return something of tokens that it did not compute."""
    if getattr(getattr(vllm_config, "aux_output_config", None), "enabled", False):
        raise _refuse("--enable-return-routed-experts wants the experts of every token, and there are none of those "
                      "that are recalled; leave it out, or run without a connector")


def _spec_of(kv_cache_config: Any) -> tuple[Any, Any]:
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        kinds = ", ".join(type(group.kv_cache_spec).__name__ for group in groups)
        raise _refuse(f"the model has {len(groups)} KV groups ({kinds}), and only models with one are known")
    spec = groups[0].kv_cache_spec
    if type(spec) is not FullAttentionSpec:  # Those that are made of it mean something else: MLA, R-SWA, sinks.
        raise _refuse(f"its KV is a {type(spec).__name__}, and only FullAttentionSpec is known")
    if spec.sliding_window is not None or spec.attention_chunk_size is not None or spec.non_causal:
        raise _refuse("its attention has a window, has chunks, or is not causal")
    if (spec.dtype not in _DTYPES or spec.state_content_bytes is not None or spec.num_head_slots is not None
            or spec.tokens_per_state != 1):
        raise _refuse(f"its KV is packed or quantised ({spec.dtype}), which is not known")
    return groups[0], spec


def _packing(vllm_config: Any, spec: Any) -> str:
    """How a CPU orders the bytes of a page: by its instruction set."""
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa
    isa = _get_attn_isa(vllm_config.model_config.dtype, spec.block_size, spec.head_size,
                        vllm_config.cache_config.cache_dtype)
    return f"{isa}.{torch.backends.cpu.get_cpu_capability()}".lower().replace(" ", "")


def _kind(vllm_config: Any, spec: Any) -> tuple[Family, str]:
    """What the tensors are, and the name of what a block of them means."""
    from vllm.platforms import current_platform
    if current_platform.is_cuda():
        # Every vector is K or V as the model computed it, and a block has them in an order of its own: neither pages,
        # nor the order in memory, nor the release of vLLM are seen in it.
        return Family.FUSED, "vllm.plain.v1"
    if current_platform.is_cpu():
        # A page's size is part of what its bytes mean. The packing is vLLM's own, and may be another in its next
        # release.
        return Family.CPU_PACKED, f"vllm.cpu.v1.{vllm.__version__}.{_packing(vllm_config, spec)}.page{spec.block_size}"
    raise _refuse(f"KV on {current_platform.device_name} is not known, only on cpu and cuda")


def _layer_number(name: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", name)]


def read_shape(vllm_config: Any, kv_cache_config: Any) -> Shape:
    _check_parallel(vllm_config)
    _check_outputs(vllm_config)
    group, spec = _spec_of(kv_cache_config)
    parallel = vllm_config.parallel_config
    kv = KvGroup(layers=len(group.layer_names), kv_heads=vllm_config.model_config.get_total_num_kv_heads(),
                 key_dim=spec.head_size, value_dim=spec.head_size_v, dtype=_DTYPES[spec.dtype])
    family, kv_format = _kind(vllm_config, spec)
    rule = Layout(model=bytes(32), kv_format=kv_format, groups=(kv,))
    tokens = fit_pages(rule.tokens_per_block, spec.block_size, can_cut=family is not Family.CPU_PACKED)
    return Shape(dataclasses.replace(rule, tokens_per_block=tokens), spec.block_size,
                 tuple(sorted(group.layer_names, key=_layer_number)), parallel.tensor_parallel_size, family)


@dataclasses.dataclass(frozen=True)
class Pages:
    """The engine's tensors. Where its kernels want smaller pages than its scheduler has, they are in those."""
    tensors: tuple[torch.Tensor, ...]  # One a layer, [B, H, N, C].
    map: TensorMap
    parts: int  # So many of their pages are one of the scheduler's.

    @property
    def tokens(self) -> int:
        return int(self.tensors[0].shape[2])

    def table(self, pages: list[int]) -> list[int]:
        """The scheduler's page table, in their pages."""
        if self.parts == 1:
            return pages
        return [page * self.parts + part for page in pages for part in range(self.parts)]


def map_tensors(shape: Shape, heads: Heads, kv_caches: dict[str, torch.Tensor], page_count: int) -> Pages:
    """The registered tensors, checked: one a layer, [B, H, N, C]."""
    missing = set(shape.layer_names) - set(kv_caches)
    if missing:
        raise _refuse(f"no KV tensor was registered for {', '.join(sorted(missing))}")
    tensors = tuple(kv_caches[name] for name in shape.layer_names)
    parts = 1
    if shape.family is not Family.CPU_PACKED:  # A packed page that is cut means something else.
        parts = max(tensors[0].shape[0] // page_count, 1)
    wanted = (page_count * parts, heads.end - heads.begin, shape.page_tokens // parts)
    for name, tensor in zip(shape.layer_names, tensors):
        if tensor.dim() != 4 or tuple(tensor.shape[:3]) != wanted or shape.page_tokens % parts:
            raise _refuse(f"the KV tensor of {name} is {tuple(tensor.shape)}, and [B, H, N, C] = {wanted} + (C,) is "
                          "expected")
        if _DTYPES.get(tensor.dtype) is not shape.layout.groups[0].dtype or tensor.device != tensors[0].device:
            raise _refuse(f"the KV tensor of {name} has {tensor.dtype} on {tensor.device}, and "
                          f"{shape.layout.groups[0].dtype.name.lower()} on {tensors[0].device} is expected")
    return Pages(tensors, TensorMap(shape.layout, shape.family, tensors, heads=heads), parts)


def one_block_beside(shape: Shape, heads: Heads, pages: Pages) -> Pages:
    """Tensors like the engine's, with room for one block."""
    count = pages.map.pages_per_block
    tensors = tuple(torch.empty((count, *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device)
                    for tensor in pages.tensors)
    return Pages(tensors, TensorMap(shape.layout, shape.family, tensors, heads=heads), pages.parts)
