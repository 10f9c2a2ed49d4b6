"""What differs between KV in the host's memory and KV on a GPU: a GPU goes on working after the call that gave it
something to do, so what an engine's thread has begun is not what is over."""
from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from typing import Any, ContextManager, Iterator, Optional, Protocol

import torch

from ..errors import Invalid


class Moment(Protocol):
    """A point in the engine's work. Made on the engine's thread, and asked on others."""

    def wait(self) -> float:
        """Returns when all that was begun before it is over, with the seconds from its making for which that held up
        whoever asked first. Raises RuntimeError when the device has failed."""
        ...

    def milliseconds_since(self, earlier: Any) -> float:
        """The device's time between two moments. Waits for this one."""
        ...


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

@dataclasses.dataclass(frozen=True)
class HostMoment:
    """Whatever an engine's thread has called for is over when it makes one."""
    seconds: float

    def wait(self) -> float:
        return 0.0

    def milliseconds_since(self, earlier: "HostMoment") -> float:
        return (self.seconds - earlier.seconds) * 1000


class HostDevice:
    def enter_thread(self) -> None:
        """The engine's thread is bound to one core, and this one with it, where it would get nothing while the engine
        computes. The process that started this one may run on all that there are."""
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, os.sched_getaffinity(os.getppid()))

    def moment(self) -> HostMoment:
        return HostMoment(time.perf_counter())

    def copies(self) -> ContextManager[None]:
        return contextlib.nullcontext()


# ---- CUDA ----

class CudaMoment:
    """An event behind all that is in the stream so far."""

    def __init__(self, device: torch.device):
        self._made = time.monotonic()
        self._held: Optional[float] = None
        self._error: Optional[RuntimeError] = None
        try:
            # `blocking`: whoever waits for it sleeps, and does not take a core from the engine.
            self._event = torch.cuda.Event(enable_timing=True, blocking=True)
            self._event.record(torch.cuda.current_stream(device))
        except RuntimeError as error:  # The engine will hear of it, too, and not from us.
            self._error = error

    def wait(self) -> float:
        if self._error is not None:
            raise self._error
        if self._held is None:
            came_late = not self._event.query()
            self._event.synchronize()
            self._held = time.monotonic() - self._made if came_late else 0.0
        return self._held

    def milliseconds_since(self, earlier: "CudaMoment") -> float:
        earlier.wait()
        self.wait()
        return float(earlier._event.elapsed_time(self._event))


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
