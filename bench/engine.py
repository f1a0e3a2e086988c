"""How much an engine step costs beyond its linears: `python bench/engine.py MODEL_DIR`.

For decode at batch 1 and 8 and a prefill of 1,024 tokens it times, in turns in one process, the whole engine step and
the model's linears alone (all layers and the head, the head on the rows that are sampled) with oneDNN's prepacked
weights in the best dtype this CPU has a path for, and with this project's packed kernel. Ratios of best times are what
counts; they hold on a busy machine better than milliseconds do. Writes JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from common.base.model_config import ModelConfig, load_model_config
from common.engine.kernels.library import load_library
from common.engine.linear import Linear, OneDnnLinear, PackedLinear
from common.engine.loader import EngineConfig, load_runner
from common.engine.numerics import has_onednn_path
from common.engine.runner import ModelRunner
from common.sched.params import SamplingParams
from common.sched.plan import SampleSpec, SequenceStep, StepPlan

CONTEXT_TOKENS = 128
PREFILL_TOKENS = 1024
TARGETS = {"decode_1": 1.5, "decode_8": 1.5, "prefill_1024": 2.5}


@dataclass(slots=True)
class Case:
    """Best times of one workload, and the engine's ratio to the linears alone."""

    name: str
    engine_ms: float
    onednn_linears_ms: float
    packed_linears_ms: float
    ratio: float
    target: float


class LinearsAlone:
    """All linears of a model with random weights, run one after the other."""

    def __init__(self, config: ModelConfig, make: Callable[[Tensor], Linear]) -> None:
        hidden, inner = config.hidden_size, config.intermediate_size
        q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        shapes = [(q + 2 * kv, hidden), (hidden, q), (2 * inner, hidden), (hidden, inner)]
        self._layers = [[make(torch.randn(s)) for s in shapes] for _ in range(config.num_layers)]
        self._head = make(torch.randn(config.vocab_size, hidden))
        self._widths = [s[1] for s in shapes]

    def run(self, rows: int, sampled: int) -> None:
        """One pass over `rows` rows, the head over `sampled`."""
        inputs = [torch.ones(rows, width) for width in self._widths]
        for layer in self._layers:
            for linear, x in zip(layer, inputs, strict=True):
                linear(x)
        self._head(inputs[0][:sampled].contiguous())


def decode_plan(batch: int, block_size: int) -> StepPlan:
    """One token for each of `batch` requests with CONTEXT_TOKENS tokens behind it."""
    blocks = CONTEXT_TOKENS // block_size + 1
    return StepPlan(
        0, [_sequence(str(n), 1, CONTEXT_TOKENS, range(n * blocks, (n + 1) * blocks)) for n in range(batch)]
    )


def prefill_plan(block_size: int) -> StepPlan:
    """A cold prompt of PREFILL_TOKENS tokens in one chunk."""
    return StepPlan(0, [_sequence("0", PREFILL_TOKENS, 0, range(PREFILL_TOKENS // block_size))])


def _sequence(name: str, tokens: int, start: int, table: range) -> SequenceStep:
    spec = SampleSpec(SamplingParams(temperature=0), 0, 0, 0, (), ())
    return SequenceStep(name, [(7 * i) % 1000 for i in range(tokens)], start, table, spec)


def best_ms(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Best wall milliseconds of each call; the calls take turns, so that a busy spell hits all of them."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(repeats):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            best[name] = min(best[name], 1000 * (time.perf_counter() - began))
    return best


def measure(runner: ModelRunner, onednn: LinearsAlone, packed: LinearsAlone, repeats: int) -> list[Case]:
    """Run all workloads."""
    size = runner.layout.block_size
    cases = []
    for name, plan in [
        ("decode_1", decode_plan(1, size)),
        ("decode_8", decode_plan(8, size)),
        ("prefill_1024", prefill_plan(size)),
    ]:
        rows, sampled = plan.num_tokens, len(plan.sequences)
        calls: dict[str, Callable[[], object]] = {
            "engine": lambda plan=plan: runner.step(plan),  # type: ignore[misc]
            "onednn": lambda rows=rows, sampled=sampled: onednn.run(rows, sampled),  # type: ignore[misc]
            "packed": lambda rows=rows, sampled=sampled: packed.run(rows, sampled),  # type: ignore[misc]
        }
        best = best_ms(calls, repeats if rows < 100 else max(2, repeats // 10))
        ratio = best["engine"] / best["onednn"]
        cases.append(Case(name, best["engine"], best["onednn"], best["packed"], ratio, TARGETS[name]))
    return cases


def main() -> int:
    """Measure, print a table, write JSON; exit status 1 only if the kernels are not built."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--out", type=Path, default=Path("bench/results/engine.json"))
    args = parser.parse_args()
    library = load_library()
    if library is None:
        print("build the kernels first: python -m common.engine.build", file=sys.stderr)
        return 1
    runner = load_runner(EngineConfig(args.model, args.dtype, num_threads=args.threads))
    blocks = 2 * PREFILL_TOKENS // runner.layout.block_size
    runner.attach_pool(memoryview(bytearray(blocks * runner.layout.block_bytes)), blocks)
    config = load_model_config(args.model)
    compute = torch.bfloat16 if has_onednn_path(torch.bfloat16) else torch.float32
    cases = measure(
        runner,
        LinearsAlone(config, lambda w: OneDnnLinear(w, None, compute, tile=0)),
        LinearsAlone(config, lambda w: PackedLinear(library, w.bfloat16(), None, args.threads)),
        args.repeats,
    )
    print(f"{runner.numerics_id}, {args.threads} threads, oneDNN linears in {compute}")
    for case in cases:
        print(
            f"{case.name:13s} engine {case.engine_ms:8.1f} ms   linears alone: oneDNN {case.onednn_linears_ms:8.1f} ms,"
            f" packed {case.packed_linears_ms:8.1f} ms   ratio to oneDNN {case.ratio:.2f} (target {case.target})"
        )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    report = {"numerics_id": runner.numerics_id, "threads": args.threads, "cases": [asdict(case) for case in cases]}
    args.out.write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
