"""Child processes that end with their parent, and process identities that survive pid reuse.

Every child runs in a session of its own, so that a Ctrl-C at the terminal reaches only the supervisor, and signals go
to its whole group. On Linux the kernel kills the child when the supervisor dies, however it dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

_PR_SET_PDEATHSIG = 1


@dataclass(slots=True, frozen=True)
class ProcessId:
    """A process, not merely its number.

    Attributes:
        pid: its number.
        started: when it began, in the system's own ticks; tells it from another owner of the pid. 0: no process.
    """

    pid: int
    started: int

    @staticmethod
    def of(pid: int) -> ProcessId:
        """The process that has this pid now."""
        return ProcessId(pid, _start_ticks(pid))

    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        try:
            running = psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False
        return running and self.started == _start_ticks(self.pid)


def spawn(argv: Sequence[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a child with its output appended to `log`. Call from the main thread, which must outlive the child.

    Raises:
        OSError: the command cannot be started.
    """
    with log.open("ab") as output:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**environment},
            start_new_session=True,
            preexec_fn=_child_setup(os.getpid()),  # noqa: PLW1509 - the supervisor has one thread
        )


def signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to a child that `spawn` made and has not been waited for, and to all in its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _start_ticks(pid: int) -> int:
    """Start time of a process; 0 when there is none. Exact: a wall clock that is set changes nothing on Linux."""
    try:
        if sys.platform == "linux":
            return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
        return int(psutil.Process(pid).create_time() * 100)
    except (OSError, psutil.Error):
        return 0


def _child_setup(parent: int) -> Callable[[], None]:
    """What the child does between fork and exec; everything is looked up before the fork."""
    prctl: Any = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None

    def setup() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:  # it died before the kernel knew
                os.kill(os.getpid(), signal.SIGKILL)

    return setup
