"""AquiferConnector with gates, for tests: where $AQUIFER_TEST_GATES/load exists, a load that has begun waits until it
is gone, and so with store. Meanwhile load.held, or store.held, is there, and a test can do something to the node.

PatientConnector also waits for a node as long as it takes: what is asserted about it does not depend on how busy the
host is."""
from __future__ import annotations

import os
import pathlib
import time

import aquifer.cache
from aquifer.vllm import AquiferConnector, scheduler, worker


class GatedConnector(AquiferConnector):
    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        if self._worker is not None:
            folder = pathlib.Path(os.environ["AQUIFER_TEST_GATES"])
            self._worker._load_blocks = _behind(folder / "load", self._worker._load_blocks)
            self._worker._store_blocks = _behind(folder / "store", self._worker._store_blocks)


class PatientConnector(GatedConnector):
    def __init__(self, vllm_config, role, kv_cache_config):
        scheduler._MATCH_SECONDS = worker._STORE_SECONDS = 60.0
        super().__init__(vllm_config, role, kv_cache_config)


def _behind(gate, call):
    held = gate.with_suffix(".held")

    def wait_and_call(item):
        while gate.exists():
            held.touch()
            time.sleep(0.005)
        held.unlink(missing_ok=True)
        return call(item)
    return wait_and_call


class Gate:
    """The test's end. As a context manager, it is closed inside."""

    def __init__(self, folder, name):
        self._gate = pathlib.Path(folder) / name

    def __enter__(self):
        self._gate.touch()
        return self

    def __exit__(self, *_):
        self.open()

    def open(self):
        self._gate.unlink(missing_ok=True)

    def wait_for_one(self):
        aquifer.cache.wait_for(self._gate.with_suffix(".held").exists, 60)
