"""Shows how a cluster comes up and what happens to it afterwards.

On a terminal one table that is redrawn in place until the cluster is ready; elsewhere one line per change. It is fed
with states and draws no conclusions of its own.
"""

from __future__ import annotations

import time

from rich.console import Console
from rich.live import Live
from rich.table import Table

from pando.cli.run_folder import ClusterState, ServiceState

_COLOURS = {"ready": "green", "starting": "yellow", "backoff": "red", "failed": "red", "stopping": "yellow"}


class Progress:
    """Progress of one cluster. Use as a context manager; not thread-safe."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began_s = time.monotonic()
        self._phases: dict[str, str] = {}
        self._took_s: dict[str, float] = {}
        self._live = Live(console=console, auto_refresh=False, transient=False) if console.is_terminal else None

    def __enter__(self) -> Progress:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *exit_information: object) -> None:
        self.finish()

    def finish(self) -> None:
        """Leave the table as it is; later changes are printed as lines."""
        if self._live:
            self._live.stop()
            self._live = None

    def show(self, state: ClusterState) -> None:
        """Take in a new state."""
        changed = [service for service in state.services if self._phases.get(service.name) != service.phase]
        for service in changed:
            self._phases[service.name] = service.phase
            self._took_s[service.name] = time.monotonic() - self._began_s
            if self._live is None and service.phase not in ("waiting", "stopping"):
                self._console.print(self._line(service), highlight=False)
        if self._live is not None:
            self._live.update(self._table(state), refresh=True)

    def say(self, text: str) -> None:
        """A line for the user."""
        self._console.print(f"[yellow]{text}[/yellow]", highlight=False)

    def _line(self, service: ServiceState) -> str:
        return f"  {service.name:<12} {_coloured(service.phase)} ({self._took_s[service.name]:.1f} s)"

    def _table(self, state: ClusterState) -> Table:
        table = Table(box=None, show_header=False, pad_edge=False)
        for service in state.services:
            took = f"{self._took_s[service.name]:.1f} s" if service.phase != "waiting" else ""
            table.add_row(f"  {service.name}", _coloured(service.phase), took)
        return table


def _coloured(phase: str) -> str:
    colour = _COLOURS.get(phase, "dim")
    return f"[{colour}]{phase}[/{colour}]"
