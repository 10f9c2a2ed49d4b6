"""AquiferConnector with gates, for tests: where $AQUIFER_TEST_GATES/load exists, a load that has begun waits until it
is gone, and so with store. Meanwhile load.held, or store.held, is there with the number of the process that waits, and
a test can do something to that or to the node.
fault.N has what happens to the loads of rank N alone. Where `ahead` appears, a step was scheduled while another was
being computed.

Pages are spoiled before something is loaded into them: what is then neither loaded nor computed changes the answer,
also where a page has been used for the same text before.

PatientConnector also waits for a node as long as it takes: what is asserted about it does not depend on how busy the
host is."""
from __future__ import annotations

import dataclasses
import os
import pathlib
import socket
import threading
import time

import aquifer.cache
from aquifer.vllm import AquiferConnector, inquiry, worker

_SHORT_KEYS = 2 * 32  # Two blocks come.
_CUT_SECONDS = 0.5  # After a load has begun.


class GatedConnector(AquiferConnector):
    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        self._folder = pathlib.Path(os.environ["AQUIFER_TEST_GATES"])
        side = self._side
        if isinstance(side, worker.WorkerSide):
            load = _failing(self._folder / f"fault.{side._rank}", side, _spoiling(side, side._load_blocks))
            side._load_blocks = _behind(self._folder / "load", load)
            side._store_blocks = _behind(self._folder / "store", side._store_blocks)

    def build_connector_meta(self, scheduler_output):
        if any(tracked.request.num_in_flight_tokens for tracked in self._scheduling._tracked.values()):
            (self._folder / "ahead").touch()
        return super().build_connector_meta(scheduler_output)


class PatientConnector(GatedConnector):
    def __init__(self, vllm_config, role, kv_cache_config):
        inquiry._MATCH_SECONDS = worker._STORE_SECONDS = 60.0
        super().__init__(vllm_config, role, kv_cache_config)


def _behind(gate, call):
    held = gate.with_suffix(".held")

    def wait_and_call(item):
        while gate.exists():
            held.write_text(str(os.getpid()))
            time.sleep(0.005)
        held.unlink(missing_ok=True)
        return call(item)
    return wait_and_call


def _spoiling(side, call):
    def spoil_and_call(load):
        end = side._shape.pages_of(load.first_block + len(load.keys) // 32)
        pages = load.pages[load.first_token // side._shape.page_tokens:end]
        for tensor in side._pages.tensors:
            tensor[side._pages.table(pages)] = 100.0
        return call(load)
    return spoil_and_call


def _failing(fault, side, call):
    def fail_or_call(load):
        kind = fault.read_text() if fault.exists() else ""
        if kind == "late":
            load = dataclasses.replace(load, end=time.monotonic())
        if kind == "short" and len(load.keys) > _SHORT_KEYS:
            return call(dataclasses.replace(load, keys=load.keys[:_SHORT_KEYS]))[0], "not found"
        if kind == "cut":
            threading.Timer(_CUT_SECONDS, _cut_connections, (side._socket, fault.with_suffix(".done"))).start()
        return call(load)
    return fail_or_call


def _cut_connections(path, done):
    """All of this process to the node at `path`."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            with socket.socket(fileno=os.dup(fd)) as found:
                if found.family == socket.AF_UNIX and found.getpeername() == path:
                    found.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # Something else, or closed by now.
    done.touch()


class Gate:
    """The test's end. As a context manager, it is closed inside."""

    def __init__(self, folder, name):
        self._gate = pathlib.Path(folder) / name
        self._held = self._gate.with_suffix(".held")

    def __enter__(self):
        self._gate.touch()
        return self

    def __exit__(self, *_):
        self.open()

    def open(self):
        self._gate.unlink(missing_ok=True)

    def wait_for_one(self):
        """The process that waits."""
        aquifer.cache.wait_for(self._holds, 60)
        return int(self._held.read_text())

    def _holds(self):
        return self._held.exists() and bool(self._held.read_text())


class Fault:
    """What happens to one rank's loads inside: they are `late`, come `short`, or its connections are `cut`."""

    def __init__(self, folder, rank, kind):
        self._file = pathlib.Path(folder) / f"fault.{rank}"
        self._kind = kind

    def __enter__(self):
        self._file.with_suffix(".done").unlink(missing_ok=True)
        self._file.write_text(self._kind)
        return self

    def __exit__(self, *_):
        self._file.unlink()

    def wait_for_cut(self):
        aquifer.cache.wait_for(self._file.with_suffix(".done").exists, 60)
