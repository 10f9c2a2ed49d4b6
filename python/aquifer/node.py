"""A private node: `aquifer serve` for the processes of one engine, which ends with the process that
started it."""
from __future__ import annotations

import os
import subprocess
import tempfile
from typing import BinaryIO, Optional, Sequence

from ._native import program_path
from .cache import Cache, connect, wait_for
from .errors import Late, Unavailable

# Reads from a pipe whose other end only the starting process holds: when that process is gone, however
# it went, the node is told to end and writes down what it has. The shell ends with its node, and takes away
# the folder that was made for it, if any.
_KEEPER = """
folder=$1; shift
exec 3<&0
"$@" </dev/null 3<&- & node=$!
(read -r _ <&3; kill -TERM $node) & reader=$!
wait $node; status=$?
kill $reader 2>/dev/null
[ -z "$folder" ] || rm -rf -- "$folder"
exit $status
"""

_START_SECONDS = 60
_DRAIN_SECONDS = 30


def _last_lines(log: BinaryIO) -> str:
    return "\n".join(log.read().decode(errors="replace").splitlines()[-5:])


class Node:
    """A node of one's own. Use as a context manager, or close() it."""

    def __init__(self, socket: Optional[str] = None, *, dram: str = "auto", nvme: Sequence[str] = (),
                 http: str = "off", log: Optional[str] = None, config: Optional[str] = None):
        """`nvme` as on the command line, DIR or DIR:SIZE; none: memory alone. `log` is a file."""
        self._folder = tempfile.mkdtemp(prefix="aquifer-node-") if socket is None else None
        self.socket = socket or os.path.join(str(self._folder), "node.sock")
        self.log = log or self.socket + ".log"
        self._command = [str(program_path()), "serve", "--socket", self.socket, "--http", http, "--dram", dram]
        for drive in nvme or ("off",):
            self._command += ["--nvme", drive]
        if config is not None:
            self._command += ["--config", config]
        self._start()

    def _start(self) -> None:
        # What it says is read from `log`, which is there also when the keeper has taken the folder away.
        with open(self.log, "ab") as log_file, open(self.log, "rb") as log:
            self._process = subprocess.Popen(["/bin/sh", "-c", _KEEPER, "sh", self._folder or "", *self._command],
                                             stdin=subprocess.PIPE, stdout=log_file, stderr=log_file)
            self._wait_until_ready(log)

    def running(self) -> bool:
        return self._process.poll() is None

    def start_again(self) -> None:
        """One that has ended, at the same socket, where its clients look for it."""
        if self._folder is not None:
            # It went with the node, unless the keeper was killed first.
            os.makedirs(self._folder, 0o700, exist_ok=True)
        self._start()

    def _wait_until_ready(self, log: BinaryIO) -> None:
        def ready() -> bool:
            if self._process.poll() is not None:
                raise Unavailable(f"the node did not start:\n{_last_lines(log)}")
            try:
                connect(self.socket, timeout=1.0).close()
                return True
            except (Unavailable, Late):
                return False
        try:
            wait_for(ready, _START_SECONDS)
        except Late:
            self.close()
            raise Unavailable(f"the node is not there after {_START_SECONDS} s:\n{_last_lines(log)}") from None

    def connect(self, **options: object) -> Cache:
        return connect(self.socket, **options)  # type: ignore[arg-type]

    def close(self) -> None:
        """Ends the node, which writes down what it has first."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(_DRAIN_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> "Node":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
