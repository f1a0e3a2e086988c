"""What structured output costs and keeps.

`python -m bench.grammar cost MODEL_DIR` measures engine steps of 8 sequences with and without the mask of a three-field
schema, in turns, in this process: the median ratio of their times is that of TPOT (target: at most 1.1).

`python -m bench.grammar corpus --url http://127.0.0.1:30000 --count 1000` generates at temperature 1 from the corpus of
`bench.grammar_corpus` on a running cluster; every finished output must keep its grammar. Exit status 1 if one does not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

import httpx

from bench.grammar_corpus import THREE_FIELDS, Case, corpus
from common.engine.loader import EngineConfig, load_runner
from common.engine.runner import ModelRunner
from common.grammar.llg import Grammar, Vocabulary
from common.grammar.matcher import Matcher
from common.grammar.spec import GrammarKind, GrammarSpec
from common.grammar.threads import DaemonThreads
from common.sched.params import SamplingParams
from common.sched.plan import SampleSpec, SequenceStep, StepPlan

BATCH, BLOCKS_EACH, PROMPT_TOKENS = 8, 16, 64
MAX_RATIO = 1.1
MAX_STEPS = 20
PROMPT = "Write an example. Answer: "


@dataclass(slots=True)
class Row:
    """One sequence of the batch: its output so far, and its constraint if it has one."""

    index: int
    constraint: Matcher | None
    output: list[int]

    def step(self) -> SequenceStep:
        """The next decode step; the KV before it is whatever the pool holds, which costs the same."""
        spec = SampleSpec(
            SamplingParams(temperature=1.0), self.index, 0, len(self.output), (), self.output, self.constraint
        )
        start = PROMPT_TOKENS + len(self.output)
        blocks = range(self.index * BLOCKS_EACH, (self.index + 1) * BLOCKS_EACH)
        return SequenceStep(str(self.index), self.output[-1:] or [1], start, blocks, spec)


def rows(grammar: Grammar | None, threads: DaemonThreads, vocabulary: Vocabulary) -> list[Row]:
    """A fresh batch, constrained or not."""
    eos = vocabulary.eos_token_ids
    made = [None if grammar is None else Matcher(grammar.fork(), threads, eos, ignore_eos=True) for _ in range(BATCH)]
    return [Row(index, constraint, []) for index, constraint in enumerate(made)]


def step(runner: ModelRunner, batch: Sequence[Row]) -> tuple[float, bool]:
    """Draw a token for every row; returns the seconds it took, and whether an output is over."""
    result = runner.step(StepPlan(0, [row.step() for row in batch]))
    assert not result.late, "a mask was late"
    for row in batch:
        row.output.append(result.sampled[str(row.index)].token_id)
    return result.elapsed_s, any(token.complete for token in result.sampled.values())


def in_turns(runner: ModelRunner, masked: Sequence[Row], plain: Sequence[Row]) -> list[tuple[float, float]]:
    """Step both batches in turns until an output is over; returns (with mask, without) in seconds per step."""
    times: list[tuple[float, float]] = []
    over = False
    while not over and len(times) < MAX_STEPS:
        masked_s, over = step(runner, masked)
        plain_s, _ = step(runner, plain)
        times.append((masked_s, plain_s))
    return times


def measure(model: Path, threads: int, rounds: int) -> float:
    """Print times and return their ratio."""
    runner = load_runner(EngineConfig(model, "auto", num_threads=threads))
    num_blocks = BATCH * BLOCKS_EACH
    runner.attach_pool(memoryview(bytearray(num_blocks * runner.layout.block_bytes)), num_blocks)
    vocabulary = Vocabulary.load(model, runner.config.vocab_size, runner.config.eos_token_ids)
    grammar = vocabulary.compile(GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(THREE_FIELDS)))
    masks = DaemonThreads(2, "mask")
    pairs: list[tuple[float, float]] = []
    for _ in range(rounds):
        pairs += in_turns(runner, rows(grammar, masks, vocabulary), rows(None, masks, vocabulary))
    ratio = statistics.median(masked / plain for masked, plain in pairs)
    for name, times in (("with mask", [m for m, _ in pairs]), ("without", [p for _, p in pairs])):
        print(f"{name:10} {statistics.median(times) * 1e3:7.2f} ms a step (median of {len(times)}, batch {BATCH})")
    print(f"ratio      {ratio:7.3f} (target: at most {MAX_RATIO})")
    return ratio


async def generate(client: httpx.AsyncClient, case: Case, seed: int, max_tokens: int) -> tuple[str, str]:
    """(verdict, text) of one output: kept, broken, cut, or an HTTP status."""
    kind = "structural_tag" if case.kind == "structural_tag" else case.kind
    sampling = {"temperature": 1.0, "seed": seed, "max_new_tokens": max_tokens, kind: case.text}
    answer = await client.post("/generate", json={"text": PROMPT, "sampling_params": sampling})
    if answer.status_code != 200:
        return f"status {answer.status_code}", answer.text
    body = answer.json()
    if body["meta_info"]["finish_reason"]["type"] == "length":
        return "cut", body["text"]
    return ("kept" if case.keeps(body["text"]) else "broken"), body["text"]


async def run_corpus(url: str, count: int, clients: int, max_tokens: int) -> Counter[str]:
    """Generate `count` outputs, cases in turn; returns how many had which verdict, and prints what was not kept."""
    verdicts: Counter[str] = Counter()
    waiting = list(enumerate(islice(cycle(corpus()), count)))

    async def one_client(client: httpx.AsyncClient) -> None:
        while waiting:
            seed, case = waiting.pop()
            verdict, text = await generate(client, case, seed, max_tokens)
            verdicts[verdict] += 1
            if verdict not in ("kept", "cut"):
                print(f"{case.name}, seed {seed}: {verdict}: {text!r}")

    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        await asyncio.gather(*(one_client(client) for _ in range(clients)))
    return verdicts


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    cost = commands.add_parser("cost")
    cost.add_argument("model", type=Path)
    cost.add_argument("--threads", type=int, default=2)
    cost.add_argument("--rounds", type=int, default=10)
    outputs = commands.add_parser("corpus")
    outputs.add_argument("--url", default="http://127.0.0.1:30000")
    outputs.add_argument("--count", type=int, default=1000)
    outputs.add_argument("--clients", type=int, default=8)
    outputs.add_argument("--max-tokens", type=int, default=200)
    args = parser.parse_args()
    if args.command == "cost":
        return int(measure(args.model, args.threads, args.rounds) > MAX_RATIO)
    began_s = time.monotonic()
    verdicts = asyncio.run(run_corpus(args.url, args.count, args.clients, args.max_tokens))
    print(", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common()), end="")
    print(f" in {time.monotonic() - began_s:.0f} s")
    return int(verdicts.keys() - {"kept", "cut"} != set())


if __name__ == "__main__":
    sys.exit(main())
