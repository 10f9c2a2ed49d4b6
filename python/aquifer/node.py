"""A private node: `aquifer serve` for the processes of one engine, which ends with the process that
started it."""
from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import tempfile
from typing import BinaryIO, Optional, Sequence

from ._native import program_path
from .cache import Cache, connect, wait_for
from .errors import Late, Unavailable

# Starts a keeper, says its number, and ends. So the keeper is nobody's child and in a session of its own: engines kill
# all their descendants when they end, and a terminal its session, and the node is to write down what it has first.
# The keeper reads from a pipe whose other end only the starting process holds: when that process is gone, however
# it went, the node is told to end. One that has not ended after so many seconds is killed. The keeper ends with its
# node, and takes away the folder that was made for it, if any. While it lives it holds the standard output.
_LAUNCH = """
folder=$1 bound=$2; shift 2
exec 3<&0
(
  "$@" </dev/null >&2 3<&- & node=$!
  (
    read -r _ <&3
    kill -TERM $node
    while [ $bound -gt 0 ] && kill -0 $node; do sleep 1; bound=$((bound - 1)); done
    kill -KILL $node
  ) >/dev/null 2>&1 & reader=$!
  wait $node
  kill $reader 2>/dev/null
  [ -z "$folder" ] || rm -rf -- "$folder"
) &
echo $!
"""

_START_SECONDS = 60
_DRAIN_SECONDS = 30  # The node gives itself 20 to drain, and 2 to leave.
_KEEPER_SECONDS = 5  # More, to take the folder away.


class _Keeper:
    """The shell that keeps a node. The methods are those of a subprocess.Popen."""

    def __init__(self, command: Sequence[str], folder: Optional[str], log: BinaryIO):
        launcher = subprocess.Popen(["/bin/sh", "-c", _LAUNCH, "sh", folder or "", str(_DRAIN_SECONDS), *command],
                                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True)
        assert launcher.stdin is not None and launcher.stdout is not None
        self._lifeline, self._output = launcher.stdin, launcher.stdout
        self.pid = int(self._output.readline())
        launcher.wait()

    def let_go(self) -> None:
        """The node drains and ends, with nobody waiting for it."""
        if not self._lifeline.closed:
            self._lifeline.close()

    def poll(self) -> Optional[int]:
        """None while it lives."""
        if self._output.closed:
            return 0
        poller = select.poll()
        poller.register(self._output, select.POLLIN)
        if not poller.poll(0):
            return None
        self._output.close()
        return 0

    def wait(self, timeout: float) -> None:
        """Raises Late where it is still there."""
        wait_for(lambda: self.poll() is not None, timeout)

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


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
        # The node's last words are read from `log`, which is there also when the keeper has taken the folder away.
        with open(self.log, "ab") as log_file, open(self.log, "rb") as log:
            self._process = _Keeper(self._command, self._folder, log_file)
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

    def begin_close(self) -> None:
        """The node writes down what it has and ends, within half a minute. This does not wait for it, and whoever
        called may end first."""
        self._process.let_go()

    def close(self) -> None:
        """The same, and waits for it."""
        self.begin_close()
        try:
            self._process.wait(_DRAIN_SECONDS + _KEEPER_SECONDS)
        except Late:
            return  # The keeper itself stands still. It goes on by itself.
        if self._folder is not None:  # Where the keeper was killed, it is there still.
            shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> "Node":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
