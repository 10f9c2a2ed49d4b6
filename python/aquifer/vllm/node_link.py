"""The scheduler's way to its node: a thread finds out which model the engine runs, starts a private node where there is
to be one, connects, and makes the layout known; and tries again until all of that is done. The scheduler's thread only
looks at what is there, so that it never waits for a node that is away, starts, or hangs.
"""
from __future__ import annotations

import dataclasses
import threading
import time
from typing import Any, Optional

from vllm.logger import init_logger

from ..cache import Cache, Registered, connect
from ..errors import Error, Invalid, Late
from ..layout import Layout
from ..node import Node
from .identity import model_digest
from .settings import Settings

logger = init_logger("vllm." + __name__)  # vLLM shows what is below its own name.

_RETRY_SECONDS = 2.0
_CALL_SECONDS = 5.0
_LOOK_SECONDS = 0.01  # Between two looks for the answer of a node that is only asked whether it is there.
_QUIET_SECONDS = 2.0  # For so long a node that did not answer is not asked again.


@dataclasses.dataclass(frozen=True)
class Reached:
    """A cache that can be asked about the engine's model."""
    cache: Cache
    known: Registered


def _check_is_alone(vllm_config: Any) -> None:
    """Ranks of a data-parallel engine each have a scheduler. Those of dense models do not know how many there are, but
    all know their number."""
    parallel = getattr(vllm_config, "parallel_config", None)
    if getattr(parallel, "data_parallel_size", 1) > 1 or getattr(parallel, "data_parallel_index", 0) > 0:
        raise Invalid("AquiferConnector: with spawn, each of the data-parallel ranks would start a node, and none "
                      "would recall what another stored; start one for all of them (aquifer serve), and leave spawn out")


class NodeLink:
    def __init__(self, vllm_config: Any, layout: Layout, settings: Settings, engine: str):
        """`layout` has no model yet. `engine` is the name that the workers use, too: what they report about the time
        to compute is then known when something is matched. Raises when a private node does not start."""
        self._vllm_config = vllm_config
        self._layout = layout
        self._settings = settings
        self._engine = engine
        self._node: Optional[Node] = None
        self._reached: Optional[Reached] = None
        self._quiet_until = 0.0
        self._warned = ""
        self._was_up = False
        self._away_since: Optional[float] = None  # When the thread noticed that there is no node.
        self.is_up = False  # The node answers, as far as the thread knows. It looks every two seconds.
        if settings.spawn:
            _check_is_alone(vllm_config)
            self._node = Node(dram=settings.spawn_dram, nvme=settings.spawn_nvme)
            logger.info("Aquifer: a private node at %s with its log in %s", self._node.socket, self._node.log)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="aquifer-node", daemon=True)
        self._thread.start()

    @property
    def socket(self) -> Optional[str]:
        return self._node.socket if self._node is not None else self._settings.socket

    def reached(self) -> Optional[Reached]:
        """None: there is nothing to be asked now."""
        return None if time.monotonic() < self._quiet_until else self._reached

    @property
    def known(self) -> Optional[Registered]:
        """Also while the node is silent: what was promised is still to be named."""
        return self._reached.known if self._reached is not None else None

    def was_silent(self) -> None:
        """It did not answer in time: others do not wait for it, too."""
        self._quiet_until = time.monotonic() + _QUIET_SECONDS

    def close(self) -> None:
        self._stop.set()
        if self._node is not None:
            self._node.begin_close()  # The engine may be killed while it waits for anything below.
        self._thread.join(_CALL_SECONDS)
        if self._reached is not None:
            self._reached.cache.close()
            self._reached = None
        if self._node is not None:
            self._node.close()

    # ---- The thread ----

    def _run(self) -> None:
        started = time.monotonic()
        try:
            digest = model_digest(self._vllm_config)
        except Exception as error:  # Whatever is wrong with a checkpoint, the engine goes on without us.
            logger.error("Aquifer: nobody knows which model it is, so nothing is recalled: %s", error)
            return
        logger.info("Aquifer: the model is %s, known after %.1f s", digest.hex()[:16], time.monotonic() - started)
        layout = dataclasses.replace(self._layout, model=digest)
        while True:
            try:
                self._look(layout)
            except Exception as error:  # Its end would be the end of the cache.
                self._node_is_away(str(error) or repr(error))
            if self._stop.wait(_RETRY_SECONDS):
                return

    def _look(self, layout: Layout) -> None:
        if self._node is not None and not self._node.running() and not self._stop.is_set():
            logger.warning("Aquifer: the private node has ended, and is started again")
            self._node.start_again()
        if self._reached is not None:
            if self._answers(self._reached.cache):  # The library finds a node again by itself.
                self._node_is_there()
            return
        cache = connect(self.socket, tenant=self._settings.tenant, engine=self._engine,
                        token=self._settings.token(), observe=self._settings.observe, timeout=_CALL_SECONDS)
        try:
            self._reached = Reached(cache, cache.register(layout, _CALL_SECONDS))
        except Error:
            cache.close()
            raise
        self._node_is_there()

    def _answers(self, cache: Cache) -> bool:
        """Raises unless the node answers; False: the engine ends. The scheduler's thread uses the same client, so this
        one does not wait inside of it."""
        asked, end = cache.begin_stats(), time.monotonic() + _CALL_SECONDS
        while not asked.done():
            if time.monotonic() > end:
                raise Late("the node does not answer")
            if self._stop.wait(_LOOK_SECONDS):
                return False
        asked.result()
        return True

    def _node_is_there(self) -> None:
        if self.is_up:
            return
        if not self._was_up:
            logger.info("Aquifer: the node at %s answers; prompts are stored and recalled", self.socket or "its usual place")
        elif self._away_since is not None:
            logger.info("Aquifer: the node is back after %.0f s; prompts are stored and recalled again",
                        time.monotonic() - self._away_since)
        self.is_up, self._was_up, self._away_since, self._warned = True, True, None, ""

    def _node_is_away(self, why: str) -> None:
        """Warns once for every reason: it is tried again every few seconds."""
        if self._away_since is None:
            self._away_since = time.monotonic()
        self.is_up = False
        if why != self._warned:
            self._warned = why
            logger.warning("Aquifer: there is no node; prompts are computed, and it is tried again: %s", why)
