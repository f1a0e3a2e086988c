"""Steps of a tiny model: who gets an answer, logprobs, failures that stay with their request, pools."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from common.base.errors import InvalidRequest, Unsupported
from common.engine import loader
from common.engine.attention.cpu import CpuAttention
from common.engine.draw import NOTHING_TO_DRAW
from common.engine.loader import EngineConfig, build_runner, choose_backend
from common.engine.runner import NOT_FINITE, ModelRunner
from common.engine.sampler import token_logprobs
from common.grammar.constraint import Accepted, Mask
from common.sched.params import SamplingParams
from common.sched.plan import SampleSpec, SequenceStep, StepPlan
from tests.support.engine_steps import forward_logits, greedy_spec, make_runner, run_step, sampled_step
from tests.support.tiny_models import TINY_LLAMA, random_weights

TOKENS = [5, 9, 200, 3, 77, 15]
LONG = [(7 * i * i + i) % 211 for i in range(70)]


@pytest.fixture(params=["torch_ref", "cpu"])
def runner(request: pytest.FixtureRequest) -> ModelRunner:
    return make_runner(TINY_LLAMA, random_weights(TINY_LLAMA), request.param, fill=0xFF)


def test_a_step_answers_exactly_those_who_asked(runner: ModelRunner) -> None:
    silent = SequenceStep("silent", TOKENS, 0, [4])
    result = runner.step(StepPlan(7, [sampled_step("a", TOKENS, 0, [1]), silent, sampled_step("b", [8], 0, [2])]))
    assert result.step_id == 7
    assert set(result.sampled) == {"a", "b"}
    assert result.elapsed_s > 0
    assert not result.failed


def test_greedy_token_digest_and_logprobs_are_those_of_the_logits_row(runner: ModelRunner) -> None:
    row = forward_logits(runner, TOKENS, [3])[-1].numpy()
    params = SamplingParams(temperature=0, logprobs=3)
    spec = SampleSpec(params, 0, 0, 0, TOKENS, ())
    token = run_step(runner, SequenceStep("a", TOKENS, 0, [1], spec, digest=True)).sampled["a"]
    assert token.token_id == int(np.argmax(row))
    if runner.exact:
        assert token.digest == hashlib.sha256(row.tobytes()).digest()
        assert token.logprobs == token_logprobs(row, token.token_id, 3)
    assert token.logprobs is not None
    assert token.logprobs.rank == 1
    assert token.logprobs.top[0][0] == token.token_id


def test_prompt_logprobs_of_a_chunk(runner: ModelRunner) -> None:
    rows = forward_logits(runner, TOKENS, [3])
    first = SequenceStep("a", TOKENS[:4], 0, [1], prompt_logprobs=2, targets=TOKENS[1:5])
    last = SequenceStep("a", TOKENS[4:], 4, [1], greedy_spec(TOKENS), prompt_logprobs=2, targets=TOKENS[5:])
    found = [*run_step(runner, first).prompt_logprobs["a"], *run_step(runner, last).prompt_logprobs["a"]]
    assert [entry.token_id for entry in found] == TOKENS[1:]
    for entry, row in zip(found, rows, strict=False):
        assert entry.logprob == pytest.approx(float(row.log_softmax(-1)[entry.token_id]), abs=1e-5)
        assert len(entry.top) == 2


def test_logits_that_are_not_finite_fail_only_their_request(runner: ModelRunner) -> None:
    run_step(runner, SequenceStep("good", TOKENS, 0, [1]))
    poisoned = sampled_step("bad", [1], 6, [2])  # block 2 is full of NaN where the positions before 6 should be
    asked = SequenceStep("asked", [1, 2], 6, [5], prompt_logprobs=0, targets=[2])
    result = run_step(runner, sampled_step("good", [1], 6, [1]), poisoned, asked)
    assert result.failed == {"bad": NOT_FINITE, "asked": NOT_FINITE}
    assert set(result.sampled) == {"good"}
    assert not result.prompt_logprobs


def test_parameters_that_leave_nothing_fail_the_request(runner: ModelRunner) -> None:
    params = SamplingParams(min_tokens=1, stop_token_ids=tuple(range(TINY_LLAMA.vocab_size)))
    step = SequenceStep("a", TOKENS, 0, [1], SampleSpec(params, 0, 0, 0, TOKENS, ()))
    assert run_step(runner, step).refused == {"a": NOTHING_TO_DRAW}


class Broken:
    """A constraint with a bug."""

    complete = False

    def __init__(self, breaks: str) -> None:
        self._breaks = breaks

    def prepare(self, output_ids: Sequence[int]) -> None:
        pass

    def mask(self, timeout_s: float) -> Mask | None:
        if self._breaks == "mask":
            raise RuntimeError("no mask")
        return np.ones(TINY_LLAMA.vocab_size, np.bool_)

    def accept(self, token_id: int, jump: bool) -> Accepted:
        raise RuntimeError("no state")


@pytest.mark.parametrize("breaks", ["mask", "accept"])
def test_a_constraint_that_breaks_fails_only_its_request(runner: ModelRunner, breaks: str) -> None:
    spec = replace(greedy_spec(TOKENS), constraint=Broken(breaks))
    result = run_step(runner, SequenceStep("bad", TOKENS, 0, [1], spec), sampled_step("good", TOKENS, 0, [2]))
    assert set(result.failed) == {"bad"} and not result.refused
    assert set(result.sampled) == {"good"}


def test_an_empty_plan_is_fine(runner: ModelRunner) -> None:
    assert run_step(runner).sampled == {}


def test_warm_up_leaves_the_pool_alone_and_detached() -> None:
    runner = make_runner(TINY_LLAMA, random_weights(TINY_LLAMA), "cpu")
    pool = bytearray(4 * runner.layout.block_bytes)
    runner.attach_pool(memoryview(pool), 4)
    runner.warm_up()
    assert not any(pool)
    pool.extend(b"x")  # would raise BufferError if views were left


def test_the_pool_can_be_released() -> None:
    runner = make_runner(TINY_LLAMA, random_weights(TINY_LLAMA), "cpu")
    pool = bytearray(4 * runner.layout.block_bytes)
    runner.attach_pool(memoryview(pool), 4)
    run_step(runner, sampled_step("a", TOKENS, 0, [0]))
    runner.detach_pool()
    pool.extend(b"x")


def test_a_position_beyond_the_model_is_a_bug(runner: ModelRunner) -> None:
    with pytest.raises(AssertionError, match="position 512 of 512"):
        run_step(runner, sampled_step("a", [1], 512, range(33)))


def test_without_kernels_auto_falls_back_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "load_library", lambda: None)
    runner = build_runner(EngineConfig(Path("."), num_threads=1), TINY_LLAMA, random_weights(TINY_LLAMA))
    assert any("SLOW" in note for note in runner.notes)
    assert "torch_ref" in runner.numerics_id
    assert not runner.exact


def test_backend_choice() -> None:
    with pytest.raises(Unsupported, match="kernels: run python"):
        choose_backend("cpu", None)
    with pytest.raises(InvalidRequest, match="unknown attention backend"):
        choose_backend("magic", None)
    assert choose_backend("torch_ref", None) == (None, [])


def test_numerics_ids_differ_by_backend_and_dtype() -> None:
    weights = random_weights(TINY_LLAMA, torch.bfloat16)
    cases = [("cpu", "auto", "auto"), ("torch_ref", "auto", "auto"), ("cpu", "fp32", "auto"), ("cpu", "auto", "fp16")]
    cases.append(("cpu", "auto", "int8"))
    assert len({make_runner(TINY_LLAMA, weights, b, dtype=d, kv=kv).numerics_id for b, d, kv in cases}) == 5


def test_a_backend_that_cannot_keep_a_dtype_says_so_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuAttention, "kv_dtypes", (torch.float32, torch.bfloat16))
    with pytest.raises(Unsupported, match="backend cpu cannot keep KV as int8; --kv-cache-dtype may be fp32, bf16"):
        make_runner(TINY_LLAMA, random_weights(TINY_LLAMA), "cpu", kv="int8")


def test_int8_logits_are_close_to_the_reference_and_to_fp32() -> None:
    logits = {
        case: forward_logits(make_runner(TINY_LLAMA, random_weights(TINY_LLAMA), case[0], kv=case[1]), LONG, range(5))
        for case in (("cpu", "int8"), ("torch_ref", "int8"), ("torch_ref", "fp32"))
    }
    torch.testing.assert_close(logits["cpu", "int8"], logits["torch_ref", "int8"], atol=2e-3, rtol=0)
    error = (logits["cpu", "int8"] - logits["torch_ref", "fp32"]).abs().max()
    assert 1e-4 < error < 0.1, f"int8 logits are {error} away from those with fp32 KV"
