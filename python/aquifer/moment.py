"""Points in an engine's work, which on a GPU goes on after the call that gave it something to do."""
from __future__ import annotations

import dataclasses
import time
from typing import Any, Optional, Protocol

import torch


class Moment(Protocol):
    """A point in the engine's work. Made on the engine's thread, and asked on others."""

    def wait(self) -> float:
        """Returns when all that was begun before it is over, with the seconds from its making for which that held up
        whoever asked first. Raises RuntimeError when the device has failed."""
        ...

    def milliseconds_since(self, earlier: Any) -> float:
        """The device's time between two moments. Waits for this one."""
        ...


@dataclasses.dataclass(frozen=True)
class HostMoment:
    """Whatever an engine's thread has called for is over when it makes one."""
    seconds: float = dataclasses.field(default_factory=time.perf_counter)

    def wait(self) -> float:
        return 0.0

    def milliseconds_since(self, earlier: "HostMoment") -> float:
        return (self.seconds - earlier.seconds) * 1000


class CudaMoment:
    """An event behind all that is in the stream so far. Making one never waits and never raises."""

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
