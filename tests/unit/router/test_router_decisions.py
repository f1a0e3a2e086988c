"""Explain's memory: bounded, and its words are those of the plan and of what came of it."""

from __future__ import annotations

import pytest

from services.router.decisions import MAX_PER_REQUEST, DecisionLog
from services.router.explaining import explanation_to_pb
from services.router.placement import Reuse
from tests.support.planner_rig import PlannerRig, chain, worker


def test_the_oldest_request_is_forgotten() -> None:
    rig, log = PlannerRig([worker("u1")]), DecisionLog(2)
    placement = rig.start(rig.task(chain("x", 3)))
    for request_id in ("a", "b", "a", "c"):
        log.note(request_id, 0, 0, placement)
    assert [len(log.of(request_id)) for request_id in "abc"] == [0, 1, 1]
    for number in range(100):
        log.note("b", number, 0, placement)
    assert len(log.of("b")) == MAX_PER_REQUEST and len(log) == 2
    none = DecisionLog(0)
    none.note("a", 0, 0, placement)
    assert not none.of("a")


def test_an_explanation_tells_candidates_terms_and_what_came_of_it() -> None:
    rig, log = PlannerRig([worker("d1"), worker("p1"), worker("p2")]), DecisionLog(9)
    prompt = chain("x", 62)
    rig.store("p2", prompt[:40])
    placement = rig.start(rig.task(prompt))
    log.note("r", 0, 0, placement)
    running = explanation_to_pb("r", "prefix", log.of("r"), rig.now_s + 1)
    assert running.decisions[0].outcome == "running" and not running.decisions[0].HasField("reused")
    placement.progress(1, rig.now_s + 0.25)
    placement.finished(Reuse({"l1": 640, "peer": 3}), rig.now_s + 1)
    placement.release()
    (told,) = explanation_to_pb("r", "prefix", log.of("r"), rig.now_s + 2).decisions
    assert (told.decode_worker, told.prefill_worker, told.reason, told.num_tokens) == ("d1", "p2", "remote", 1000)
    assert (told.outcome, told.age_s, told.ttft_s) == ("finished", 2.0, 0.25)
    assert (told.reused.l1, told.reused.peer) == (640, 3)
    costs = {one.worker_id: one for one in told.candidates}
    assert {name: (one.role, one.cached_tokens, one.chosen) for name, one in costs.items()} == {
        "d1": ("decode", 0, True),
        "p1": ("prefill", 0, False),
        "p2": ("prefill", 640, True),
    }
    one = costs["d1"]
    terms = one.queue_s + one.prefill_s + one.load_s + one.transfer_s + one.decode_s + one.effort_s - one.credit_s
    assert one.total_s == pytest.approx(terms)
    assert told.expected_ttft_s == pytest.approx(terms - one.decode_s - one.effort_s + one.credit_s)


def test_an_attempt_that_failed_says_so_and_one_that_was_left_was_aborted() -> None:
    rig = PlannerRig([worker("u1")])
    failed, left = rig.start(rig.task(chain("x", 3))), rig.start(rig.task(chain("y", 3)))
    failed.outcome = "decode: peer_lost"
    failed.release()
    left.release()
    assert (failed.outcome, left.outcome) == ("decode: peer_lost", "aborted")
    assert not explanation_to_pb("unknown", "prefix", (), 0.0).found
