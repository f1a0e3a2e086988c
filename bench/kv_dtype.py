"""What an int8 KV cache costs and saves: `python -m bench.kv_dtype MODEL_DIR [--parts size,quality,tpot]`.

Size: bytes of a block of 16 tokens. Quality: fp32 compute over real text (this repository's documents, then its
docstrings) in windows, int8 and bf16 KV against fp32 KV: perplexity, and how often the most likely next token is the
same. TPOT: engine steps at decode behind a context of 1,024 tokens, int8 and bf16 in turns in one process, so that a
busy spell hits both. Writes JSON; exit status 1 when a bound is missed.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.base.model_config import load_model_config
from common.engine.layout import KVLayout, kv_dtype
from common.engine.loader import EngineConfig, load_runner
from common.engine.runner import ModelRunner
from common.sched.params import SamplingParams
from common.sched.plan import SampleSpec, SequenceStep, StepPlan
from common.tokenizer.tokenizer import Tokenizer

BLOCK = 16
CONTEXT = 1024
BATCHES = (1, 8)
ROOT = Path(__file__).parents[1]
PARTS = ("size", "quality", "tpot")
BOUNDS = {
    "block_bytes_ratio": (0.0, 0.54),
    "blocks_per_gb_ratio": (1.85, math.inf),
    "perplexity_ratio": (0.99, 1.01),
    "top1_agreement": (0.98, 1.0),
    **{f"tpot_ratio_batch_{batch}": (0.0, 1.05) for batch in BATCHES},
}


@dataclass(slots=True, frozen=True)
class Read:
    """What a runner made of the text: the log-probability of each token but a window's first, and its best guess."""

    logprobs: list[float]
    best: list[int]

    @property
    def perplexity(self) -> float:
        """e to the mean surprise."""
        return math.exp(-statistics.fmean(self.logprobs))


@dataclass(slots=True, frozen=True)
class StepTime:
    """Milliseconds that a step took, and those that this process computed: less shaken by what else runs."""

    wall_ms: float
    cpu_ms: float


def real_text() -> Iterator[str]:
    """The repository's documents, then the docstrings of its sources, in the order of their paths."""
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        yield path.read_text("utf-8")
    for path in sorted((ROOT / "common").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield ast.get_docstring(node) or ""


def text_tokens(model: Path, count: int) -> list[int]:
    """The first `count` tokens of `real_text`."""
    tokenizer = Tokenizer.load(model)
    tokens: list[int] = []
    for text in real_text():
        if len(tokens) >= count:
            break
        tokens += tokenizer.encode(f"{text}\n\n" if text else "", add_special=False)
    return tokens[:count]


def runner_with_pool(model: Path, dtype: str, kv: str, blocks: int, threads: int) -> tuple[ModelRunner, bytearray]:
    """A runner over `blocks` blocks, and their bytes."""
    runner = load_runner(EngineConfig(model, dtype, kv, block_size=BLOCK, num_threads=threads))
    pool = bytearray(blocks * runner.layout.block_bytes)
    runner.attach_pool(memoryview(pool), blocks)
    return runner, pool


def read_text(runner: ModelRunner, tokens: list[int], window: int) -> Read:
    """Let `runner` predict each window of `tokens` from its start."""
    read = Read([], [])
    for first in range(0, len(tokens) - 1, window):
        part = tokens[first : first + window]
        sequence = SequenceStep("r", part, 0, range(-(-window // BLOCK)), prompt_logprobs=1, targets=part[1:])
        found = runner.step(StepPlan(0, [sequence])).prompt_logprobs["r"]
        read.logprobs.extend(entry.logprob for entry in found)
        read.best.extend(entry.top[0][0] for entry in found)
    return read


def measure_size(model: Path) -> dict[str, Any]:
    """Bytes of a block and blocks of a pool of 1 GB."""
    config = load_model_config(model)
    sizes = {name: KVLayout.of(config, BLOCK, kv_dtype(name)).block_bytes for name in ("bf16", "int8")}
    return {
        "block_bytes": sizes,
        "block_bytes_ratio": sizes["int8"] / sizes["bf16"],
        "blocks_per_gb_ratio": (10**9 // sizes["int8"]) / (10**9 // sizes["bf16"]),
    }


def measure_quality(model: Path, num_tokens: int, window: int, threads: int) -> dict[str, Any]:
    """Perplexity and best guesses with int8 and bf16 KV against fp32 KV."""
    tokens = text_tokens(model, num_tokens)
    reads = {}
    for kv in ("fp32", "bf16", "int8"):
        runner, _ = runner_with_pool(model, "fp32", kv, -(-window // BLOCK), threads)
        reads[kv] = read_text(runner, tokens, window)

    def agreement(kv: str) -> float:
        return statistics.fmean(a == b for a, b in zip(reads["fp32"].best, reads[kv].best, strict=True))

    return {
        "num_tokens": len(tokens),
        "window": window,
        "perplexity": {kv: read.perplexity for kv, read in reads.items()},
        "perplexity_ratio": reads["int8"].perplexity / reads["fp32"].perplexity,
        "top1_agreement": agreement("int8"),
        "top1_agreement_bf16": agreement("bf16"),
    }


def measure_tpot(model: Path, rounds: int, threads: int) -> dict[str, Any]:
    """Milliseconds of decode steps with the same KV in every request, int8 and bf16 in turns."""
    per_request = CONTEXT // BLOCK + 1
    tokens = text_tokens(model, CONTEXT)
    runners = {}
    for kv in ("bf16", "int8"):
        runner, pool = runner_with_pool(model, "auto", kv, max(BATCHES) * per_request, threads)
        runner.step(StepPlan(0, [SequenceStep("r", tokens, 0, range(per_request))]))
        size = per_request * runner.layout.block_bytes
        for copy in range(1, max(BATCHES)):
            pool[copy * size : (copy + 1) * size] = pool[:size]
        runners[kv] = runner
    found: dict[str, Any] = {"context": CONTEXT, "rounds": rounds}
    for batch in BATCHES:
        steps = time_steps(runners, decode_plan(batch, per_request), rounds)
        found[f"ms_batch_{batch}"] = {kv: statistics.median(step.wall_ms for step in of) for kv, of in steps.items()}
        pairs = list(zip(steps["int8"], steps["bf16"], strict=True))
        found[f"tpot_ratio_batch_{batch}"] = statistics.median(a.wall_ms / b.wall_ms for a, b in pairs)
        found[f"cpu_time_ratio_batch_{batch}"] = statistics.median(a.cpu_ms / b.cpu_ms for a, b in pairs)
    return found


def decode_plan(batch: int, per_request: int) -> StepPlan:
    """One token for each of `batch` requests behind CONTEXT tokens."""
    spec = SampleSpec(SamplingParams(temperature=0), 0, 0, 0, (), ())
    tables = [range(n * per_request, (n + 1) * per_request) for n in range(batch)]
    return StepPlan(0, [SequenceStep(str(n), [5], CONTEXT, table, spec) for n, table in enumerate(tables)])


def time_steps(runners: dict[str, ModelRunner], plan: StepPlan, rounds: int) -> dict[str, list[StepTime]]:
    """What each step took; the runners take turns and who goes first alternates."""
    times: dict[str, list[StepTime]] = {kv: [] for kv in runners}
    for number in range(rounds + 2):
        order = list(runners) if number % 2 else list(reversed(runners))
        for kv in order:
            wall, cpu = time.perf_counter(), time.process_time()
            runners[kv].step(plan)
            taken = StepTime(1000 * (time.perf_counter() - wall), 1000 * (time.process_time() - cpu))
            if number >= 2:
                times[kv].append(taken)
    return times


def main() -> int:
    """Measure, print each figure beside its bound, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--parts", default=",".join(PARTS), help="comma list")
    parser.add_argument("--tokens", type=int, default=20_000, help="tokens of text")
    parser.add_argument("--window", type=int, default=1024, help="tokens that a prediction may look back on")
    parser.add_argument("--rounds", type=int, default=60, help="timed steps of each kind")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("bench/results/kv_dtype.json"))
    args = parser.parse_args()
    parts = {
        "size": lambda: measure_size(args.model),
        "quality": lambda: measure_quality(args.model, args.tokens, args.window, args.threads),
        "tpot": lambda: measure_tpot(args.model, args.rounds, args.threads),
    }
    report = {name: parts[name]() for name in args.parts.split(",")}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))
    figures = {name: value for part in report.values() for name, value in part.items()}
    missed = 0
    for name, (low, high) in BOUNDS.items():
        if name in figures:
            is_met = low <= figures[name] <= high
            missed += not is_met
            print(f"{name:22s} {figures[name]:.4f}  {'ok' if is_met else 'MISSED'}: {low} .. {high}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
