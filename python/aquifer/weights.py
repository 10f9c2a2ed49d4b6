"""Which weights a torch model has: a digest of every byte, and a number that tells, at each prompt, whether somebody
has changed them, the configuration, or the code, since."""
from __future__ import annotations

import concurrent.futures
import ctypes
import hashlib
import os
import zlib
from typing import Any

import numpy
import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .configuration import configuration_bytes
from .errors import Invalid
from .model_code import code_bytes, code_version

_SAMPLE_BYTES = 1024
_PLACES = 16  # That a sample is from.
_OF_EVERY_MODULE = frozenset(torch.nn.Module().__dict__)


def _memory_of(tensor: torch.Tensor) -> memoryview:
    count = tensor.numel() * tensor.element_size()
    if count == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_uint8 * count).from_address(tensor.data_ptr())).cast("B")


def check_has_bytes(name: str, tensor: torch.Tensor) -> None:
    """Raises Invalid for a tensor that is no bytes in one place: it has an address that nothing is at."""
    if is_traceable_wrapper_subclass(tensor):
        raise Invalid(f"{name} is a {type(tensor).__name__}, which keeps its numbers in tensors of its own (sharded or "
                      "quantised), so nobody knows which model it is")
    if tensor.device.type == "meta":
        raise Invalid(f"{name} has no bytes here (it is on the meta device), so nobody knows which model it is")
    if tensor.layout is not torch.strided:
        raise Invalid(f"{name} is {tensor.layout}, and only the bytes of dense tensors are known")


def check_keeps_nothing_else(model: Any) -> None:
    """Raises Invalid where weights may be elsewhere than in parameters and buffers: in attributes, or beside the numbers
    of a tensor of some other class, as quantised layers have them."""
    for name, tensor in _tensors_of(model).items():
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) and not is_traceable_wrapper_subclass(tensor):
            raise Invalid(f"{name} is a {type(tensor).__name__}, which may keep numbers beside its own (scales of quantised "
                          "ones), so nobody knows which model it is; name the model by a digest of your own")
    known = set(map(id, model.modules()))
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue  # It is refused for its code.
        for key, value in module.__dict__.items():
            if key not in _OF_EVERY_MODULE and _hides_tensors(value, known):
                raise Invalid(f"{name}.{key} of {type(module).__name__} is neither a parameter nor a buffer, and has "
                              "numbers (packed weights, their scales, a module in a list), so nobody knows which model it "
                              "is; make it a buffer or a module, or name the model by a digest of your own")


def _hides_tensors(value: Any, known: set[int]) -> bool:
    """It is a tensor, or a module that is not one of the `known`, which count already, or has one in a list or dictionary."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return any(_hides_tensors(each, known) for each in value)
    if isinstance(value, torch.nn.Module):
        return id(value) not in known
    return isinstance(value, (torch.Tensor, torch.ScriptObject, numpy.ndarray))


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
    """The model's identity: the code that computes it, its effective configuration, and every byte of its weights.
    Raises Invalid where that cannot be known."""
    tensors = _tensors_of(model)
    for name, tensor in tensors.items():
        check_has_bytes(name, tensor)
    whole = hashlib.sha256(b"aquifer.transformers.model.v2\0")
    for text in (code_bytes(model), configuration_bytes(model.config)):
        whole.update(len(text).to_bytes(8, "little") + text)
    with concurrent.futures.ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for digest in pool.map(_tensor_digest, tensors.keys(), tensors.values()):
            whole.update(digest)
    return whole.digest()


@torch.no_grad()
def weights_version(model: Any) -> int:
    """Another number when a weight was replaced or written to, or the configuration was, which some models read at
    every forward pass, or a module or its attention function was replaced. What is written through `.data` torch does
    not count, so a look at some places of each tensor tells of most of that: gathered where the tensors are, and
    brought to the host by two copies a device."""
    counted = []
    samples: dict[tuple[torch.device, int], list[torch.Tensor]] = {}
    for name, tensor in _tensors_of(model).items():
        check_has_bytes(name, tensor)
        counted.append((tensor.data_ptr(), tensor._version))
        sample = _sample(tensor)
        samples.setdefault((tensor.device, sample.dim()), []).append(sample)
    seen = tuple(zlib.crc32(torch.cat(parts).cpu().numpy()) for parts in samples.values())
    return hash((tuple(counted), seen, configuration_bytes(model.config), code_version(model)))


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
