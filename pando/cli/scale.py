"""`pando scale`: start more workers in a local cluster that runs, or let some leave.

The order goes to the cluster's supervisor as a file and a signal; this process watches the state file until the workers
are there. Those that leave drain first: their streams go on elsewhere.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from pando.cli import admin_calls
from pando.cli.errors import BAD_INPUT, FAILED, CliError
from pando.cli.resize import leaving, of_kind
from pando.cli.role_check import lost_roles
from pando.cli.run_folder import ClusterState, RunFolder

_POLL_S = 0.1


def scale(run_dir: Path, counts: Mapping[str, int], console: Console, *, force: bool, patience_s: float) -> int:
    """Change the numbers of workers; returns the exit status.

    Raises:
        CliError: nothing runs there, or the cluster would lose a role.
    """
    folder = RunFolder(run_dir)
    state = folder.running()
    if state is None or state.state not in ("ready", "degraded"):
        raise CliError(f"no cluster is up in {folder.path}", fix="pando up")
    names = [service.name for service in state.services]
    gone = leaving(names, counts)
    if gone and not force:
        _check_roles_stay(run_dir, gone)
    folder.write_order(counts)
    os.kill(state.supervisor.pid, signal.SIGUSR1)
    return _follow(folder, counts, console, patience_s)


def _check_roles_stay(run_dir: Path, gone: list[str]) -> None:
    lost = lost_roles(admin_calls.roles_by_worker(admin_calls.Fleet(run_dir)), gone, ())
    if lost:
        fix = "pando admin role gives it to another worker; or --force"
        raise CliError(f"without {', '.join(gone)} nobody would {' or '.join(lost)}", fix=fix, code=BAD_INPUT)


def _follow(folder: RunFolder, counts: Mapping[str, int], console: Console, patience_s: float) -> int:
    gives_up_at = time.monotonic() + patience_s
    while time.monotonic() < gives_up_at:
        state = folder.read_state()
        if state is not None and _is_reached(state, counts):
            console.print(", ".join(f"{count} {kind}" for kind, count in counts.items()), highlight=False)
            return 0
        time.sleep(_POLL_S)
    console.print(f"not reached within {patience_s:g} s: see pando status and {folder.logs}", highlight=False)
    return FAILED


def _is_reached(state: ClusterState, counts: Mapping[str, int]) -> bool:
    phases = {service.name: service.phase for service in state.services}
    for kind, count in counts.items():
        names = of_kind(phases, kind)
        if len(names) != count or any(phases[name] != "ready" for name in names):
            return False
    return True
