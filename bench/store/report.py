"""Tables of what was measured, and the ratios that matter: ours against the better of Mooncake's ways."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.store.shapes import MOONCAKE, OURS

_WAYS = {"same_host": ("shm",), "network": ("tcp", "ucx")}


def ratios(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per cell and way: speed of ours over Mooncake's, 2 means half its time; of medians, and of the best rounds.

    The best rounds say what both can do where the machine has other work, the medians what they got.
    """
    result = []
    for title in dict.fromkeys(row["cell"] for row in rows):
        entry: dict[str, Any] = {"cell": title}
        for way, drivers in _WAYS.items():
            for suffix, field in (("", "median_ms"), ("_best", "best_ms")):
                times = {row["contender"]: row[field] for row in rows if row["cell"] == title}
                ours = [ms for name, ms in times.items() if name in OURS and name.split()[1] in drivers]
                theirs = [ms for name, ms in times.items() if name in MOONCAKE and name[9:12] in drivers]
                if ours and theirs:
                    entry[way + suffix] = round(min(theirs) / min(ours), 2)
        result.append(entry)
    return result


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """Milliseconds, GB/s and [CPU milliseconds of client and servers], then ratios of medians (of the best rounds)."""
    contenders = sorted({row["contender"] for row in rows}, key=(*OURS, *MOONCAKE).index)
    print(f"{'':20}" + "".join(f"{name:>26}" for name in contenders) + f"{'same host':>14}{'network':>14}")
    found = {(row["cell"], row["contender"]): row for row in rows}
    for entry in ratios(rows):
        line = f"{entry['cell']:20}"
        for name in contenders:
            row = found[entry["cell"], name]
            line += f"{row['median_ms']:9.2f} {row['median_gb_per_s']:6.2f} [{row['median_cpu_ms']:7.2f}]"
        for way in _WAYS:
            if way in entry:
                line += f"{entry[way]:7.2f} ({entry[way + '_best']:.2f})"
        print(line)
