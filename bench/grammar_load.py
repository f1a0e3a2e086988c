"""What structured output does to a running cluster's token times, by the clock of its clients.

`python -m bench.grammar_load tpot --url http://127.0.0.1:30000` streams 8 chats at a time with and without a
three-field schema, in turns, and compares their TPOT (target: at most 1.1).

`python -m bench.grammar_load hostile` streams plain chats, in turns alone and beside clients that send nothing but
hostile grammars, and compares the p99 of the gaps between their tokens (target: at most 2). It also says how long the
slowest hostile grammar took to be refused or to begin its stream (target: 2 s), and which status each got.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import httpx

from bench.grammar_corpus import THREE_FIELDS
from bench.openai_stream import Sample, ask
from bench.percentile import percentile
from tests.support.hostile_grammars import REFUSED, SERVED

BATCH, HOSTILE_CLIENTS, PLAIN_STREAMS = 8, 2, 4
MAX_TPOT_RATIO, MAX_ITL_RATIO, MAX_VERDICT_S = 1.1, 2.0, 2.0
SCHEMA_FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": THREE_FIELDS, "strict": True}}
HOSTILE = list((REFUSED | SERVED).values())


def chat(seed: int, max_tokens: int, **more: Any) -> dict[str, Any]:
    """A streamed chat that differs by `seed`."""
    messages = [{"role": "user", "content": f"Describe person number {seed}: name, age, whether they are a member."}]
    usage = {"include_usage": True}
    return {
        "messages": messages,
        "max_tokens": max_tokens,
        "seed": seed,
        "stream": True,
        "stream_options": usage,
    } | more


async def batch(client: httpx.AsyncClient, seeds: Sequence[int], max_tokens: int, **more: Any) -> list[Sample]:
    """Chats that run at the same time. Raises RuntimeError when one fails."""
    samples = await asyncio.gather(*(ask(client, chat(seed, max_tokens, **more), 0) for seed in seeds))
    for sample in samples:
        if sample.error:
            raise RuntimeError(sample.error)
    return list(samples)


async def tpot(url: str, rounds: int) -> bool:
    """Print TPOT with and without a schema; True when the ratio is within its target."""
    times: dict[str, list[float]] = {"with mask": [], "without": []}
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        for number in range(rounds):
            seeds = range(number * BATCH, (number + 1) * BATCH)
            masked = await batch(client, seeds, 64, response_format=SCHEMA_FORMAT)
            length = max(2, round(statistics.mean(sample.num_output_tokens for sample in masked)))
            plain = await batch(client, seeds, length, ignore_eos=True)
            for name, samples in (("with mask", masked), ("without", plain)):
                times[name].append(statistics.mean(s.tpot_s for s in samples if s.tpot_s is not None))
    for name, values in times.items():
        print(
            f"{name:10} {statistics.median(values) * 1e3:7.2f} ms a token (median of {rounds} rounds of {BATCH} chats)"
        )
    ratio = statistics.median(m / p for m, p in zip(times["with mask"], times["without"], strict=True))
    print(f"ratio      {ratio:7.3f} (target: at most {MAX_TPOT_RATIO})")
    return ratio <= MAX_TPOT_RATIO


async def attack(client: httpx.AsyncClient, stop: asyncio.Event, number: int, seen: Counter[int]) -> float:
    """Send hostile grammars, one after the other, until `stop`; returns the longest wait for a verdict in seconds."""
    slowest_s = 0.0
    while not stop.is_set():
        kind, text = HOSTILE[number % len(HOSTILE)]
        if kind == "regex":
            text += f"|z{number}"  # not in a cache yet
        number += HOSTILE_CLIENTS
        body = {"text": "x", "stream": True, "sampling_params": {"max_new_tokens": 16, kind: text}}
        began_s = time.monotonic()
        async with client.stream("POST", "/generate", json=body) as answer:
            seen[answer.status_code] += 1
            async for _ in answer.aiter_bytes():
                slowest_s = max(slowest_s, time.monotonic() - began_s)
                break
    return slowest_s


def p99(samples: Sequence[Sample]) -> float:
    """Of the gaps between tokens, in seconds."""
    return percentile((gap for sample in samples for gap in sample.itl_s), 99)


async def hostile(url: str, rounds: int) -> bool:
    """Print gaps with and without hostile neighbours; True when all targets are met."""
    ratios, slowest_s, seen = [], 0.0, Counter[int]()
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        for number in range(rounds):
            seeds = range(number * PLAIN_STREAMS, (number + 1) * PLAIN_STREAMS)
            alone = p99(await batch(client, seeds, 128, ignore_eos=True))
            stop = asyncio.Event()
            first = number * len(HOSTILE) // rounds
            attackers = [asyncio.create_task(attack(client, stop, first + n, seen)) for n in range(HOSTILE_CLIENTS)]
            beside = p99(await batch(client, seeds, 128, ignore_eos=True))
            stop.set()
            slowest_s = max(slowest_s, *await asyncio.gather(*attackers))
            ratios.append(beside / alone)
            print(f"ITL p99 {alone * 1e3:6.1f} ms alone, {beside * 1e3:6.1f} ms beside: {ratios[-1]:.2f}", flush=True)
    ratio = statistics.median(ratios)
    print(
        f"ratio {ratio:.2f} (target: at most {MAX_ITL_RATIO}); slowest verdict {slowest_s:.2f} s; statuses {dict(seen)}"
    )
    return ratio <= MAX_ITL_RATIO and slowest_s <= MAX_VERDICT_S and set(seen) <= {200, 400}


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("tpot", "hostile"))
    parser.add_argument("--url", default="http://127.0.0.1:30000")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    kept = asyncio.run((tpot if args.what == "tpot" else hostile)(args.url, args.rounds))
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main())
