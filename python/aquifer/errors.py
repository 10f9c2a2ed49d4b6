"""What can go wrong. A miss is an answer and never one of these."""
from __future__ import annotations

from typing import Type

from ._native import library


class Error(Exception):
    """Something failed; the text says what. Those below are for whoever does something about it."""


class NotFound(Error):
    """There is nothing of that name."""


class Busy(Error):
    """Too much is under way. Come back later."""


class NoSpace(Error):
    """Memory, a disk or a table is full."""


class Unavailable(Error):
    """The node or a drive is gone. Go on without the cache; it comes back by itself."""


class Corrupt(Error):
    """It was there, damaged, and is no more."""


class Late(Error):
    """Not by the deadline."""


class Invalid(Error, ValueError):
    """The call was wrong. Mend the caller."""


_BY_CODE: dict[int, Type[Error]] = {1: NotFound, 2: Busy, 3: NoSpace, 4: Unavailable, 5: Corrupt, 6: Late,
                                    7: Invalid}


def code_name(code: int) -> str:
    """"ok", "not found", ... of a code in an answer."""
    return library.aquifer_code_name(code).decode()


def last_error() -> str:
    """Of this thread's last call that failed, or that had an answer in which something did."""
    return library.aquifer_error().decode(errors="replace")


def check(code: int) -> None:
    """Raises what a call returned, unless it was AQUIFER_OK."""
    if code != 0:
        raise _BY_CODE.get(code, Error)(last_error())
