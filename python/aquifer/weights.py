"""Which weights a torch model has: a digest of every byte, and a number that tells, at each prompt, whether somebody
has changed them, or the configuration, since."""
from __future__ import annotations

import concurrent.futures
import ctypes
import hashlib
import os
import zlib
from typing import Any

import torch

from .configuration import configuration_bytes

_SAMPLE_BYTES = 1024
_PLACES = 16  # That a sample is from.


def _memory_of(tensor: torch.Tensor) -> memoryview:
    count = tensor.numel() * tensor.element_size()
    if count == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_uint8 * count).from_address(tensor.data_ptr())).cast("B")


def _tensor_digest(name: str, tensor: torch.Tensor) -> bytes:
    host = tensor.detach().to("cpu").contiguous()
    said = f"{name}\0{host.dtype}\0{tuple(host.shape)}\0".encode()
    digest = hashlib.sha256(said)
    digest.update(_memory_of(host))
    return digest.digest()


def _tensors_of(model: Any) -> dict[str, torch.Tensor]:
    """Parameters and buffers, those that no checkpoint holds included: rotary frequencies are among them."""
    return dict(sorted([*model.named_parameters(remove_duplicate=False),
                        *model.named_buffers(remove_duplicate=False)]))


def model_digest(model: Any) -> bytes:
    """The model's identity: its class, its effective configuration, and every byte of its weights."""
    whole = hashlib.sha256(b"aquifer.transformers.model.v1\0")
    for text in (type(model).__name__.encode(), configuration_bytes(model.config)):
        whole.update(len(text).to_bytes(8, "little") + text)
    tensors = _tensors_of(model)
    with concurrent.futures.ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for digest in pool.map(_tensor_digest, tensors.keys(), tensors.values()):
            whole.update(digest)
    return whole.digest()


@torch.no_grad()
def weights_version(model: Any) -> int:
    """Another number when a weight was replaced or written to, or the configuration was, which some models read at
    every forward pass. What is written through `.data` torch does not count, so a look at some places of each tensor
    tells of most of that: gathered where the tensors are, and brought to the host by two copies a device."""
    counted = []
    samples: dict[tuple[torch.device, int], list[torch.Tensor]] = {}
    for tensor in _tensors_of(model).values():
        counted.append((tensor.data_ptr(), tensor._version))
        sample = _sample(tensor)
        samples.setdefault((tensor.device, sample.dim()), []).append(sample)
    seen = tuple(zlib.crc32(torch.cat(parts).cpu().numpy()) for parts in samples.values())
    return hash((tuple(counted), seen, configuration_bytes(model.config)))


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    """Bytes of it as it lies in memory, whatever the order of its dimensions: all of a small one, and a row for each
    place of others."""
    elements = tensor.numel()
    if not tensor.is_contiguous():
        elements = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    if elements * tensor.element_size() <= _SAMPLE_BYTES:
        return tensor.as_strided((elements,), (1,)).view(torch.uint8)
    row = _SAMPLE_BYTES // _PLACES // tensor.element_size()
    step = (elements - row) // (_PLACES - 1)
    return tensor.as_strided((_PLACES, row), (step, 1)).view(torch.uint8)
