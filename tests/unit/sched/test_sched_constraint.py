"""What a constraint brings into a step: tokens that need no drawing, an end, a delay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from common.sched.plan import SampledToken, StepPlan, StepResult
from common.sched.request import FinishReason, RequestUpdate
from tests.support.sched_rig import SchedulerRig, make_request


def step(rig: SchedulerRig, forced: Sequence[int] = (), **changes: object) -> list[RequestUpdate]:
    """One step in which every drawn token brings `forced`; `changes` go into the result."""
    plan = rig.plan()
    assert isinstance(plan, StepPlan)
    result = rig.engine.step(plan)
    complete = bool(changes.pop("complete", False))
    sampled = {
        name: SampledToken(token.token_id, forced_ids=forced, complete=complete)
        for name, token in result.sampled.items()
        if name not in changes.get("late", ()) and name not in changes.get("refused", {})  # type: ignore[operator]
    }
    result = replace(result, sampled=sampled, **changes)  # type: ignore[arg-type]
    assert isinstance(result, StepResult)
    updates = rig.scheduler.update(result, rig.now_s)
    rig.scheduler.check()
    return updates


def test_forced_tokens_are_known_at_once_and_computed_in_one_step() -> None:
    rig = SchedulerRig()
    rig.add(make_request("a", (1, 2, 3), max_tokens=20))
    (update,) = step(rig, forced=(5, 6, 7))
    request = update.request
    assert request.output_ids == [update.token_id, 5, 6, 7]
    assert update.position == 0 and list(update.forced_ids) == [5, 6, 7] and update.finish_reason is None
    plan = rig.plan()
    assert plan is not None
    (sequence,) = plan.sequences
    assert list(sequence.token_ids) == request.output_ids and sequence.start == 3
    assert sequence.sample is not None and sequence.sample.position == 4


@pytest.mark.parametrize(("max_tokens", "kept"), [(1, 0), (3, 2), (4, 3)])
def test_forced_tokens_end_at_max_tokens(max_tokens: int, kept: int) -> None:
    rig = SchedulerRig()
    rig.add(make_request("a", max_tokens=max_tokens))
    (update,) = step(rig, forced=(5, 6, 7))
    assert update.finish_reason is FinishReason.LENGTH
    assert list(update.forced_ids) == [5, 6, 7][:kept]


def test_a_forced_stop_token_ends_the_request_there() -> None:
    rig = SchedulerRig()
    rig.add(make_request("a", max_tokens=20, sampling={"stop_token_ids": (56,)}))
    (update,) = step(rig, forced=(55, 56, 57))
    assert update.finish_reason is FinishReason.STOP and list(update.forced_ids) == [55, 56]


@pytest.mark.parametrize(("forced", "max_tokens"), [((), 20), ((5, 6), 20), ((5, 6), 3)])
def test_a_complete_output_stops_even_with_its_last_token(forced: tuple[int, ...], max_tokens: int) -> None:
    rig = SchedulerRig()
    rig.add(make_request("a", max_tokens=max_tokens))
    (update,) = step(rig, forced=forced, complete=True)
    assert update.finish_reason is FinishReason.STOP and tuple(update.forced_ids) == forced


def test_cut_before_its_end_an_output_is_not_complete() -> None:
    rig = SchedulerRig()
    rig.add(make_request("a", max_tokens=2))
    (update,) = step(rig, forced=(5, 6), complete=True)
    assert update.finish_reason is FinishReason.LENGTH


def test_what_is_late_computes_its_last_token_again() -> None:
    rig = SchedulerRig()
    rig.add(make_request("a", (1, 2, 3, 4, 5), max_tokens=3), make_request("b", (1, 2), max_tokens=3))
    updates = {update.request_id: update for update in step(rig, late={"a"})}
    assert updates["a"].token_id is None and updates["a"].num_computed == 4
    assert updates["b"].token_id is not None
    plan = rig.plan()
    assert plan is not None
    again = next(sequence for sequence in plan.sequences if sequence.request_id == "a")
    assert list(again.token_ids) == [5] and again.start == 4 and again.sample is not None
    (first, _) = rig.finish(plan)
    assert first.position == 0


def test_what_is_refused_fails_as_its_own_fault() -> None:
    rig = SchedulerRig()
    rig.add(make_request("a"), make_request("b"))
    updates = {update.request_id: update for update in step(rig, refused={"a": "nothing to draw"})}
    assert updates["a"].finish_reason is FinishReason.ERROR
    assert updates["a"].request.refused and updates["a"].request.error == "nothing to draw"
    assert updates["b"].finish_reason is None and not updates["b"].request.refused
