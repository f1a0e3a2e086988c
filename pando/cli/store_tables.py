"""What the store's processes answered, as tables for people."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from pando.cli.admin_tables import PIPE_COLUMNS, human_bytes
from pando.cli.store_calls import Listing, Stats

_SHORT = 12
_COLUMNS = ("node", "roles", "leads", "objects", "memory", "disk", "unwritten", "leases", "objects it knows")


def show_stats(answers: Sequence[Stats]) -> None:
    """One line a process."""
    table = Table(
        "node", "roles", "leads", "objects", "memory", "disk", "unwritten", "leases", "known objects", box=None
    )
    for answer in answers:
        if answer.error:
            continue
        values = answer.values
        leads = f"term {values['term']}" + ("" if values["complete"] else ", learning") if values["leading"] else "-"
        table.add_row(
            answer.node_id,
            ",".join(values["roles"]),
            leads,
            str(values["num_objects"]),
            _of(values["memory_bytes"], values["memory_capacity_bytes"]),
            _of(values["disk_bytes"], values["disk_capacity_bytes"]),
            human_bytes(int(values["unwritten_bytes"])),
            str(values["num_leases"]),
            str(values["directory_objects"]) if values["leading"] else "-",
        )
    _console().print(table)


def show_objects(answers: Sequence[Listing]) -> None:
    """One line an object."""
    table = Table("node", "namespace", "prefix hash", "part", "size", "in", "pins", box=None)
    for answer in answers:
        for one in answer.objects:
            tiers = "+".join(one["tiers"]) + (" (soft pin)" if one["soft_pin"] else "")
            name = one["prefix_hash"][:_SHORT]
            size = human_bytes(one["num_bytes"])
            table.add_row(answer.node_id, one["namespace"], name, str(one["part"]), size, tiers, str(one["num_pins"]))
    console = _console()
    console.print(table)
    for answer in answers:
        if answer.more:
            console.print(f"{answer.node_id}: there are more, see --limit", highlight=False)


def complain(errors: Iterable[str]) -> bool:
    """Print errors; whether there were any."""
    given = [error for error in errors if error]
    for error in given:
        print(error, file=sys.stderr)
    return bool(given)


def _of(used: str, capacity: str) -> str:
    return f"{human_bytes(int(used))} of {human_bytes(int(capacity))}" if int(capacity) else "-"


def _console() -> Console:
    return Console(soft_wrap=True, width=None if sys.stdout.isatty() else PIPE_COLUMNS)
