"""Right: on real weights the engine says what `transformers` says.

Forty prompts are continued greedily by 64 tokens on a worker process, once in fp32 and once in the default dtype; then
the reference, `transformers` in fp32, reads each prompt with its continuation in one forward pass and gives its own
opinion of every token. Each position is compared after equal tokens, so one disagreement does not spoil the rest.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from tests.support.naive_forward import NaiveModel
from tests.support.oracle import Ask, WorkerClient
from tests.support.prompts import varied_prompts
from tests.support.workers import Workers

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
SMOLLM2 = Path(__file__).parents[2] / "models" / "SmolLM2-135M-Instruct"
NUM_OUTPUT = 64
NUM_PROMPTS = 40
MAX_FP32_TIE = 1e-3
MAX_BF16_GAP = 0.5
MAX_BF16_DISAGREEMENT = 0.05


@dataclass(slots=True, frozen=True)
class Opinion:
    """What the reference says about one output position: its token, and by how much that one beats the second."""

    ours: int
    token: int
    gap: float

    @property
    def differs(self) -> bool:
        """Whether the reference would have said something else."""
        return self.ours != self.token


def opinions(ours: Sequence[int], logits: Tensor) -> list[Opinion]:
    """Compare output tokens with the reference's logits [len(ours), vocab] before each of them."""
    (best, second), (tokens, _) = (part.T for part in logits.topk(2, dim=-1))
    return [Opinion(*row) for row in zip(ours, tokens.tolist(), (best - second).tolist(), strict=True)]


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    found = varied_prompts(SMOLLM2)
    assert len(found) == NUM_PROMPTS
    return found


class Reference:
    """transformers' model in fp32; what it was asked once it does not compute again."""

    def __init__(self) -> None:
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(SMOLLM2, dtype=torch.float32)
        self._model.eval()
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], list[Opinion]] = {}

    @torch.inference_mode()
    def logits(self, prompt: Sequence[int], output: Sequence[int]) -> Tensor:
        """Logits [len(output), vocab] before each output token, in one pass over the whole sequence."""
        ids = torch.tensor([[*prompt, *output[:-1]]])
        logits: Tensor = self._model(ids, use_cache=False, logits_to_keep=len(output)).logits[0]
        return logits

    def opinions(self, prompt: Sequence[int], output: Sequence[int]) -> list[Opinion]:
        """What it says about each output token."""
        key = (tuple(prompt), tuple(output))
        if key not in self._known:
            self._known[key] = opinions(output, self.logits(prompt, output))
        return self._known[key]


@pytest.fixture(scope="module")
def reference() -> Generator[Reference, None, None]:
    """On one thread: in a busy machine the second costs more than it brings."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Reference()
    torch.set_num_threads(threads)


def continued(prompts: Sequence[Sequence[int]], dtype: str) -> list[list[int]]:
    """Greedy continuations by a worker process that runs all prompts together."""

    async def run_all(address: str) -> list[list[int]]:
        client = WorkerClient(address, "right")
        try:
            runs = await asyncio.gather(*(client.run(Ask(tuple(prompt), NUM_OUTPUT)) for prompt in prompts))
        finally:
            await client.close()
        return [run.token_ids for run in runs]

    threads = str(os.cpu_count() or 1)
    with Workers(model_path=str(SMOLLM2), num_threads=threads, max_total_tokens="12000", dtype=dtype) as workers:
        return asyncio.run(run_all(workers.start("decode").address))


@pytest.mark.parametrize("dtype", ["fp32", "auto"])
def test_the_reference_agrees(dtype: str, prompts: list[list[int]], reference: Reference) -> None:
    outputs = continued(prompts, dtype)
    assert [len(output) for output in outputs] == [NUM_OUTPUT] * NUM_PROMPTS
    judged = [reference.opinions(prompt, output) for prompt, output in zip(prompts, outputs, strict=True)]
    found = [opinion for opinions in judged for opinion in opinions]
    wrong = [opinion for opinion in found if opinion.differs]
    print(f"{dtype}: {len(wrong)} of {len(found)} differ, at gaps {sorted(round(o.gap, 5) for o in wrong)}")
    if dtype == "fp32":
        assert [opinion for opinion in wrong if opinion.gap >= MAX_FP32_TIE] == []
    else:
        assert len(wrong) <= MAX_BF16_DISAGREEMENT * len(found)
        assert [opinion for opinion in wrong if opinion.gap >= MAX_BF16_GAP] == []


def test_the_naive_forward_agrees_with_the_reference(prompts: list[list[int]], reference: Reference) -> None:
    naive = NaiveModel(SMOLLM2)
    for prompt in (prompts[0], prompts[9], prompts[23], prompts[39]):
        expected = reference.logits(prompt, prompt[:1])
        torch.testing.assert_close(naive.logits(prompt, last=1), expected, atol=2e-3, rtol=0)


def test_a_wrong_position_is_seen(prompts: list[list[int]], reference: Reference) -> None:
    prompt, output = prompts[9], prompts[9][-8:]
    right = reference.logits(prompt, output)
    ours = right.argmax(-1).tolist()
    assert not any(opinion.differs for opinion in opinions(ours, right))
    late = reference.logits([prompt[0], *prompt], output)
    assert any(opinion.differs and opinion.gap > MAX_FP32_TIE for opinion in opinions(ours, late))
