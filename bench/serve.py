"""Measures any OpenAI-compatible endpoint: `python -m bench.serve --url http://127.0.0.1:30000`.

Drives one or more workloads (cold, shared-prefix, multi-turn, batch) with streaming chat requests from a number of
clients, each with one request at a time, and prints percentiles of TTFT, ITL, TPOT and e2e, throughput and the share of
cached prompt tokens; multi-turn is reported per turn. Writes JSON. Definitions: bench/README.md. Exit status 1 when a
request failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.openai_stream import Sample, ask
from bench.percentile import percentile
from bench.workloads import WORKLOADS, Conversation, Shape, make_workload

PERCENTILES = (50, 90, 99)
Json = dict[str, Any]


@dataclass(slots=True, frozen=True)
class Drive:
    """How a workload is sent. `think_s` is the pause of a client between two turns of a conversation."""

    url: str
    model: str
    clients: int = 4
    output_tokens: int = 64
    think_s: float = 0.0
    timeout_s: float = 600.0
    ignore_eos: bool = True


async def drive(conversations: Sequence[Conversation], how: Drive) -> tuple[list[Sample], float]:
    """Run all conversations; returns their samples and the seconds from the first byte to the last."""
    waiting = list(reversed(conversations))
    samples: list[Sample] = []
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=how.clients)
    async with httpx.AsyncClient(base_url=how.url, timeout=how.timeout_s, limits=limits) as client:

        async def one_client() -> None:
            while waiting:
                await _talk(client, waiting.pop(), how, samples)

        began_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for _ in range(min(how.clients, len(conversations))):
                group.create_task(one_client())
        return samples, time.monotonic() - began_s


async def _talk(client: httpx.AsyncClient, conversation: Conversation, how: Drive, samples: list[Sample]) -> None:
    """One conversation to its end, or to its first failure."""
    messages = [{"role": "system", "content": conversation.system}] if conversation.system else []
    for turn, content in enumerate(conversation.turns):
        if turn and how.think_s:
            await asyncio.sleep(how.think_s)
        messages.append({"role": "user", "content": content})
        sample = await ask(client, _body(messages, how), turn)
        samples.append(sample)
        if sample.error:
            return
        messages.append({"role": "assistant", "content": sample.text})


def _body(messages: Sequence[Json], how: Drive) -> Json:
    body: Json = {"model": how.model, "messages": list(messages), "max_tokens": how.output_tokens, "temperature": 0}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body | {"ignore_eos": True} if how.ignore_eos else body


def summarise(samples: Sequence[Sample], elapsed_s: float) -> Json:
    """The figures of one row: milliseconds for latencies, tokens per second for throughput."""
    good = [sample for sample in samples if not sample.error]
    latencies = {
        "ttft": [sample.ttft_s for sample in good],
        "itl": [gap for sample in good for gap in sample.itl_s],
        "tpot": [tpot for sample in good if (tpot := sample.tpot_s) is not None],
        "e2e": [sample.e2e_s for sample in good],
    }
    row: Json = {
        f"{name}_ms": {f"p{percent}": 1000 * percentile(values, percent) for percent in PERCENTILES}
        for name, values in latencies.items()
    }
    prompt, output = (sum(getattr(s, f"num_{kind}_tokens") for s in good) for kind in ("prompt", "output"))
    told = [sample.num_cached_tokens for sample in good if sample.num_cached_tokens is not None]
    return row | {
        "requests": len(samples),
        "failed": len(samples) - len(good),
        "elapsed_s": elapsed_s,
        "prompt_tokens": prompt,
        "output_tokens": output,
        "cached_tokens": sum(told) if told else None,
        "requests_per_s": len(good) / elapsed_s,
        "output_tokens_per_s": output / elapsed_s,
        "total_tokens_per_s": (prompt + output) / elapsed_s,
    }


def report(name: str, samples: Sequence[Sample], elapsed_s: float) -> Json:
    """A workload's figures: all requests together and, for conversations, turn by turn."""
    turns = sorted({sample.turn for sample in samples})
    by_turn = [summarise([s for s in samples if s.turn == turn], elapsed_s) for turn in turns] if len(turns) > 1 else []
    errors = sorted({sample.error for sample in samples if sample.error})
    return {"workload": name, "all": summarise(samples, elapsed_s), "turns": by_turn, "errors": errors}


def table_of(reports: Sequence[Json]) -> Table:
    """What is printed: one line a workload, and one a turn."""
    latencies = [f"{name} p{percent}" for name in ("TTFT", "ITL", "TPOT", "e2e") for percent in PERCENTILES]
    table = Table("workload", "requests", *latencies, "out tok/s", "cached", title="latencies in ms")
    for one in reports:
        table.add_row(*_cells(one["workload"], one["all"]), end_section=True)
        for turn, row in enumerate(one["turns"]):
            table.add_row(*_cells(f"  turn {turn + 1}", row))
    return table


def _cells(name: str, row: Json) -> list[str]:
    latencies = [row[f"{kind}_ms"][f"p{p}"] for kind in ("ttft", "itl", "tpot", "e2e") for p in PERCENTILES]
    requests = f"{row['requests']}" + (f" ({row['failed']} failed)" if row["failed"] else "")
    cached = (
        "-" if row["cached_tokens"] is None else f"{100 * row['cached_tokens'] / max(1, row['prompt_tokens']):.0f} %"
    )
    return [name, requests, *(f"{value:.1f}" for value in latencies), f"{row['output_tokens_per_s']:.1f}", cached]


def served_model(url: str) -> str:
    """The first model that the endpoint lists."""
    answer = httpx.get(f"{url}/v1/models", timeout=10).raise_for_status().json()
    return str(answer["data"][0]["id"])


def run(names: Sequence[str], shape: Shape, how: Drive) -> list[Json]:
    """Run workloads one after the other."""
    reports = []
    for name in names:
        conversations = make_workload(name, shape)
        at_once = Drive(**{**asdict(how), "clients": len(conversations)}) if name == "batch" else how
        samples, elapsed_s = asyncio.run(drive(conversations, at_once))
        reports.append(report(name, samples, elapsed_s))
    return reports


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:30000", help="base URL, without /v1")
    parser.add_argument("--model", default="", help="model name; default: the first one listed")
    parser.add_argument("--workload", default=",".join(WORKLOADS), help="comma list of " + ", ".join(WORKLOADS))
    parser.add_argument("--clients", type=int, default=4, help="clients, each with one request at a time")
    parser.add_argument("--requests", type=int, default=32, help="requests of each workload")
    parser.add_argument("--input-length", type=int, default=256, help="words of a (first) prompt")
    parser.add_argument("--turn-length", type=int, default=32, help="words of the later turns of multi-turn")
    parser.add_argument("--turns", type=int, default=6, help="turns of a conversation of multi-turn")
    parser.add_argument("--output-length", type=int, default=64, help="output tokens of each request")
    parser.add_argument("--think-time", type=float, default=0.0, help="seconds between two turns")
    parser.add_argument("--seed", type=int, default=0, help="another seed: other prompts, so a cold cache again")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds a read of a stream may take")
    parser.add_argument("--allow-eos", action="store_true", help="do not send ignore_eos (not all servers know it)")
    parser.add_argument("--out", type=Path, default=Path("bench/results/serve.json"), help="JSON report")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write; returns the exit status."""
    args = _parser().parse_args(argv)
    names = [name.strip() for name in args.workload.split(",")]
    unknown = [name for name in names if name not in WORKLOADS]
    if unknown:
        print(f"unknown workload {unknown[0]!r}; one of {', '.join(WORKLOADS)}", file=sys.stderr)
        return 2
    url = args.url.rstrip("/")
    try:
        model = args.model or served_model(url)
    except httpx.HTTPError as error:
        print(f"{url} does not answer: {error}", file=sys.stderr)
        return 2
    shape = Shape(args.requests, args.input_length, args.turns, args.turn_length, args.seed)
    how = Drive(url, model, args.clients, args.output_length, args.think_time, args.timeout, not args.allow_eos)
    reports = run(names, shape, how)
    Console(width=200).print(table_of(reports))
    for reason in (reason for one in reports for reason in one["errors"]):
        print(f"failed: {reason}", file=sys.stderr)
    document = {"url": url, "model": model, "shape": asdict(shape), "drive": asdict(how), "workloads": reports}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(document, indent=2) + "\n")
    return 1 if any(one["all"]["failed"] for one in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
