"""The three ways to pick: each decides by its own rule, seen on numbers where the others decide otherwise."""

from __future__ import annotations

import pytest

from pando.client.types import TokenLogprob
from pando.lang.choices import (
    ChoicesMethod,
    Scored,
    greedy_token_selection,
    token_length_normalized,
    unconditional_likelihood_normalized,
)


def scored(text: str, *logprobs: float, alone: tuple[float | None, ...] = ()) -> Scored:
    return Scored(text, tuple(TokenLogprob(index, value, b"t") for index, value in enumerate(logprobs)), alone)


CHOICES = [
    scored("short", -0.3, alone=(None,)),
    scored("long", -0.5, -0.1, -0.1, -0.1, alone=(None, -0.1, -0.1, -0.1)),
    scored("surprising", -2.0, -0.4, alone=(None, -9.0)),
]


@pytest.mark.parametrize(
    ("method", "winner"),
    [(token_length_normalized, 1), (greedy_token_selection, 0), (unconditional_likelihood_normalized, 2)],
)
def test_each_has_its_own_winner(method: ChoicesMethod, winner: int) -> None:
    assert method.pick(CHOICES).index == winner


def test_numbers_that_decided() -> None:
    meta = token_length_normalized.pick(CHOICES).meta
    assert meta["normalized_prompt_logprobs"] == pytest.approx([-0.3, -0.2, -1.2])
    assert meta["input_token_logprobs"][2] == [(-2.0, 0, "t"), (-0.4, 1, "t")]
    rows = greedy_token_selection.pick(CHOICES).meta["greedy_logprob_matrix"]
    assert rows[0] == pytest.approx([-0.3] * 4) and rows[2] == pytest.approx([-2.0, -0.4, -1.2, -1.2])
    meta = unconditional_likelihood_normalized.pick(CHOICES).meta
    assert meta["normalized_unconditional_prompt_logprobs"] == pytest.approx([-0.3, -0.125, 3.3])
    assert meta["unconditional_token_logprobs"][2] == [None, -9.0]


def test_greedy_looks_further_only_among_equals() -> None:
    same = [scored("a", -0.5, -3.0), scored("b", -0.5, -0.1), scored("c", -0.6, 0.0)]
    assert greedy_token_selection.pick(same).index == 1
    prefix = [scored("organ", -0.2), scored("organism", -0.2, -0.1)]
    assert greedy_token_selection.pick(prefix).index == 1, "the shorter goes on with its mean"
    assert greedy_token_selection.pick([scored("organ", -0.2), scored("organism", -0.2, -0.3)]).index == 0


@pytest.mark.parametrize(
    "method", [token_length_normalized, greedy_token_selection, unconditional_likelihood_normalized]
)
def test_of_equals_the_first(method: ChoicesMethod) -> None:
    equal = [scored("a", -1.0, alone=(None,)), scored("b", -1.0, alone=(None,))]
    assert method.pick(equal).index == 0
    assert method.pick([scored("worse", -2.0, alone=(None,)), *equal]).index == 1


def test_what_was_scored_must_fit() -> None:
    with pytest.raises(ValueError, match="zip"):
        unconditional_likelihood_normalized.pick([scored("a", -1.0)])
