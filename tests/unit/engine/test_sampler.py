"""The sampler: filters, penalties, ties, randomness and log-probabilities, each against a plain computation."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.engine.sampler import Row, best_ids, sample, token_logprobs, uniform
from common.sched.params import SamplingParams
from common.sched.plan import SampleSpec

VOCAB = 40


def spec(
    params: SamplingParams, *, seed: int = 1, position: int = 0, prompt: tuple[int, ...] = (), choice: int = 0
) -> SampleSpec:
    return SampleSpec(params, seed, choice, position, prompt, tuple(range(position)))


def logits(seed: int = 0) -> Row:
    return (np.random.default_rng(seed).standard_normal(VOCAB) * 2).astype(np.float32)


def softmax(row: Row, temperature: float = 1.0) -> np.ndarray:
    mass = np.exp((row.astype(np.float64) - row.max()) / temperature)
    return mass / mass.sum()


def drawn(row: Row, params: SamplingParams, n: int = 4000) -> Counter[int]:
    tokens = [sample(row, spec(params, seed=seed)) for seed in range(n)]
    return Counter(token for token in tokens if token is not None)


def test_greedy_takes_the_best_and_ties_go_to_the_lowest_id() -> None:
    row = logits()
    row[[7, 3, 30]] = 9.0
    assert sample(row, spec(SamplingParams(temperature=0))) == 3


def test_frequencies_follow_the_softmax() -> None:
    row = logits()
    expected = softmax(row, 0.7)
    counts = drawn(row, SamplingParams(temperature=0.7), 6000)
    chi2 = sum((counts[i] - 6000 * expected[i]) ** 2 / (6000 * expected[i]) for i in range(VOCAB))
    assert chi2 < 80, "39 degrees of freedom: 80 is beyond the 99.99th percentile"
    wrong = softmax(row, 1.0)
    assert sum((counts[i] - 6000 * wrong[i]) ** 2 / (6000 * wrong[i]) for i in range(VOCAB)) > 200


def test_top_k_keeps_the_best_with_ties_by_lowest_id() -> None:
    row = np.zeros(VOCAB, np.float32)
    row[[5, 11]] = 1.0
    assert set(drawn(row, SamplingParams(top_k=4), 500)) == {5, 11, 0, 1}
    assert set(drawn(row, SamplingParams(top_k=1), 50)) == {5}


@pytest.mark.parametrize("top_p", [0.0, 0.3, 0.5, 0.9, 0.999])
def test_top_p_keeps_the_smallest_sufficient_set(top_p: float) -> None:
    row = logits(3)
    order = np.argsort(-softmax(row), kind="stable")
    mass = np.cumsum(softmax(row)[order])
    count = next((i + 1 for i in range(VOCAB) if mass[i] >= top_p - 1e-12), VOCAB)
    seen = set(drawn(row, SamplingParams(top_p=top_p), 3000))
    assert seen <= set(order[:count].tolist())
    assert {i for i in order[:count].tolist() if softmax(row)[i] > 0.01} <= seen


def test_min_p_drops_tokens_below_its_share_of_the_best() -> None:
    row = logits(4)
    allowed = set(np.flatnonzero(softmax(row) >= 0.2 * softmax(row).max()).tolist())
    assert set(drawn(row, SamplingParams(min_p=0.2), 1000)) <= allowed


def test_penalties_and_bias_are_the_formulas() -> None:
    row = np.full(VOCAB, -1.0, np.float32)
    row[[2, 3]] = (4.0, 3.9)
    greedy = {"temperature": 0.0}
    assert sample(row, spec(SamplingParams(**greedy, repetition_penalty=1.5), prompt=(2,))) == 3
    assert sample(row, spec(SamplingParams(**greedy, repetition_penalty=1.5), prompt=(2, 3))) == 2
    assert sample(row, SampleSpec(SamplingParams(**greedy, presence_penalty=0.2), 0, 0, 1, (), (2,))) == 3
    assert sample(row, SampleSpec(SamplingParams(**greedy, presence_penalty=0.2), 0, 0, 0, (2,), ())) == 2
    twice = SampleSpec(SamplingParams(**greedy, frequency_penalty=0.06), 0, 0, 2, (), (2, 2))
    assert sample(row, twice) == 3
    assert sample(row, spec(SamplingParams(**greedy, logit_bias={9: 100.0}))) == 9
    assert sample(row, spec(SamplingParams(**greedy, logit_bias={2: -100.0}))) == 3


def test_stop_tokens_are_masked_until_min_tokens() -> None:
    row = logits()
    row[6] = 50.0
    params = SamplingParams(temperature=0, min_tokens=2, stop_token_ids=(6,))
    assert sample(row, spec(params, position=1)) != 6
    assert sample(row, spec(params, position=2)) == 6


def test_nothing_left_to_draw_is_none() -> None:
    params = SamplingParams(min_tokens=1, stop_token_ids=tuple(range(VOCAB)))
    assert sample(logits(), spec(params)) is None


def test_ids_outside_the_vocabulary_are_ignored() -> None:
    row = logits()
    params = SamplingParams(temperature=0, min_tokens=1, stop_token_ids=(VOCAB, 10**6), logit_bias={VOCAB + 5: 99.0})
    assert sample(row, spec(params)) == int(np.argmax(row))


def test_the_row_is_not_changed() -> None:
    row = logits()
    before = row.copy()
    params = SamplingParams(top_k=3, top_p=0.5, min_p=0.1, logit_bias={1: 2.0}, repetition_penalty=2.0)
    sample(row, spec(params, prompt=(1, 2), position=3))
    token_logprobs(row, 1, 5)
    assert np.array_equal(row, before)


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 50),
    temperature=st.floats(0.01, 5),
    top_k=st.integers(0, VOCAB + 3),
    top_p=st.floats(0, 1),
    min_p=st.floats(0, 1),
)
def test_a_draw_is_pure_and_allowed(
    seed: int, *, position: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    row = logits(seed % 100)
    matrix = np.stack([logits(1), row, logits(2)])
    token = sample(row, spec(params, seed=seed, position=position))
    assert token == sample(matrix[1], spec(params, seed=seed, position=position))
    assert token is not None
    assert 0 <= token < VOCAB
    if top_k:
        assert token in best_ids(row, top_k)


def test_uniform_is_philox_and_spreads_over_all_its_counters() -> None:
    draws = [uniform(seed, choice, position) for seed in range(20) for choice in range(10) for position in range(20)]
    assert len(set(draws)) == len(draws)
    assert all(0 <= u < 1 for u in draws)
    assert abs(np.mean(draws) - 0.5) < 0.02
    assert abs(np.var(draws) - 1 / 12) < 0.005
    # Known answer of Random123's philox4x32-10 for counter 0 and key 0: 0x6627e8d5 0xe169c58d ...
    assert uniform(0, 0, 0) == (0x6627E8D5E169C58D >> 11) * 2.0**-53


def test_best_ids_orders_by_value_then_id() -> None:
    values = np.array([1, 3, 3, 0, 3, 2], np.float32)
    assert best_ids(values, 2).tolist() == [1, 2]
    assert best_ids(values, 4).tolist() == [1, 2, 4, 5]
    assert best_ids(values, 99).tolist() == [1, 2, 4, 5, 0, 3]


def test_logprobs_come_from_the_raw_row() -> None:
    row = logits(8)
    row[[10, 20]] = row.max() + 1
    found = token_logprobs(row, 20, 3)
    assert found.logprob == pytest.approx(math.log(softmax(row)[20]), abs=1e-9)
    assert found.rank == 2
    assert [i for i, _ in found.top][:2] == [10, 20]
    assert found.top[0][1] == found.top[1][1] == found.logprob
    assert token_logprobs(row, 20, 0).top == ()
