"""Interleaved rounds over all contenders, and the medians of what they took.

A contender whose client ends or no longer answers is left out, with all that it has shown; the others go on.
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.store.processes import ClientLost, Processes, RemoteClient, start_mooncake, start_ours
from bench.store.shapes import MOONCAKE, OURS, Cell, cells

_DRIVERS = {"ours shm": ["shm"], "ours tcp": ["tcp"], "ours ucx": ["ucx", "tcp"]}


def measure(folder: Path, num_rounds: int, only: Sequence[str], names: Sequence[str]) -> list[dict[str, Any]]:
    """Start everything and measure; one row per cell and contender.

    Args:
        folder: for logs.
        num_rounds: that count; one more goes before them.
        only: operations to measure; empty: all.
        names: contenders; empty: all.
    """
    processes = Processes(folder)
    try:
        clients = _start(processes, names or (*OURS, *MOONCAKE))
        clients = [client for client in clients if _command(client, fill=True) is not None]
        wanted = [cell for cell in cells() if not only or any(word in cell.title for word in only)]
        return _rounds(clients, wanted, num_rounds)
    finally:
        processes.close()


def _start(processes: Processes, names: Sequence[str]) -> list[RemoteClient]:
    clients = []
    if any(name in OURS for name in names):
        address, pids = start_ours(processes, 51_000)
        for name in (name for name in OURS if name in names):
            spec = {"name": name, "store": "ours", "address": address, "drivers": _DRIVERS[name]}
            clients.append(RemoteClient(processes, spec, pids, {}))
    for port, pool in ((52_000, "1"), (53_000, "0")):
        mine = [name for name in MOONCAKE if name in names and name.endswith("pool off") == (pool == "0")]
        if mine:
            env = {"MC_TCP_ENABLE_CONNECTION_POOL": pool, "MC_LOG_LEVEL": "ERROR"}
            master, node, pids = start_mooncake(processes, port, env)
            for name in mine:
                spec = {"name": name, "store": "mooncake", "address": master, "node": node if "shm" in name else ""}
                clients.append(RemoteClient(processes, spec, pids, env))
    return clients


def _rounds(clients: list[RemoteClient], wanted: Sequence[Cell], num_rounds: int) -> list[dict[str, Any]]:
    seconds: dict[tuple[Cell, str], list[float]] = defaultdict(list)
    cpu: dict[tuple[Cell, str], list[float]] = defaultdict(list)
    for number in range(num_rounds + 1):
        for cell in wanted:
            first = number % len(clients) if clients else 0
            for client in clients[first:] + clients[:first]:
                answer = _command(client, **asdict(cell))
                if answer is None:
                    clients.remove(client)
                elif number:  # the first round connects, maps and touches memory
                    seconds[cell, client.name].append(statistics.median(answer["seconds"]))
                    cpu[cell, client.name].append(answer["cpu_s"] + answer["server_cpu_s"] / cell.repeats)
    left = {client.name for client in clients}
    return [_row(cell, name, times, cpu[cell, name]) for (cell, name), times in seconds.items() if name in left]


def _command(client: RemoteClient, **fields: Any) -> dict[str, Any] | None:
    """Its answer; None: it is lost, which is said."""
    try:
        return client.command(**fields)
    except ClientLost as error:
        print(f"goes on without a contender: {error}", file=sys.stderr)
        return None


def _row(cell: Cell, name: str, seconds: Sequence[float], cpu: Sequence[float]) -> dict[str, Any]:
    took_s = statistics.median(seconds)
    return {
        "cell": cell.title,
        "op": cell.op,
        "object_bytes": cell.size,
        "count": cell.count,
        "contender": name,
        "median_ms": round(took_s * 1e3, 3),
        "best_ms": round(min(seconds) * 1e3, 3),
        "worst_ms": round(max(seconds) * 1e3, 3),
        "median_gb_per_s": round(cell.size * cell.count / took_s / 1e9, 3),
        "median_cpu_ms": round(statistics.median(cpu) * 1e3, 3),
    }
