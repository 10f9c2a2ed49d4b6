"""A device that gets to a moment when a test says so."""
from __future__ import annotations

import threading
import time


class FakeMoment:
    """`number`: which one it is, of those that are 500 ms apart."""

    def __init__(self, number):
        self.number = number
        self.made = time.monotonic()
        self.asked, self.came, self.error = threading.Event(), threading.Event(), None

    def come(self, error=None):
        self.error = error
        self.came.set()

    def wait(self):
        self.asked.set()
        assert self.came.wait(60)
        if self.error is not None:
            raise self.error
        return time.monotonic() - self.made

    def milliseconds_since(self, earlier):
        self.wait()
        return 500.0 * (self.number - earlier.number)


class Moments:
    """Of a device; they come when a test says so, or at once where nobody is ahead of it."""

    def __init__(self):
        self.moments = []
        self.ahead = False

    def moment(self):
        self.moments.append(FakeMoment(len(self.moments)))
        if not self.ahead:
            self.moments[-1].come()
        return self.moments[-1]


def asked(moment):
    assert moment.asked.wait(30)
