"""A placement charges whoever computes, shrinks as tokens come, gives all back once, and tells what it saw."""

from __future__ import annotations

import pytest

from services.router.placement import Reuse
from tests.support.planner_rig import PlannerRig, chain, worker

PROMPT = chain("prompt", 62)


@pytest.mark.parametrize("names", [("d1", "p1"), ("d1",)])
def test_a_placement_from_first_to_last(names: tuple[str, ...]) -> None:
    rig = PlannerRig([worker(name) for name in names])
    load = rig.planner.load
    placement = rig.start(rig.task(PROMPT))

    def outstanding() -> tuple[int, int]:
        return load.outstanding_tokens(("d1", 1)), load.outstanding_tokens(("p1", 1))

    assert outstanding() == ((100, 1000) if len(names) == 2 else (1100, 0))
    placement.progress(1, 101.0)
    assert outstanding() == (99, 0)
    placement.progress(500, 102.0)
    assert outstanding() == (0, 0)
    placement.finished(Reuse({"l1": 16}), 102.0)
    placement.release()
    placement.release()
    placement.progress(1, 103.0)
    assert all(load.of(one.key).num_charges == 0 for one in rig.workers)
    assert load.of(("d1", 1)).last_used > 0


def test_first_token_and_steps_are_measured() -> None:
    rig = PlannerRig([worker("u1")])
    rig.run(rig.task(PROMPT), first_s=0.5, step_s=0.02)
    pace = rig.planner.speeds.pace(("u1", 1), rig.now_s + 1)
    assert pace.start_s + 1000 * pace.token_s == pytest.approx(0.5)
    assert pace.step_s == pytest.approx(0.02)


def test_kv_that_was_waited_for_is_measured() -> None:
    rig = PlannerRig([worker("d1"), worker("p1")])
    placement = rig.start(rig.task(PROMPT))
    placement.progress(1, rig.now_s + 1)
    placement.finished(Reuse({}, transfer_bytes=10_000, transfer_s=0.5), rig.now_s + 2)
    placement.finished(Reuse({}, transfer_bytes=0, transfer_s=0.5), rig.now_s + 2)
    placement.release()
    assert rig.planner.speeds.pace(("d1", 1), rig.now_s + 9).byte_s == pytest.approx(0.5 / 10_000)
