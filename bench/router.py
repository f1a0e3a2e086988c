"""What the router itself costs: `python -m bench.router [--rounds N] [--only core|live] [--json FILE]`.

`core` times the pure parts in this process: one decision (plan and start) for a 2,000-token prompt on 8 workers,
inserts into the prefix view, a match, a rebuild from a snapshot as it comes over the wire, and the memory of a block.
`live` asks a real router and one that forwards blindly in turn (`bench/router_live.py`). Every figure is the median
over rounds; times of `core` are CPU time of this thread. A busy machine slows all of it: the time of an empty loop
stands beside, and a figure divided by it can be compared between runs. Tokenising and hashing are not in any of it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.percentile import percentile
from bench.router_live import LiveShape, measure_live
from pando.v1 import worker_pb2
from services.router.convert import update_from_pb
from services.router.index_update import ChangeKind, Update
from services.router.placement import Placement
from services.router.planner import Planner, PlannerConfig
from services.router.policy import Candidate, Exclusions, Task
from services.router.prefix_view import PrefixView, WorkerKey

BLOCK_SIZE = 16
NUM_WORKERS = 8
PROMPT_TOKENS = 2000
KEY: WorkerKey = ("worker", 1)
TARGETS = {
    "decision p50 us": "<= 150",
    "decision p99 us": "<= 1000",
    "match of 50 blocks us": "<= 30",
    "view inserts per s": ">= 300000",
    "rebuild of 100k blocks s": "<= 2",
    "bytes per block": "<= 300",
    "added latency p50, 1 client ms": "<= 1",
    "added latency p50, 16 clients ms": "<= 4",
}


def name(number: int) -> bytes:
    """A prefix hash."""
    return sha256(number.to_bytes(8, "little")).digest()


def cpu_times(call: Callable[[], object], count: int) -> list[float]:
    """CPU seconds of each of `count` calls."""
    times = []
    for _ in range(count):
        began = time.thread_time()
        call()
        times.append(time.thread_time() - began)
    return times


class Fleet:
    """A planner with 8 unified workers that hold different heads of one prompt, and 32 requests in flight."""

    def __init__(self) -> None:
        self.planner = Planner(PlannerConfig())
        self.workers = [Candidate((f"w{n}", 1), f"host:{n}", True, True) for n in range(NUM_WORKERS)]
        self.hashes = [name(number) for number in range(PROMPT_TOKENS // BLOCK_SIZE)]
        self.now_s = 0.0
        for number, worker in enumerate(self.workers):
            held = self.hashes[: len(self.hashes) - 12 * number]
            changes = [(ChangeKind.STORED, block, 1) for block in held]
            self.planner.handle(worker.key, Update(len(held), changes, snapshot=True, snapshot_end=True))
        self.running = [self.place() for _ in range(32)]
        for placement in self.running[::2]:
            placement.progress(1, self.now_s)

    def place(self) -> Placement:
        """Decide on the prompt and put the plan into force."""
        self.now_s += 0.01
        task = Task(self.hashes, PROMPT_TOKENS + 8, BLOCK_SIZE, 128, "session", 700_000)
        plan = self.planner.plan(task, self.workers, Exclusions(), self.now_s)
        assert plan is not None, "every worker decodes"
        return self.planner.start(plan, task, self.now_s)


def decisions(count: int) -> dict[str, float]:
    """Times of deciding, the placement's end not counted."""
    fleet = Fleet()
    ends: list[Placement] = []
    times = []
    for _ in range(count // 20):
        times += cpu_times(lambda: ends.append(fleet.place()), 20)
        while ends:
            ends.pop().release()
    return {"decision p50 us": percentile(times, 50) * 1e6, "decision p99 us": percentile(times, 99) * 1e6}


def view_times(num_blocks: int) -> dict[str, float]:
    """Inserting, matching, and taking in a snapshot from the wire."""
    batches = [
        Update(start + 1000, [(ChangeKind.STORED, name(start + n), 1) for n in range(1000)])
        for start in range(0, num_blocks, 1000)
    ]
    view = PrefixView(4_000_000)
    view.handle(KEY, Update(0, [], snapshot=True, snapshot_end=True))
    began = time.thread_time()
    for batch in batches:
        view.handle(KEY, batch)
    insert_s = time.thread_time() - began
    fleet = Fleet()
    matching = cpu_times(lambda: fleet.planner.view.match(fleet.hashes[:50]), 500)
    return {
        "view inserts per s": num_blocks / insert_s,
        "match of 50 blocks us": percentile(matching, 50) * 1e6,
        "rebuild of 100k blocks s": rebuild_s(100_000),
    }


def rebuild_s(num_blocks: int) -> float:
    """CPU seconds from the bytes of a snapshot to an exact view."""
    names = [name(number) for number in range(num_blocks)]
    parts = []
    for start in range(0, num_blocks, 2048):
        events = [
            worker_pb2.BlockEvent(
                kind=worker_pb2.BlockEvent.KIND_STORED, prefix_hash=names[n], parent_hash=names[n - 1], tier=1
            )
            for n in range(start, min(start + 2048, num_blocks))
        ]
        end = start + 2048 >= num_blocks
        parts.append(
            worker_pb2.WatchResponse(seq=7, snapshot=True, snapshot_end=end, events=events).SerializeToString()
        )
    view = PrefixView(4_000_000)
    began = time.thread_time()
    for part in parts:
        view.handle(KEY, update_from_pb(worker_pb2.WatchResponse.FromString(part)))
    taken_s = time.thread_time() - began
    assert view.is_exact(KEY) and len(view) == num_blocks, f"{len(view)} blocks after the snapshot"
    return taken_s


def bytes_per_block(num_blocks: int) -> float:
    """Python memory of the view, the hashes included."""
    gc.collect()
    tracemalloc.start()
    try:
        view = PrefixView(4_000_000)
        view.handle(KEY, Update(0, [], snapshot=True, snapshot_end=True))
        before = tracemalloc.get_traced_memory()[0]
        for start in range(0, num_blocks, 1000):
            changes = [(ChangeKind.STORED, name(start + n), 1) for n in range(1000)]
            view.handle(KEY, Update(start + 1000, changes))
        del changes
        return (tracemalloc.get_traced_memory()[0] - before) / num_blocks
    finally:
        tracemalloc.stop()


def empty_loop_ns() -> float:
    """CPU time of one turn of an empty loop: how fast this machine is at the moment."""
    began = time.thread_time()
    for _ in range(1_000_000):
        pass
    return (time.thread_time() - began) * 1e3


def core_round(quick: bool) -> dict[str, float]:
    """All figures of the pure parts once."""
    return {
        "empty loop ns": empty_loop_ns(),
        **decisions(400 if quick else 2000),
        **view_times(100_000 if quick else 300_000),
    }


def medians(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    """The median of each figure over rounds."""
    return {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; returns 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="figures are medians over so many")
    parser.add_argument("--only", choices=("core", "live"), help="measure a part only")
    parser.add_argument("--quick", action="store_true", help="smaller counts")
    parser.add_argument("--json", type=Path, help="write the figures there")
    args = parser.parse_args(argv)
    figures: dict[str, float] = {}
    if args.only != "live":
        figures |= medians([core_round(args.quick) for _ in range(args.rounds)])
        figures["bytes per block"] = bytes_per_block(200_000 if args.quick else 1_000_000)
    if args.only != "core":
        shape = LiveShape(num_rounds=args.rounds, num_requests=16 if args.quick else 48)
        figures |= medians(asyncio.run(measure_live(shape)))
    table = Table("figure", "measured", "target", box=None)
    for key, value in figures.items():
        table.add_row(key, f"{value:,.2f}" if value < 1000 else f"{value:,.0f}", TARGETS.get(key, ""))
    Console().print(table)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
