"""Our policy against NVIDIA Dynamo's KV router, each in its own replay, on equal workers.

`python -m bench.replay compare --dynamo-python PYTHON TRACE... [--workers 4,8]`, where PYTHON is an interpreter with
`ai-dynamo-runtime`. Both sides get the same blocks per worker, batch limits and service times; round robin on both
sides is the control: it involves no policy, so where the two replays are equal its figures are equal. Dynamo's KV
router answers differently from run to run, so `--repeats` runs of it are taken and the one with the median mean TTFT is
shown. What differs else is said in docs/replay.md.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.replay.dynamo import DynamoRun, run_dynamo
from bench.replay.fleet import FleetShape
from bench.replay.job import WorkerShape
from bench.replay.options import NEVER
from bench.replay.report import Summary, summarise
from bench.replay.simulation import Simulation
from bench.replay.trace import read_trace
from services.router.planner import Planner, PlannerConfig

EXPECTED_OUTPUT_TOKENS = 128
EQUAL_RATIO = 1e-3
"""Times within this part of each other are equal."""
SIDES = {"round_robin": "round_robin", "prefix": "kv_router"}
"""Our policy and the mode of Dynamo's router that it is compared with."""

Case = tuple[Summary, Summary]
"""(ours, Dynamo's)"""


def parser() -> argparse.ArgumentParser:
    """All flags."""
    made = argparse.ArgumentParser(prog="python -m bench.replay compare", description=__doc__.splitlines()[0])
    made.add_argument("traces", type=Path, nargs="+", help="traces in the Mooncake format")
    made.add_argument("--dynamo-python", type=Path, required=True, help="a Python that has ai-dynamo-runtime")
    made.add_argument("--workers", default="4,8", help="comma list of fleet sizes")
    made.add_argument("--policies", default=",".join(SIDES), help="comma list of ours")
    made.add_argument("--repeats", type=int, default=3, help="runs of Dynamo's KV router")
    made.add_argument("--blocks", type=int, default=16384, help="KV blocks of a worker")
    made.add_argument("--block-size", type=int, default=64, help="tokens of a block")
    made.add_argument("--event-delay-ms", type=float, default=0.0, help="until the routers see a change, both sides")
    made.add_argument("--json", type=Path, help="write the figures there")
    return made


def ours(trace: Path, num_workers: int, policy: str, shape: WorkerShape, event_delay_ms: float) -> Summary:
    """Our replay: unified workers that neither fetch from each other nor compute for each other."""
    fleet = FleetShape(num_unified=num_workers, event_delay_s=event_delay_ms / 1000, worker=shape)
    config = PlannerConfig(policy=policy, remote_prefill_min_tokens=NEVER, max_sources=0)
    requests = read_trace(trace, shape.block_size)
    simulation = Simulation(requests, fleet, [Planner(config)], EXPECTED_OUTPUT_TOKENS)
    return summarise(simulation.run(), range(num_workers))


def case(args: argparse.Namespace, trace: Path, num_workers: int, policy: str) -> Case:
    """Both sides of one comparison."""
    shape = WorkerShape(num_blocks=args.blocks, block_size=args.block_size, share_when_scheduled=True)
    lag_ms = args.event_delay_ms or None
    ask = DynamoRun(trace.resolve(), num_workers, SIDES[policy], shape, lag_ms)
    with tempfile.TemporaryDirectory(prefix="pando-replay-") as folder:
        repeats = args.repeats if policy == "prefix" else 1
        theirs = [run_dynamo(args.dynamo_python, ask, Path(folder)) for _ in range(repeats)]
    theirs.sort(key=lambda one: one.ttft_ms["mean"])
    return ours(trace, num_workers, policy, shape, args.event_delay_ms), theirs[len(theirs) // 2]


def rows(name: str, both: Case) -> Iterable[tuple[str, ...]]:
    """Table rows of one comparison."""
    for side, one in zip(("Pando", "Dynamo"), both, strict=True):
        times = [one.ttft_ms[key] for key in ("p50", "p90", "p99", "mean")] + [one.tpot_ms["mean"]]
        yield name, side, f"{one.reuse_ratio:.4f}", *(f"{value:.1f}" for value in times), f"{one.load_ratio:.2f}"


def losses(both: Case) -> list[str]:
    """The figures of the target in which we are worse."""
    mine, theirs = both
    worse = ["reuse"] if mine.reuse_ratio < theirs.reuse_ratio else []
    limits = {key: theirs.ttft_ms[key] * (1 + EQUAL_RATIO) for key in ("p50", "p99")}
    return worse + [f"TTFT {key}" for key, limit in limits.items() if mine.ttft_ms[key] > limit]


def main(argv: Sequence[str]) -> None:
    """Run all cases, print them, write JSON."""
    args = parser().parse_args(argv)
    console = Console()
    made = Table(title=f"{args.blocks} blocks of {args.block_size} tokens a worker")
    for heading in ("case", "router", "reuse", "TTFT p50 ms", "p90", "p99", "mean", "TPOT mean ms", "max/min load"):
        made.add_column(heading)
    figures: dict[str, Mapping[str, object]] = {}
    for trace in args.traces:
        for num_workers in map(int, args.workers.split(",")):
            for policy in args.policies.split(","):
                name = f"{trace.stem}, {num_workers} workers, {policy}"
                both = case(args, trace, num_workers, policy)
                worse = losses(both) if policy == "prefix" else []
                console.print(f"{name}: {'worse in ' + ', '.join(worse) if worse else 'done'}", style="dim")
                figures[name] = {"pando": both[0].as_dict(), "dynamo": both[1].as_dict(), "worse_in": worse}
                for row in rows(name, both):
                    made.add_row(*row)
    console.print(made)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")
