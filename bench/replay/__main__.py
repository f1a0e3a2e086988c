"""Replay a trace: `python -m bench.replay TRACE --workers 4 --policy prefix`; `--help` lists all. docs/replay.md.

`python -m bench.replay compare` runs NVIDIA Dynamo's offline replay beside ours: see `bench/replay/compare.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench.replay import compare
from bench.replay.options import add_fleet_options, fleet_shape, planner_config
from bench.replay.report import Summary, summarise, table
from bench.replay.simulation import Simulation
from bench.replay.trace import TraceRequest, highest_reuse, read_trace, repeat_trace
from services.router.choosing import POLICIES
from services.router.planner import Planner


def parser() -> argparse.ArgumentParser:
    """All flags."""
    made = argparse.ArgumentParser(prog="python -m bench.replay", description=__doc__.splitlines()[0])
    made.add_argument("trace", type=Path, help="trace in the Mooncake format, jsonl")
    made.add_argument("--policy", default="prefix", help=f"comma list of {', '.join(POLICIES)}, or all")
    made.add_argument(
        "--routers", type=int, default=1, help="routers that share the requests and know nothing of another"
    )
    made.add_argument("--seed", type=int, default=0, help="of the policy random")
    made.add_argument("--arrival-speedup", type=float, default=1.0, help="arrivals come so many times as fast")
    made.add_argument("--copies", type=int, default=1, help="lay so many copies of the trace over each other")
    made.add_argument("--limit", type=int, help="replay the first N requests only")
    made.add_argument("--json", type=Path, help="write the figures there")
    add_fleet_options(made)
    return made


def policies(names: str) -> list[str]:
    """The policies of a comma list.

    Raises:
        ValueError: one is unknown.
    """
    chosen = list(POLICIES) if names == "all" else names.split(",")
    unknown = sorted(set(chosen) - set(POLICIES))
    if unknown:
        raise ValueError(f"unknown policy {', '.join(unknown)}; there are {', '.join(POLICIES)}")
    return chosen


def replay(trace: Sequence[TraceRequest], args: argparse.Namespace, policy: str) -> Summary:
    """One run of one policy."""
    shape = fleet_shape(args)
    config = planner_config(args, policy)
    routers = [Planner(config, seed=args.seed + number) for number in range(args.routers)]
    simulation = Simulation(trace, shape, routers, args.expected_output_tokens)
    records = simulation.run()
    computing = [number for number, one in enumerate(simulation.members) if one.candidate.can_prefill]
    return summarise(records, computing or range(len(simulation.members)))


def main(argv: Sequence[str] | None = None) -> None:
    """Replay and report."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["compare"]:
        compare.main(arguments[1:])
        return
    args = parser().parse_args(arguments)
    trace = repeat_trace(read_trace(args.trace, args.block_size, args.arrival_speedup, args.limit), args.copies)
    console = Console()
    rows: dict[str, Summary] = {}
    for policy in policies(args.policy):
        began = time.process_time()
        rows[policy] = replay(trace, args, policy)
        console.print(f"{policy}: {len(trace)} requests in {time.process_time() - began:.1f} s of CPU", style="dim")
    bound = highest_reuse(trace, args.block_size)
    console.print(table(f"{args.trace.name}: reuse of an unbounded cache {bound:.4f}", rows))
    if args.json:
        figures = {"trace": args.trace.name, "highest_reuse_ratio": bound}
        args.json.write_text(
            json.dumps({**figures, **{name: row.as_dict() for name, row in rows.items()}}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
