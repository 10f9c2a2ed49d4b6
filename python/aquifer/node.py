"""A private node: `aquifer serve` for the processes of one engine, which ends with the process that
started it."""
from __future__ import annotations

import os
import pathlib
import subprocess
import tempfile
from typing import Optional, Sequence

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
        with open(self.log, "ab") as log_file:
            self._process = subprocess.Popen(["/bin/sh", "-c", _KEEPER, "sh", self._folder or "", *self._command],
                                             stdin=subprocess.PIPE, stdout=log_file, stderr=log_file)
        self._wait_until_ready()

    def running(self) -> bool:
        return self._process.poll() is None

    def start_again(self) -> None:
        """One that has ended, at the same socket, where its clients look for it."""
        if self._folder is not None:
            os.mkdir(self._folder, 0o700)  # It went with the node.
        self._start()

    def _wait_until_ready(self) -> None:
        def ready() -> bool:
            if self._process.poll() is not None:
                raise Unavailable(f"the node did not start:\n{self._last_lines()}")
            try:
                connect(self.socket, timeout=1.0).close()
                return True
            except (Unavailable, Late):
                return False
        try:
            wait_for(ready, _START_SECONDS)
        except Late:
            self.close()
            raise Unavailable(f"the node is not there after {_START_SECONDS} s:\n{self._last_lines()}") from None

    def _last_lines(self) -> str:
        try:
            text = pathlib.Path(self.log).read_text(errors="replace")
        except OSError:  # It went with its folder.
            return ""
        return "\n".join(text.splitlines()[-5:])

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
