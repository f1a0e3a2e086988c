"""The cpu backend's logits are the same bits however a prompt is scheduled.

The oracle is a cold run of each prompt alone, one token at a time. Against it: chunks, mixed batches, permuted block
tables, other threads, and pools whose unused bytes are NaN. Negative controls must go red.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.base.model_config import ModelConfig
from common.engine.kernels.library import load_library
from common.engine.runner import ModelRunner
from common.sched.plan import SequenceStep
from tests.support.engine_steps import every_logits_row, make_runner, run_step, sampled_step
from tests.support.tiny_models import TINY_LLAMA, TINY_QWEN2, TINY_QWEN3, random_weights

PROMPT = [(11 * i * i + 5 * i + 3) % 211 for i in range(170)]
OTHERS = [[(13 * i + 7 * n) % 211 for i in range(20 + 37 * n)] for n in range(4)]
NAN_BYTES = 0xFF
INT8 = ("fp32", "int8")
CASES = [("fp32", "fp32"), ("bf16", "bf16"), ("fp16", "fp16"), ("fp32", "bf16"), INT8]


@pytest.fixture(scope="module", autouse=True)
def _kernels_are_built() -> None:
    assert load_library() is not None, "the C++ kernels are not built: python -m common.engine.build"


def runner_for(
    config: ModelConfig = TINY_LLAMA, case: tuple[str, str] = CASES[0], *, threads: int = 1, fill: int = 0
) -> ModelRunner:
    dtype, kv = case
    checkpoint = torch.float32 if dtype == "fp32" else torch.bfloat16
    weights = random_weights(config, checkpoint)
    return make_runner(config, weights, "cpu", dtype=dtype, kv=kv, num_threads=threads, fill=fill, num_blocks=96)


def chunked(runner: ModelRunner, tokens: Sequence[int], table: Sequence[int], cuts: Sequence[int]) -> dict[int, bytes]:
    """Digest of the logits after the last token of each chunk; chunks end at `cuts` and at the end."""
    digests = {}
    start = 0
    for end in [*cuts, len(tokens)]:
        result = run_step(runner, sampled_step("r", tokens[start:end], start, table))
        digests[end - 1] = result.sampled["r"].digest or b""
        start = end
    return digests


@pytest.mark.parametrize("config", [TINY_LLAMA, TINY_QWEN2, TINY_QWEN3], ids=lambda c: c.architecture)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_chunks_equal_token_by_token(config: ModelConfig, case: tuple[str, str]) -> None:
    cold = every_logits_row(runner_for(config, case), PROMPT, range(11))
    runner = runner_for(config, case, threads=2, fill=NAN_BYTES)
    for cuts in ([], [16, 32, 48, 160], [1], [64, 128], [63, 65, 129], [100, 101, 169]):
        for position, digest in chunked(runner, PROMPT, range(20, 31), cuts).items():
            assert digest == cold[position], f"cuts {cuts} position {position}"


@pytest.fixture(scope="module")
def cold_llama() -> list[bytes]:
    """Digest of the logits after each token of PROMPT, TINY_LLAMA in fp32, computed token by token."""
    return every_logits_row(runner_for(), PROMPT, range(11))


@settings(max_examples=25, deadline=None)
@given(
    cuts=st.sets(st.integers(1, len(PROMPT) - 1), max_size=8),
    table=st.permutations(range(30)),
    threads=st.integers(1, 2),
)
def test_any_chunks_any_blocks_any_threads(
    cold_llama: list[bytes], cuts: set[int], table: list[int], threads: int
) -> None:
    cold = cold_llama
    runner = runner_for(threads=threads, fill=NAN_BYTES)
    for position, digest in chunked(runner, PROMPT, table[:11], sorted(cuts)).items():
        assert digest == cold[position]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_mixed_batch_equals_alone(case: tuple[str, str]) -> None:
    prompts = [PROMPT, *OTHERS]
    tables = [list(range(15 * n, 15 * n + 12)) for n in range(len(prompts))]
    cold = [
        every_logits_row(runner_for(TINY_LLAMA, case), prompt, table)
        for prompt, table in zip(prompts, tables, strict=True)
    ]
    runner = runner_for(TINY_LLAMA, case, threads=2, fill=NAN_BYTES)
    done = [0] * len(prompts)
    lengths = [33, 1, 7, 50, 16]
    for step in range(40):
        sequences = []
        for n, prompt in enumerate(prompts):
            end = min(len(prompt), done[n] + lengths[(step + n) % len(lengths)])
            if end > done[n] and (step + n) % 3:
                sequences.append(sampled_step(str(n), prompt[done[n] : end], done[n], tables[n]))
                done[n] = end
        for name, token in run_step(runner, *sequences).sampled.items():
            assert token.digest == cold[int(name)][done[int(name)] - 1], f"step {step} request {name}"
    assert done == [len(prompt) for prompt in prompts]


@pytest.mark.parametrize("kv", ["fp32", "int8"])
def test_block_size_changes_no_bit(kv: str) -> None:
    weights = random_weights(TINY_LLAMA)
    digests = set()
    for block_size in (1, 8, 16, 32, 48, 64):
        runner = make_runner(TINY_LLAMA, weights, "cpu", kv=kv, block_size=block_size, num_blocks=200)
        digests.add(chunked(runner, PROMPT, range(170), [50])[len(PROMPT) - 1])
    assert len(digests) == 1


@pytest.fixture(scope="module")
def cold_int8() -> list[list[bytes]]:
    """As `cold_llama` with int8 KV, for PROMPT and each of OTHERS."""
    return [every_logits_row(runner_for(case=INT8), prompt, range(11)) for prompt in (PROMPT, *OTHERS)]


@settings(max_examples=20, deadline=None)
@given(
    cuts=st.sets(st.integers(1, len(PROMPT) - 1), max_size=6),
    beside=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 20)), max_size=6),
    block_size=st.sampled_from((1, 16, 64)),
    threads=st.integers(1, 2),
    seed=st.integers(0, 2**31),
)
def test_int8_in_any_chunks_beside_any_others_in_blocks_of_any_size(
    cold_int8: list[list[bytes]],
    *,
    cuts: set[int],
    beside: list[tuple[int, int]],
    block_size: int,
    threads: int,
    seed: int,
) -> None:
    num_blocks = 5 * -(-len(PROMPT) // block_size)
    ids = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(seed)).tolist()
    tables = [ids[n::5] for n in range(5)]
    runner = make_runner(
        TINY_LLAMA, random_weights(TINY_LLAMA), "cpu", kv="int8",
        block_size=block_size, num_blocks=num_blocks, num_threads=threads, fill=NAN_BYTES,
    )  # fmt: skip
    prompts, done = (PROMPT, *OTHERS), [0] * 5
    for step, end in enumerate([*sorted(cuts), len(PROMPT)]):
        ends = {0: end}
        if step < len(beside):
            other, length = beside[step]
            ends[1 + other] = min(len(OTHERS[other]), done[1 + other] + length)
        moved = [n for n, stop in ends.items() if stop > done[n]]
        result = run_step(
            runner, *(sampled_step(str(n), prompts[n][done[n] : ends[n]], done[n], tables[n]) for n in moved)
        )
        for n in moved:
            done[n] = ends[n]
            assert result.sampled[str(n)].digest == cold_int8[n][done[n] - 1], f"request {n} at {done[n]}"


def final_digest(runner: ModelRunner, table: Sequence[int], start: int = len(PROMPT) - 1) -> bytes | None:
    return run_step(runner, sampled_step("r", PROMPT[start:], start, table)).sampled["r"].digest


def prefilled(pool: bytearray, case: tuple[str, str] = CASES[0]) -> ModelRunner:
    """A runner over `pool` that has the KV of all of PROMPT but its last token in blocks 0 .. 10."""
    runner = runner_for(case=case)
    runner.attach_pool(memoryview(pool), 96)
    run_step(runner, SequenceStep("r", PROMPT[:-1], 0, range(11)))
    return runner


def test_negative_controls() -> None:
    pool = bytearray(96 * runner_for().layout.block_bytes)
    runner = prefilled(pool)
    right = final_digest(runner, range(11))
    assert final_digest(runner, range(11)) == right

    pool[5 * runner.layout.block_bytes + 3] ^= 0x01
    assert final_digest(runner, range(11)) != right, "a flipped KV bit went unseen"
    pool[5 * runner.layout.block_bytes + 3] ^= 0x01
    assert final_digest(runner, range(11)) == right

    assert final_digest(runner, [0, 2, 1, *range(3, 11)]) != right, "two swapped blocks went unseen"
    off_by_one = run_step(runner, sampled_step("r", PROMPT[-1:], len(PROMPT) - 2, range(11)))
    assert off_by_one.sampled["r"].digest != right, "a position off by one went unseen"


@pytest.mark.parametrize("place", ["value", "scale"])
def test_negative_controls_of_int8(place: str) -> None:
    layout = runner_for(case=INT8).layout
    pool = bytearray(96 * layout.block_bytes)
    runner = prefilled(pool, INT8)
    right = final_digest(runner, range(11))
    spoiled = 5 * layout.block_bytes + (3 if place == "value" else layout.value_bytes)
    pool[spoiled] ^= 0x10
    assert final_digest(runner, range(11)) != right, f"a flipped bit of a {place} went unseen"
    pool[spoiled] ^= 0x10
    assert final_digest(runner, range(11)) == right
