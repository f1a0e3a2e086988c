"""What a cached prompt saves: TTFT of a repeated prompt against a cold one: `python -m bench.reuse [--json FILE]`.

Starts a prefill and two decode workers and asks the decode workers directly, as the router would. Each round has a
cache salt of its own and runs four requests one after the other: cold, the same again on the same pair, the same on the
other decode worker (which must fetch every block), and there again without prefill from the first worker's cache. A
round's ratios are taken within the round, so that a busy machine spoils both sides; the median of the rounds counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from pando.cli.run_folder import RunFolder
from pando.v1 import types_pb2, worker_pb2, worker_pb2_grpc

BLOCK = 16
TARGETS = {"same pair": 0.15, "other decode worker": 0.35, "other decode worker, no prefill": 0.35}
PROMPT_KINDS = 40_000


@dataclass(slots=True, frozen=True)
class Answer:
    """One request: seconds to its first token, cached prompt tokens, bytes that decode fetched."""

    ttft_s: float
    cached_tokens: int
    transfer_bytes: int


@dataclass(slots=True, frozen=True)
class Fleet:
    """Addresses of the workers."""

    prefill: str
    decode: tuple[str, str]


@contextmanager
def cluster(model: Path) -> Generator[Fleet, None, None]:
    """A prefill and two decode workers, up for the body."""
    with tempfile.TemporaryDirectory(prefix="pando-reuse-") as run_dir:
        command = [sys.executable, "-m", "pando.cli.main"]
        flags = ["--run-dir", run_dir, "--port", "0", "--router-port", "0", "--decode-workers", "2"]
        subprocess.run([*command, "up", "--detach", *flags, "--model-path", str(model)], check=True)
        try:
            state = RunFolder(Path(run_dir)).read_state()
            assert state is not None, "the cluster left no state"
            at = {service.name: service.address for service in state.services}
            yield Fleet(at["prefill-0"], (at["decode-0"], at["decode-1"]))
        finally:
            subprocess.run([*command, "down", "--run-dir", run_dir], check=True)


async def ask(decode: str, prefill: str, prompt: list[int], salt: str, source: tuple[str, str] | None = None) -> Answer:
    """Run a request of two tokens; `source` is (worker id, address) of a worker that has the prompt."""
    request = worker_pb2.DecodeServiceGenerateRequest()
    request.request.request_id = f"{salt}-{time.monotonic_ns()}"
    request.request.prompt_token_ids.extend(prompt)
    request.request.cache_salt = salt
    request.request.sampling.CopyFrom(types_pb2.SamplingParams(max_tokens=2, temperature=0, seed=0, ignore_eos=True))
    request.prefill.address = prefill
    if source is not None:
        worker = worker_pb2.WorkerRef(worker_id=source[0], address=source[1])
        request.sources.append(worker_pb2.BlockSource(worker=worker, num_blocks=(len(prompt) - 1) // BLOCK))
    async with grpc.aio.insecure_channel(decode) as channel:
        await channel.channel_ready()
        began, first_s = time.perf_counter(), 0.0
        async for message in worker_pb2_grpc.DecodeServiceStub(channel).Generate(request):
            first_s = first_s or time.perf_counter() - began
            usage = message.frame.usage
    cached = usage.cached_tokens
    return Answer(first_s, cached.l1 + cached.l2 + cached.l3 + cached.peer, usage.transfer_bytes)


async def one_round(fleet: Fleet, number: int, num_tokens: int) -> dict[str, Answer]:
    """The four requests of a round."""
    prompt = [3 + (7919 * i + 31 * number) % PROMPT_KINDS for i in range(num_tokens)]
    first, second = fleet.decode
    pair = (fleet.prefill, prompt)
    answers = {}
    answers["cold"] = await ask(first, *pair, f"round-{number}")
    answers["same pair"] = await ask(first, *pair, f"round-{number}")
    answers["other decode worker"] = await ask(second, *pair, f"round-{number}")
    await ask(first, *pair, f"round-{number}-peer")
    source = ("decode-0", first)
    answers["other decode worker, no prefill"] = await ask(second, "", prompt, f"round-{number}-peer", source)
    return answers


def report(rounds: list[dict[str, Answer]]) -> dict[str, dict[str, float]]:
    """Medians by case."""
    table: dict[str, dict[str, float]] = {}
    for case in rounds[0]:
        answers = [one[case] for one in rounds]
        table[case] = {
            "ttft_ms": 1000 * statistics.median(answer.ttft_s for answer in answers),
            "ratio": statistics.median(one[case].ttft_s / one["cold"].ttft_s for one in rounds),
            "cached_tokens": answers[-1].cached_tokens,
            "transfer_bytes": answers[-1].transfer_bytes,
        }
    return table


async def measure(fleet: Fleet, num_rounds: int, num_tokens: int) -> list[dict[str, Answer]]:
    """All rounds; the first one warms up and does not count."""
    return [await one_round(fleet, number, num_tokens) for number in range(num_rounds + 1)][1:]


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("models/SmolLM2-135M-Instruct"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--json", type=Path, default=Path("bench/results/reuse.json"))
    args = parser.parse_args()
    with cluster(args.model) as fleet:
        table = report(asyncio.run(measure(fleet, args.rounds, args.tokens)))
    print(f"TTFT of a prompt of {args.tokens} tokens, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for case, row in table.items():
        target = f" (target {TARGETS[case]})" if case in TARGETS else ""
        print(
            f"{case:32s} {row['ttft_ms']:9.1f} ms  x {row['ratio']:.3f}{target}  "
            f"{row['cached_tokens']:.0f} cached tokens, {row['transfer_bytes'] / 2**20:.1f} MiB to decode"
        )
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
