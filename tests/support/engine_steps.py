"""Build step plans and run whole prompts through a runner, in the ways a scheduler might."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from common.base.model_config import ModelConfig
from common.engine.loader import EngineConfig, build_runner
from common.engine.runner import ModelRunner
from common.sched.params import SamplingParams
from common.sched.plan import SampleSpec, SequenceStep, StepPlan, StepResult

GREEDY = SamplingParams(temperature=0)


def make_runner(
    config: ModelConfig,
    weights: dict[str, torch.Tensor],
    backend: str,
    *,
    dtype: str = "fp32",
    kv: str = "auto",
    block_size: int = 16,
    num_blocks: int = 64,
    num_threads: int = 1,
    fill: int = 0,
) -> ModelRunner:
    """A runner over its own pool whose bytes are all `fill` (0xFF makes every fp32, fp16 and bf16 value a NaN)."""
    engine = EngineConfig(Path("."), dtype, kv, backend, block_size, num_threads)
    runner = build_runner(engine, config, weights)
    runner.attach_pool(memoryview(bytearray([fill]) * (num_blocks * runner.layout.block_bytes)), num_blocks)
    return runner


def greedy_spec(prompt: Sequence[int], output: Sequence[int] = ()) -> SampleSpec:
    """Greedy sampling of the token after `prompt` and `output`."""
    return SampleSpec(GREEDY, 0, 0, len(output), tuple(prompt), tuple(output))


def sampled_step(
    name: str, tokens: Sequence[int], start: int, table: Sequence[int], *, digest: bool = True
) -> SequenceStep:
    """A step that computes `tokens` from `start` on and draws greedily, with the digest of the logits."""
    return SequenceStep(name, tokens, start, table, greedy_spec(tokens), digest=digest)


def run_step(runner: ModelRunner, *sequences: SequenceStep) -> StepResult:
    """Run one plan."""
    return runner.step(StepPlan(0, sequences))


def every_logits_row(runner: ModelRunner, tokens: Sequence[int], table: Sequence[int]) -> list[bytes]:
    """Digest of the logits after each position, computed token by token from a cold start."""
    digests = []
    for position, token in enumerate(tokens):
        result = run_step(runner, sampled_step("r", [token], position, table))
        digests.append(result.sampled["r"].digest or b"")
    return digests


@torch.inference_mode()
def forward_logits(runner: ModelRunner, tokens: Sequence[int], table: Sequence[int]) -> torch.Tensor:
    """fp32 logits [len(tokens), vocab] of a cold prompt in one step, read below the public interface."""
    sequence = SequenceStep("r", tokens, 0, table)
    return runner._model.logits(runner._forward([sequence]))
