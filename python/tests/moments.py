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


def asked(moment):
    assert moment.asked.wait(30)
