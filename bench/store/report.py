"""Tables of what was measured, and the ratios that matter: ours against the better of Mooncake's ways."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.store.shapes import MOONCAKE, OURS

_NETWORK = ("tcp", "ucx")


def ratios(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per cell: speed of ours over Mooncake's, same host and over the network; 2 means half its time."""
    result = []
    for title in dict.fromkeys(row["cell"] for row in rows):
        times = {row["contender"]: row["median_ms"] for row in rows if row["cell"] == title}
        entry: dict[str, Any] = {"cell": title}
        for way, drivers in (("same_host", ("shm",)), ("network", _NETWORK)):
            ours = [ms for name, ms in times.items() if name.startswith("ours") and name.split()[1] in drivers]
            theirs = [ms for name, ms in times.items() if name.startswith("mooncake") and name[9:12] in drivers]
            if ours and theirs:
                entry[way] = round(min(theirs) / min(ours), 2)
        result.append(entry)
    return result


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """Milliseconds (GB/s) [CPU milliseconds of client and servers] per cell and contender, and ratios."""
    contenders = sorted({row["contender"] for row in rows}, key=(*OURS, *MOONCAKE).index)
    print(f"{'':20}" + "".join(f"{name:>26}" for name in contenders) + f"{'same host':>11}{'network':>9}")
    found = {(row["cell"], row["contender"]): row for row in rows}
    for entry in ratios(rows):
        line = f"{entry['cell']:20}"
        for name in contenders:
            row = found[entry["cell"], name]
            line += f"{row['median_ms']:9.2f} {row['median_gb_per_s']:6.2f} [{row['median_cpu_ms']:7.2f}]"
        print(line + f"{entry.get('same_host', ''):>11}{entry.get('network', ''):>9}")
