"""What differs between KV in the host's memory and KV on a GPU: a GPU goes on working after the call that gave it
something to do, so what an engine's thread has begun is not what is over."""
from __future__ import annotations

import contextlib
import os
from typing import Any, ContextManager, Iterator, Protocol

import torch

from ..errors import Invalid
from ..moment import CudaMoment, HostMoment, Moment


class Device(Protocol):
    """Where the engine's pages are."""

    def enter_thread(self) -> None:
        """At the beginning of every thread of ours."""
        ...

    def moment(self) -> Moment:
        """Now, on the engine's thread. Never waits and never raises."""
        ...

    def copies(self) -> ContextManager[None]:
        """Around copies between tensors on a thread of ours: they are over when it ends."""
        ...


# ---- The host ----

class HostDevice:
    def enter_thread(self) -> None:
        """The engine's thread is bound to one core, and this one with it, where it would get nothing while the engine
        computes. The process that started this one may run on all that there are."""
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, os.sched_getaffinity(os.getppid()))

    def moment(self) -> HostMoment:
        return HostMoment()

    def copies(self) -> ContextManager[None]:
        return contextlib.nullcontext()


# ---- CUDA ----

class CudaDevice:
    def __init__(self, device: torch.device):
        self._device = device
        self._stream: Any = None  # For copies; the engine's are not to wait for ours, nor ours for theirs.

    def enter_thread(self) -> None:
        torch.cuda.set_device(self._device)

    def moment(self) -> CudaMoment:
        return CudaMoment(self._device)

    @contextlib.contextmanager
    def copies(self) -> Iterator[None]:
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            self._stream.synchronize()


def device_of(tensor: torch.Tensor) -> Device:
    if tensor.device.type == "cuda":
        return CudaDevice(tensor.device)
    if tensor.device.type == "cpu":
        return HostDevice()
    raise Invalid(f"AquiferConnector: KV on {tensor.device} is not known")
