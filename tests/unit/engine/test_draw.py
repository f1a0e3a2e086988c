"""Drawing under a constraint: masked, late, forced, or nothing left."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from common.base.errors import InvalidRequest
from common.engine.draw import LEAST_WAIT_S, NOTHING_TO_DRAW, Patience, draw
from common.engine.sampler import sample
from common.grammar.constraint import Accepted, Mask
from common.sched.params import SamplingParams
from common.sched.plan import SampleSpec

ROW = np.array([0.5, 3.0, 2.0, 1.0, -1.0, 0.0], np.float32)


class Fixed:
    """A constraint with one mask; `accepted` follows whatever is drawn."""

    complete = False

    def __init__(self, ids: Sequence[int] | None, accepted: Accepted = Accepted(), size: int = 6) -> None:  # noqa: B008
        self._ids, self._accepted, self._size = ids, accepted, size
        self.drawn: list[tuple[int, bool]] = []

    def prepare(self, output_ids: Sequence[int]) -> None:
        pass

    def mask(self, timeout_s: float) -> Mask | None:
        return None if self._ids is None else np.isin(np.arange(self._size), self._ids)

    def accept(self, token_id: int, jump: bool) -> Accepted:
        self.drawn.append((token_id, jump))
        return self._accepted


def spec(constraint: Fixed | None, may_jump: bool = True, **params: object) -> SampleSpec:
    return SampleSpec(SamplingParams(**params), 1, 0, 0, (), (), constraint, may_jump)  # type: ignore[arg-type]


def test_the_best_allowed_token_is_drawn_and_told_to_the_constraint() -> None:
    constraint = Fixed([0, 2, 4], Accepted((5, 5), complete=True))
    drawn = draw(ROW, spec(constraint, temperature=0.0), Patience(0.0))
    assert drawn is not None and (drawn.token_id, list(drawn.forced), drawn.complete) == (2, [5, 5], True)
    assert constraint.drawn == [(2, True)]
    draw(ROW, spec(constraint, temperature=0.0, may_jump=False), Patience(0.0))
    assert constraint.drawn[1] == (2, False)


def test_a_late_mask_draws_nothing() -> None:
    constraint = Fixed(None)
    assert draw(ROW, spec(constraint), Patience(0.0)) is None
    assert not constraint.drawn


@pytest.mark.parametrize("size", [3, 6, 64])
def test_a_mask_may_be_shorter_or_longer_than_the_vocabulary(size: int) -> None:
    drawn = draw(ROW, spec(Fixed([2, 3, 9], size=size), temperature=0.0), Patience(0.0))
    assert drawn is not None and drawn.token_id == 2


@pytest.mark.parametrize(
    "params", [{"logit_bias": {1: 100.0}}, {"top_k": 1}, {"top_p": 0.01}, {"min_p": 0.9}, {"repetition_penalty": 2.0}]
)
def test_no_parameter_gets_around_the_mask(params: dict[str, object]) -> None:
    for seed in range(20):
        drawn = sample(ROW, SampleSpec(SamplingParams(**params), seed, 0, 0, (), ()), np.isin(np.arange(6), [3, 4]))  # type: ignore[arg-type]
        assert drawn in (3, 4)


def test_a_mask_of_all_changes_nothing() -> None:
    everything = np.ones(6, np.bool_)
    for seed in range(50):
        one = SampleSpec(SamplingParams(temperature=1.3, top_p=0.9), seed, 0, 0, (), ())
        assert sample(ROW, one) == sample(ROW, one, everything)


def test_the_row_is_not_changed() -> None:
    before = ROW.copy()
    draw(ROW, spec(Fixed([4])), Patience(0.0))
    assert np.array_equal(ROW, before)


def test_when_parameters_forbid_what_the_mask_allows_the_request_is_refused() -> None:
    for constraint in (Fixed([3]), None):
        banned = tuple(range(6)) if constraint is None else (3,)
        with pytest.raises(InvalidRequest, match=NOTHING_TO_DRAW):
            draw(ROW, spec(constraint, min_tokens=1, stop_token_ids=banned), Patience(0.0))


def test_patience_is_a_share_of_the_forward_for_the_whole_step() -> None:
    now_s = 5.0
    short, long = Patience(0.0, lambda: now_s), Patience(0.1, lambda: now_s)
    assert short.left_s() == pytest.approx(LEAST_WAIT_S) and long.left_s() == pytest.approx(0.05)
    now_s += 0.04
    assert short.left_s() == 0.0 and long.left_s() == pytest.approx(0.01)
