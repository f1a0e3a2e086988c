"""Whether the KV tiers are worth it: `python -m bench.tiers [--quick] [--only NAMES] [--json FILE]`.

Starts worker processes that differ in their tiers only, and asks each the same, one request at a time: multi-turn
conversations in random order whose KV is four times L1. The variants of a case run side by side and take turns, so that
a busy machine slows all of them; only ratios of one run mean anything. Beside every ratio of TTFT stand those of CPU
time and of prompt tokens that were computed, which noise hardly touches, and in which tier the others were found.

Cases: `worth` (L1 + L2 of 4 x L1, against L1 only, and against one L1 of all the bytes), `split` (the same bytes as
one L1 or as L1 and L2, too few for all conversations), `restart` (a worker with a file L3 goes on with conversations of
its life before, without and with a tag key, against one without L3), `slow` (every L3 lookup takes 0.5 s and finds
nothing), `frozen` (L3 does not answer at all for a while). Exit status 1 when a request failed; it stops when two
variants give different tokens. docs/tiers.md has figures and what follows from them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.tier_lanes import BLOCK, Lane, Shape, ask_all, converse, machine, prompt, running

Json = dict[str, Any]
L1_SHARE = 4
"""The conversations of a round are this many times L1."""
RECOVERY_S, WRITTEN_S = 90.0, 60.0
FROZEN_POINTS = ("l3.lookup", "l3.read", "l3.put")


@dataclass(slots=True, frozen=True)
class Plan:
    """Sizes of a run: `rounds` of fresh conversations, prompts of the L3 cases, seconds that L3 stays frozen."""

    model: Path
    threads: int = 1
    rounds: int = 1
    shape: Shape = field(default_factory=Shape)
    restart_tokens: int = 320
    prompts: int = 12
    frozen_s: float = 60.0

    @property
    def l1_tokens(self) -> int:
        """Size of the small L1."""
        return self.shape.total_tokens // L1_SHARE // BLOCK * BLOCK


def tokens(count: int) -> dict[str, str]:
    """Flags for an L1 of so many tokens."""
    return {"max-total-tokens": str(count)}


def with_l2(l1_tokens: int, ratio: float, policy: str = "write_through") -> dict[str, str]:
    """Flags for an L1 and an L2 of `ratio` times its size."""
    return tokens(l1_tokens) | {"hicache-ratio": str(ratio), "hicache-write-policy": policy}


def with_l3(folder: Path, **flags: str) -> dict[str, str]:
    """Flags for an L1 with room for everything, and a file L3."""
    file = {"hicache-storage-backend": "file", "hicache-storage-dir": str(folder)}
    return tokens(8192) | file | {name.replace("_", "-"): value for name, value in flags.items()}


async def worth(plan: Plan, folder: Path) -> list[Json]:
    """L2 of 4 x L1 against nothing, and against an L1 of as many bytes as both."""
    size = plan.l1_tokens
    lanes = [
        Lane("L1 only", tokens(size)),
        Lane("L1 + L2", with_l2(size, L1_SHARE)),
        Lane("all in L1", tokens((1 + L1_SHARE) * size)),
    ]
    async with running(lanes, plan.model, plan.threads):
        for number in range(plan.rounds):
            await converse(lanes, plan.shape, f"worth {number}")
        small, both, large = lanes
        return [await row(both, small, 0.6), await row(both, large, 1.15), await row(small, large)]


async def split(plan: Plan, folder: Path) -> list[Json]:
    """2.5 x L1 in one piece, against pieces of it."""
    total = int(2.5 * plan.l1_tokens) // (4 * BLOCK) * 4 * BLOCK
    lanes = [
        Lane("one L1", tokens(total)),
        Lane("1/2 + 1/2, write_back", with_l2(total // 2, 1, "write_back")),
        Lane("1/4 + 3/4, write_back", with_l2(total // 4, 3, "write_back")),
        Lane("1/4 + 3/4, write_through", with_l2(total // 4, 3)),
        Lane("1/2 + 1/2, write_through", with_l2(total // 2, 1)),
    ]
    async with running(lanes, plan.model, plan.threads):
        for number in range(plan.rounds):
            await converse(lanes, plan.shape, f"split {number}")
        return [await row(lane, lanes[0], 1.15 if "back" in lane.name else None) for lane in lanes[1:]]


async def restart(plan: Plan, folder: Path) -> list[Json]:
    """Conversations go on after the worker was started anew."""
    key = folder / "tag.key"
    key.write_text("k" * 64)
    key.chmod(0o600)
    cold = Lane("no L3", tokens(8192))
    plain = Lane("L3, no key", with_l3(folder / "plain"))
    keyed = Lane("L3, tag key", with_l3(folder / "keyed", kv_tag_key_file=str(key)))
    draw = random.Random("restart")
    before = [prompt(draw, plan.restart_tokens) for _ in range(plan.prompts)]
    async with running([plain, keyed], plan.model, plan.threads):
        await ask_all([plain, keyed], before)
        for lane in (plain, keyed):
            await _all_written(lane)
            lane.answers.clear()
    async with running([cold, plain, keyed], plan.model, plan.threads):
        await ask_all([cold, plain, keyed], [[*one, *prompt(draw, plan.shape.turn_tokens)] for one in before])
        return [await row(plain, cold, 0.5), await row(keyed, cold, 0.5), await row(keyed, plain)]


async def slow(plan: Plan, folder: Path) -> list[Json]:
    """Lookups of an L3 that has nothing take half a second each."""
    points = folder / "slow-points"
    lanes = [Lane("no L3", tokens(8192)), Lane("slow L3", with_l3(folder / "slow", failpoints_dir=str(points)))]
    _arm(points, {"l3.lookup": "delay(0.5)"})
    draw = random.Random("slow")
    async with running(lanes, plan.model, plan.threads):
        await ask_all(lanes, [prompt(draw, 96 * (1 + number % 3)) for number in range(plan.prompts)])
        return [await row(lanes[1], lanes[0], 1.2)]


async def frozen(plan: Plan, folder: Path) -> list[Json]:
    """L3 does not answer for a while, then it does again."""
    points = folder / "frozen-points"
    points.mkdir()
    lanes = [Lane("no L3", tokens(8192)), Lane("frozen L3", with_l3(folder / "frozen", failpoints_dir=str(points)))]
    lane = lanes[1]
    draw = random.Random("frozen")
    kept = [prompt(draw, 128) for _ in range(4)]
    async with running(lanes, plan.model, plan.threads):
        await ask_all(lanes, kept)
        await _all_written(lane)
        for each in lanes:
            await each.begin_anew()
        _arm(points, dict.fromkeys(FROZEN_POINTS, "drop"))
        ends_s = time.monotonic() + plan.frozen_s
        await ask_all(lanes, kept)
        while time.monotonic() < ends_s:
            await ask_all(lanes, [prompt(draw, 128), prompt(draw, 256)])
        result = await row(lane, lanes[0], 1.2)
        result["answered"] = len(lane.answers)
        _disarm(points)
        result["used_again_after_s"] = await _used_again(lane, kept)
        return [result]


async def _used_again(lane: Lane, kept: Sequence[Sequence[int]]) -> float | None:
    """Seconds until a prompt that L3 has is found there; None if it never is."""
    began_s = time.monotonic()
    while time.monotonic() < began_s + RECOVERY_S:
        for one in kept:
            await lane.flush()
            await lane.ask(one)
            if lane.answers and lane.answers[-1].hits["l3"]:
                return time.monotonic() - began_s
    lane.errors.append("L3 was not used again")
    return None


async def row(lane: Lane, reference: Lane, target: float | None = None) -> Json:
    """A lane against another one, with what only the running processes know."""
    return compare(lane, reference, target) | {
        "cpu_ratio": lane.cpu_s / reference.cpu_s,
        "l2_moves": lane.moves(),
        "l2_also_in_l1": await lane.share_in_both(),
    }


def compare(lane: Lane, reference: Lane, target: float | None) -> Json:
    """TTFT and computed tokens of a lane against another one, and where the other tokens came from."""
    return {
        "variant": lane.name,
        "against": reference.name,
        "requests": len(lane.answers),
        "ttft_ms": 1000 * _mean_ttft_s(lane),
        "against_ttft_ms": 1000 * _mean_ttft_s(reference),
        "ratio": _mean_ttft_s(lane) / _mean_ttft_s(reference),
        "target": target,
        "computed_ratio": _computed(lane) / _computed(reference),
        "prompt_tokens": sum(answer.prompt_tokens for answer in lane.answers),
        "hit_tokens": {tier: sum(answer.hits[tier] for answer in lane.answers) for tier in ("l1", "l2", "l3")},
        "errors": [*lane.errors, *reference.errors],
    }


def _mean_ttft_s(lane: Lane) -> float:
    return sum(answer.ttft_s for answer in lane.answers) / max(1, len(lane.answers))


def _computed(lane: Lane) -> int:
    return sum(answer.prompt_tokens - sum(answer.hits.values()) for answer in lane.answers)


async def _all_written(lane: Lane) -> None:
    """Wait until nothing waits to be written to L3."""
    ends_s = time.monotonic() + WRITTEN_S
    while (await lane.tiers())["l3"].pending_writes:
        assert time.monotonic() < ends_s, f"L3 has not taken all within {WRITTEN_S:g} s"
        await asyncio.sleep(0.05)


def _arm(points: Path, rules: Mapping[str, str]) -> None:
    points.mkdir(exist_ok=True)
    for name, rule in rules.items():
        (points / name).write_text(rule)


def _disarm(points: Path) -> None:
    for file in points.iterdir():
        file.unlink()


def lines(one: Json) -> Iterator[str]:
    """A row for people."""
    target = (
        f" (target {one['target']:g}, {'met' if one['ratio'] <= one['target'] else 'MISSED'})" if one["target"] else ""
    )
    yield (
        f"  {one['variant']} / {one['against']}: TTFT {one['ttft_ms']:.0f} / {one['against_ttft_ms']:.0f} ms = "
        f"{one['ratio']:.2f}{target}, CPU {one['cpu_ratio']:.2f}, computed {one['computed_ratio']:.2f}"
    )
    shares = [f"{tier} {100 * count / one['prompt_tokens']:.0f} %" for tier, count in one["hit_tokens"].items()]
    moves = one["l2_moves"]
    below = f"; {moves['saved']} blocks down, {moves['loaded']} up, {100 * one['l2_also_in_l1']:.0f} % of L2 also in L1"
    again = f"; L3 used again after {one['used_again_after_s']:.1f} s" if one.get("used_again_after_s") else ""
    yield f"    {one['requests']} requests found {', '.join(shares)}{below if any(moves.values()) else ''}{again}"


CASES: dict[str, Callable[[Plan, Path], Coroutine[None, None, list[Json]]]] = {
    "worth": worth,
    "split": split,
    "restart": restart,
    "slow": slow,
    "frozen": frozen,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write JSON; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("models/SmolLM2-135M-Instruct"))
    parser.add_argument("--threads", type=int, default=1, help="compute threads of each worker")
    parser.add_argument("--rounds", type=int, default=1, help="rounds of fresh conversations in worth and split")
    parser.add_argument("--quick", action="store_true", help="one small round, L3 frozen for 10 s: to see that it runs")
    parser.add_argument("--only", default=",".join(CASES), help="comma list of " + ", ".join(CASES))
    parser.add_argument("--json", type=Path, default=Path("bench/results/tiers.json"))
    args = parser.parse_args(argv)
    plan = Plan(args.model, args.threads, args.rounds)
    if args.quick:
        plan = Plan(args.model, args.threads, 1, Shape(8, 3), restart_tokens=160, prompts=4, frozen_s=10)
    results: Json = {"machine": machine(), "plan": repr(plan)}
    for name in args.only.split(","):
        with tempfile.TemporaryDirectory(prefix="pando-tiers-") as folder:
            results[name] = asyncio.run(CASES[name](plan, Path(folder)))
        print(f"{name}: {(CASES[name].__doc__ or '').strip()} ({machine()})")
        print("\n".join(text for one in results[name] for text in lines(one)), flush=True)
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(results, indent=2) + "\n")
    errors = [error for name in args.only.split(",") for one in results[name] for error in one["errors"]]
    for error in errors:
        print(f"failed: {error}", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
