"""What a node says about a request's blocks. It is asked when the request arrives, and nobody stands still until the
answer is there: who looks too early looks again in the engine's next step, and other requests go on meanwhile."""
from __future__ import annotations

import time
from typing import Optional

from ..cache import Chain, Match, Pending, RunState
from ..errors import Late
from .node_link import Reached

# A match takes microseconds, and 100 ms where a node asks a durable tier. One that is silent for so long has nothing.
_MATCH_SECONDS = 0.25
# The usual answer, about what is in memory, comes sooner; without it the request would wait for a whole step. All that
# arrive at once wait together.
_MOMENT_SECONDS = 0.0002
_YOUNG_SECONDS = 1.0  # An answer that is older is asked for again.


class Inquiry:
    """About the request from its first block on, whatever the engine has of it."""

    def __init__(self) -> None:
        self.match: Optional[Match] = None  # The latest answer.
        self._asked: Optional[Pending[Match]] = None
        self._blocks = 0
        self._asked_at = 0.0
        self._until = 0.0  # For so long an answer is worth waiting for.
        self._again_at: Optional[float] = None  # By then a durable tier should have said what it had not in time.
        self._looked = False

    def ask(self, reached: Reached, chain: Chain) -> None:
        self._ask(reached, chain, _MATCH_SECONDS)

    def forget(self) -> None:
        """The next who looks hears what is true by then."""
        self.match, self._asked, self._again_at, self._blocks = None, None, None, 0

    def look(self, reached: Reached, keys: bytes) -> Optional[Match]:
        """The answer about these blocks; None: look again. Late: the node is silent."""
        now = time.monotonic()
        is_old = now - self._asked_at >= _YOUNG_SECONDS
        unread, self._looked = not self._looked, True
        if self._blocks * 32 < len(keys) or (is_old and unread):  # Unread: the request stood in line behind others.
            self.forget()
            self._ask(reached, Chain(reached.known, keys), _MATCH_SECONDS)
        elif is_old and self._asked is None:
            self._ask(reached, Chain(reached.known, keys), 0.0)  # Until there is a new answer, the old one will do.
        if self._asked is not None and self._has_come(reached):
            self._take(now)
        if self._again_at is not None and now >= self._again_at:
            self._again_at = None
            self._asked = reached.cache.begin_match(Chain(reached.known, keys))
        return self._known(now)

    def _ask(self, reached: Reached, chain: Chain, patience: float) -> None:
        self._blocks, self._asked_at, self._again_at = len(chain), time.monotonic(), None
        self._until = self._asked_at + patience
        self._asked = reached.cache.begin_match(chain)

    def _has_come(self, reached: Reached) -> bool:
        assert self._asked is not None
        while not self._asked.done():
            left = self._asked_at + _MOMENT_SECONDS - time.monotonic()
            if left <= 0:
                return False
            reached.cache.wait_for_events(left)
        return True

    def _take(self, now: float) -> None:
        """A tier that has not answered is asked about once more, unless that would be too late."""
        assert self._asked is not None
        asked, self._asked, was_pending = self._asked, None, _is_pending(self.match)
        self.match = asked.result()
        if _is_pending(self.match) and not was_pending:
            again_at = now + max(run.estimated_ms for run in self.match.runs if run.state is RunState.PENDING) / 1000
            self._again_at = again_at if again_at < self._until else None

    def _known(self, now: float) -> Optional[Match]:
        if self._again_at is not None:
            return None
        if self._asked is None:
            return self.match
        if now < self._until:
            return None
        if self.match is None:
            raise Late("the node did not answer in time")
        return self.match


def _is_pending(match: Optional[Match]) -> bool:
    return match is not None and any(run.state is RunState.PENDING for run in match.runs)
