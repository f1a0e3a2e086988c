"""Processes that need not import: one process has imported what workers or stores import, and is forked for each.

torch and what stands on it take seconds of CPU to import. A fork has them at once and is in all else what
`python -m services.<role>` is. Whole clusters (cluster.py) and some tests of test_worker_process.py start real ones.

::

    test --order, log pipe, status pipe--> nursery --fork--> worker, its log to the pipe
      ^-------------- pid ---------------------'  '--exit status to its pipe when it ends

The nursery imports only, so a fork inherits no thread and no socket. It ends when the test's side of its socket is
closed, and every fork ends with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

MAX_ORDER_BYTES = 200_000
ROOT = Path(__file__).parents[2]
THREADS = {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"}
"""What the libraries read when they are loaded."""
WORKERS, STORES = "common.worker.process", "services.kvstore.process"
"""What forks are to have imported."""

_PR_SET_PDEATHSIG = 1


class Fork:
    """A process that the nursery forked, with the part of `subprocess.Popen` that tests use.

    Attributes:
        pid: process id.
        returncode: as Popen's; None while it runs, as far as `poll` and `wait` have seen.
        stderr: what it logs.
    """

    def __init__(self, pid: int, log: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stderr = os.fdopen(log, encoding="utf-8", errors="replace")
        self._status = status

    def poll(self) -> int | None:
        """Its exit status, if it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, once it has ended. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a fork", timeout or 0.0)
            told = os.read(self._status, 16)
            os.close(self._status)
            self.returncode = int(told) if told else -signal.SIGKILL
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The test's side."""

    def __init__(self, imports: str) -> None:
        """Start one that has imported a module."""
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.nursery", str(theirs.fileno()), imports],
                cwd=ROOT,
                env={**os.environ, **THREADS},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def start(self, module: str, flags: Sequence[str], environment: Mapping[str, str]) -> Fork:
        """Run `python -m module flags`."""
        log_out, log_in = os.pipe()
        status_out, status_in = os.pipe()
        order = json.dumps({"argv": [module, *flags], "environment": dict(environment)}).encode()
        with self._lock:
            socket.send_fds(self._channel, [order], [log_in, status_in])
            answer = self._channel.recv(16)
        os.close(log_in)
        os.close(status_in)
        assert answer, "the nursery has ended"
        return Fork(int(answer), log_out, status_out)

    def close(self) -> None:
        """End it, and every fork that is left."""
        self._channel.close()
        self._process.wait()


@functools.cache
def _nurseries() -> dict[str, Nursery]:
    return {}


def nursery(imports: str = WORKERS) -> Nursery:
    """The one of this process that has imported a module; `close` ends it."""
    born = _nurseries()
    if imports not in born:
        born[imports] = Nursery(imports)
    return born[imports]


def close() -> None:
    """End the nurseries of this process."""
    born = _nurseries()
    while born:
        born.popitem()[1].close()


def _tend(channel: socket.socket) -> list[str] | None:
    """Fork whom the other side orders and tell how they end; None at its end, the arguments in a fork."""
    children: dict[int, tuple[int, int]] = {}
    while True:
        watched: list[socket.socket | int] = [channel, *children]
        for ready in select.select(watched, [], [])[0]:
            if isinstance(ready, int):
                pid, status = children.pop(ready)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with contextlib.suppress(BrokenPipeError):
                    os.write(status, str(code).encode())
                os.close(status)
                os.close(ready)
                continue
            order, (*given,), _, _ = socket.recv_fds(channel, MAX_ORDER_BYTES, 2)
            if not order:
                return None
            log, status = given
            nursery_pid = os.getpid()
            pid = os.fork()
            if not pid:
                for fd in (channel.fileno(), status, *children, *(one for _, one in children.values())):
                    os.close(fd)
                return _become(json.loads(order), log, nursery_pid)
            os.close(log)
            children[os.pidfd_open(pid)] = pid, status
            channel.send(str(pid).encode())


def _become(order: dict[str, object], log: int, nursery_pid: int) -> list[str]:
    """In a fork: end with the nursery, log into the pipe, see the environment that was ordered."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != nursery_pid:
        os._exit(1)
    os.dup2(log, 2)
    os.close(log)
    os.environ.clear()
    os.environ.update(order["environment"])  # type: ignore[call-overload]
    argv = order["argv"]
    assert isinstance(argv, list)
    return argv


def _main() -> None:
    import_module(sys.argv[2])
    channel = socket.socket(fileno=int(sys.argv[1]))
    argv = _tend(channel)
    if argv is None:
        return
    channel.detach()
    sys.argv = argv
    runpy.run_module(argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
