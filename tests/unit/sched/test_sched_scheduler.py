"""The scheduler step by step: chunks, prefix hits, ends, aborts in flight, changes at run time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from common.base.errors import InvalidRequest
from common.sched.plan import SampledToken, StepResult, TokenLogprobs
from common.sched.request import FinishReason, RequestUpdate, Status
from common.sched.scheduler import Admission
from tests.support.fake_engine import next_token, reference_output, reference_prompt_logprobs
from tests.support.sched_rig import SchedulerRig, make_request


def tokens_of(updates: list[RequestUpdate], name: str) -> list[int]:
    """Tokens that updates brought for a request."""
    return [u.token_id for u in updates if u.request_id == name and u.token_id is not None]


def test_one_request_from_start_to_end() -> None:
    rig = SchedulerRig()
    request = make_request("a", range(6), max_tokens=3, arrival_s=0.5)
    rig.add(request)
    assert request.status is Status.WAITING and rig.scheduler.num_waiting_tokens == 6
    assert rig.drain() == [{"a": 6}, {"a": 1}, {"a": 1}]
    expected = reference_output(range(6), request.params)
    assert request.output_ids == tokens_of(rig.updates, "a") == expected
    assert [u.position for u in rig.updates] == [0, 1, 2]
    assert [u.num_computed for u in rig.updates] == [6, 7, 8]
    assert [u.finish_reason for u in rig.updates] == [None, None, FinishReason.LENGTH]
    assert (request.first_scheduled_s, request.first_token_s) == (1.0, 1.0)
    assert rig.scheduler.get("a") is None
    assert (rig.cache.num_held, rig.cache.num_cached) == (0, 2)


def test_chunks_mix_with_decode_rows() -> None:
    rig = SchedulerRig(max_batch_tokens=8, max_num_seqs=4, chunked_prefill_size=5)
    rig.add(make_request("a", range(3), max_tokens=9))
    rig.step()
    rig.add(make_request("b", range(20, 34), max_tokens=2))
    assert [rig.step() for _ in range(4)] == [{"a": 1, "b": 5}, {"a": 1, "b": 5}, {"a": 1, "b": 4}, {"a": 1, "b": 1}]
    chunk = next(u for u in rig.updates if u.request_id == "b")
    assert (chunk.token_id, chunk.num_computed, chunk.finish_reason) == (None, 5, None)
    rig.drain()
    assert tokens_of(rig.updates, "b") == reference_output(range(20, 34), make_request("x", max_tokens=2).params)


def test_a_conversation_reuses_prompt_and_output_of_the_turn_before() -> None:
    rig = SchedulerRig()
    first = make_request("t1", range(10), max_tokens=7)
    rig.add(first)
    rig.drain()
    history = [*first.prompt_ids, *first.output_ids]
    second = make_request("t2", [*history, 50, 51])
    rig.add(second)
    rig.drain()
    assert second.num_cached_tokens == {"l1": (len(history) - 1) // 4 * 4}


def test_a_full_prefix_hit_still_computes_the_last_block() -> None:
    rig = SchedulerRig()
    rig.add(make_request("a", range(8), max_tokens=1))
    rig.drain()
    again = make_request("b", range(8), max_tokens=1)
    rig.add(again)
    assert rig.drain() == [{"b": 4}]
    assert again.num_cached_tokens == {"l1": 4}
    assert again.output_ids == [next_token(list(range(8)))]


def test_requests_with_other_roots_share_nothing() -> None:
    rig = SchedulerRig()
    rig.add(make_request("a", range(8)))
    rig.drain()
    other = replace(make_request("b", range(8)), root=bytes(32))
    rig.add(other)
    rig.drain()
    assert other.num_cached_tokens == {}


@pytest.mark.parametrize(
    ("sampling", "reason", "num_output"),
    [
        ({}, FinishReason.LENGTH, 12),
        ({"stop_token_ids": (3,)}, FinishReason.STOP, None),
        ({"stop_token_ids": tuple(range(8)), "min_tokens": 5}, FinishReason.STOP, 6),
    ],
)
def test_why_requests_end(sampling: dict[str, Any], reason: FinishReason, num_output: int | None) -> None:
    request = make_request("a", (1, 2, 3), max_tokens=12, sampling=sampling)
    rig = SchedulerRig()
    rig.add(request)
    rig.drain()
    assert request.finish_reason is reason
    assert request.output_ids == reference_output((1, 2, 3), request.params)
    assert num_output in (None, len(request.output_ids))
    assert (request.output_ids[-1] in request.params.stop_token_ids) == (reason is FinishReason.STOP)


def test_the_model_s_length_ends_a_request() -> None:
    request = make_request("a", range(6), max_tokens=100)
    rig = SchedulerRig(max_model_len=9)
    rig.add(request)
    rig.drain()
    assert (request.finish_reason, request.num_tokens) == (FinishReason.LENGTH, 9)


def test_a_resumed_request_goes_on_as_if_nothing_had_happened() -> None:
    params = make_request("x", max_tokens=9).params
    whole = reference_output(range(6), params)
    rig = SchedulerRig()
    request = make_request("a", range(6), max_tokens=9, output_ids=whole[:4])
    rig.add(request)
    assert rig.step() == {"a": 10}
    rig.drain()
    assert request.output_ids == whole
    assert rig.updates[0].position == 4


@pytest.mark.parametrize(
    ("output", "sampling", "reason"),
    [([5] * 4, {}, FinishReason.LENGTH), ([5, 9], {"stop_token_ids": (9,)}, FinishReason.STOP)],
)
def test_a_resumed_request_that_had_all_its_output_ends_at_once(
    output: list[int], sampling: dict[str, Any], reason: FinishReason
) -> None:
    rig = SchedulerRig()
    rig.add(make_request("a", max_tokens=4, output_ids=output, sampling=sampling))
    [ended] = rig.scheduler.take_ended()
    assert (ended.request_id, ended.finish_reason, ended.token_id) == ("a", reason, None)
    assert rig.scheduler.take_ended() == [] and rig.plan() is None


def test_ids_are_unique_and_prompts_fit() -> None:
    rig = SchedulerRig(num_blocks=2)
    rig.add(make_request("a"))
    with pytest.raises(InvalidRequest) as duplicate:
        rig.scheduler.add(make_request("a"))
    with pytest.raises(InvalidRequest, match="9 tokens: a request ends at 9") as too_long:
        rig.scheduler.add(make_request("b", range(9)))
    assert (duplicate.value.reason, duplicate.value.param) == ("duplicate_request", "request_id")
    assert (too_long.value.reason, too_long.value.param) == ("prompt_too_long", "prompt")
    rig.drain()
    rig.add(make_request("a"))
    with pytest.raises(AssertionError, match="blocks of 8"):
        rig.scheduler.add(make_request("c", block_size=8))


def test_the_queue_is_bounded_in_tokens() -> None:
    rig = SchedulerRig(max_waiting_tokens=10)
    rig.add(make_request("long", range(12)))
    assert rig.scheduler.add(make_request("b")) is Admission.OVERLOADED
    assert rig.scheduler.get("b") is None
    rig.step()
    rig.add(make_request("c", range(6)), make_request("d", range(4)))
    assert rig.scheduler.add(make_request("e", (1,))) is Admission.OVERLOADED


@pytest.mark.parametrize("keep", [False, True])
def test_an_abort_in_flight_gives_blocks_back_with_the_update(keep: bool) -> None:
    rig = SchedulerRig()
    rig.add(make_request("a", range(6), keep_blocks=keep), make_request("b", range(20, 26)))
    plan = rig.plan()
    assert plan is not None
    assert rig.scheduler.abort("a")
    assert rig.cache.num_held == 4, "the engine still writes"
    with pytest.raises(InvalidRequest):
        rig.scheduler.add(make_request("a"))
    assert [u.request_id for u in rig.finish(plan)] == ["b"]
    assert rig.cache.num_held == 2 and rig.scheduler.get("a") is None
    assert rig.cache.match(make_request("a", range(6)).chain.hashes) == 1, "what was computed is kept as cache"
    rig.add(make_request("a"))


def test_finish_by_a_stop_string_ends_well() -> None:
    rig = SchedulerRig()
    request = make_request("a", range(6), keep_blocks=True)
    rig.add(request)
    rig.step()
    assert rig.scheduler.finish("a", FinishReason.STOP)
    assert request.finish_reason is FinishReason.STOP
    assert not rig.scheduler.finish("a", FinishReason.STOP)
    assert not rig.scheduler.finish("nobody", FinishReason.STOP)
    assert rig.cache.num_held == 2
    rig.scheduler.release("a")
    assert rig.cache.num_held == 0


def test_kept_blocks_stay_until_released() -> None:
    rig = SchedulerRig()
    request = make_request("a", range(6), max_tokens=1, keep_blocks=True)
    rig.add(request)
    rig.drain()
    assert request.status is Status.FINISHED and rig.scheduler.get("a") is request
    assert rig.cache.num_held == 2
    rig.scheduler.release("a")
    assert rig.cache.num_held == 0 and rig.scheduler.get("a") is None
    with pytest.raises(AssertionError, match="unknown request a"):
        rig.scheduler.release("a")


def test_release_while_the_last_step_runs_waits_for_it() -> None:
    rig = SchedulerRig()
    rig.add(make_request("a", range(6), keep_blocks=True))
    plan = rig.plan()
    assert plan is not None
    rig.scheduler.finish("a", FinishReason.STOP)
    rig.scheduler.release("a")
    assert rig.cache.num_held == 2
    assert rig.finish(plan) == []
    assert rig.cache.num_held == 0


def test_abort_of_kept_waiting_and_unknown_requests() -> None:
    rig = SchedulerRig()
    rig.add(make_request("kept", max_tokens=1, keep_blocks=True))
    rig.drain()
    rig.add(make_request("waiting"))
    assert rig.scheduler.abort("kept") and rig.scheduler.abort("waiting")
    assert not rig.scheduler.abort("kept")
    assert (rig.cache.num_held, rig.scheduler.num_waiting, rig.scheduler.num_waiting_tokens) == (0, 0, 0)


def test_a_failed_sequence_ends_with_its_reason_and_its_kv_is_not_reused() -> None:
    rig = SchedulerRig()
    rig.add(make_request("a", range(8), max_tokens=1))
    rig.drain()
    bad, good = make_request("bad", range(12), keep_blocks=True), make_request("good", range(50, 58), max_tokens=1)
    rig.add(bad, good)
    rig.step(failed=["bad"])
    update = next(u for u in rig.updates if u.request_id == "bad")
    assert (update.finish_reason, update.token_id) == (FinishReason.ERROR, None)
    assert bad.error == "logits are not finite"
    assert rig.cache.match(bad.chain.hashes) == 0
    assert rig.cache.match(good.chain.hashes) == 2
    assert rig.cache.num_held == 0


def test_prompt_logprobs_cover_the_prompt_once_whatever_the_chunks() -> None:
    rig = SchedulerRig(chunked_prefill_size=3)
    rig.add(make_request("before", range(16), max_tokens=1))
    rig.drain()
    rig.updates.clear()
    request = make_request("a", range(16), max_tokens=2, sampling={"prompt_logprobs": 2})
    rig.add(request)
    rig.drain()
    assert request.num_cached_tokens == {}
    assert rig.engine.num_rows["a"] == 17
    entries = [entry for u in rig.updates for entry in u.prompt_logprobs]
    assert entries == reference_prompt_logprobs(range(16))


@pytest.mark.parametrize("start", [1, 2, 5, 11, 15])
def test_prompt_logprobs_begin_where_they_are_wanted_though_the_rest_is_cached(start: int) -> None:
    rig = SchedulerRig(chunked_prefill_size=3)
    rig.add(make_request("before", range(16), max_tokens=1))
    rig.drain()
    rig.updates.clear()
    wanted = {"prompt_logprobs": 2, "prompt_logprobs_start": start}
    request = make_request("a", range(16), max_tokens=1, sampling=wanted)
    rig.add(request)
    rig.drain()
    entries = [entry for u in rig.updates for entry in u.prompt_logprobs]
    assert entries == reference_prompt_logprobs(range(16))[start - 1 :]
    assert sum(request.num_cached_tokens.values()) == (start - 1) // 4 * 4


def test_prompt_logprobs_go_on_after_a_preemption_where_they_were() -> None:
    rig = SchedulerRig(chunked_prefill_size=6, policy="priority", max_num_seqs=1)
    request = make_request("a", range(16), max_tokens=1, sampling={"prompt_logprobs": 0})
    rig.add(request)
    rig.step()
    rig.add(make_request("urgent", priority=1, max_tokens=1))
    rig.drain()
    assert request.num_preemptions == 1
    assert rig.engine.num_rows["a"] == 18, "six tokens, then on from the last full block"
    entries = [entry for u in rig.updates for entry in u.prompt_logprobs]
    assert entries == reference_prompt_logprobs(range(16))


def test_logprobs_and_digest_are_passed_on() -> None:
    rig = SchedulerRig()
    rig.add(make_request("a", digest=True))
    plan = rig.plan()
    assert plan is not None and plan.sequences[0].digest
    logprobs = TokenLogprobs(5, -0.5, 1)
    [update] = rig.scheduler.update(StepResult(plan.step_id, {"a": SampledToken(5, logprobs, b"d" * 32)}), 1.0)
    assert (update.token_id, update.logprobs, update.digest) == (5, logprobs, b"d" * 32)


def test_cached_tokens_are_those_of_the_first_admission() -> None:
    rig = SchedulerRig(max_num_seqs=1, policy="priority")
    request = make_request("a", range(12), max_tokens=6)
    rig.add(request)
    rig.step()
    rig.add(make_request("urgent", priority=1, arrival_s=1.0))
    rig.drain()
    assert request.num_preemptions == 1
    assert request.num_cached_tokens == {}, "what it finds again it computed itself"
    assert rig.engine.num_rows["a"] < 2 * 12


def test_policy_and_limits_change_between_steps() -> None:
    rig = SchedulerRig(chunked_prefill_size=2, max_batch_tokens=64)
    rig.add(make_request("a", range(12)))
    assert rig.step() == {"a": 2}
    rig.scheduler.configure(replace(rig.scheduler.config, chunked_prefill_size=8, policy="lpm"))
    assert rig.step() == {"a": 8}
    with pytest.raises(InvalidRequest, match="block_size"):
        rig.scheduler.configure(replace(rig.scheduler.config, block_size=8))
    assert rig.scheduler.config.block_size == 4


def test_a_change_while_a_plan_is_in_flight_counts_from_the_next_one() -> None:
    rig = SchedulerRig()
    rig.add(make_request("a", range(12), max_tokens=50))
    plan = rig.plan()
    assert plan is not None
    rig.scheduler.configure(replace(rig.scheduler.config, max_model_len=13))
    [update] = rig.finish(plan)
    assert update.finish_reason is FinishReason.LENGTH


def test_waiting_requests_that_became_too_long_are_reported() -> None:
    rig = SchedulerRig(max_num_seqs=1)
    rig.add(make_request("a"), make_request("long", range(12)), make_request("short", range(4)))
    rig.step()
    rig.scheduler.configure(replace(rig.scheduler.config, max_model_len=8))
    [ended] = rig.scheduler.take_ended()
    assert (ended.request_id, ended.finish_reason) == ("long", FinishReason.ERROR)
    assert "12 tokens leave no room" in ended.request.error
    rig.drain()
    assert rig.scheduler.num_waiting == 0


def test_one_plan_is_in_flight_at_most() -> None:
    rig = SchedulerRig()
    rig.add(make_request("a"))
    plan = rig.plan()
    assert plan is not None and rig.scheduler.in_flight
    with pytest.raises(AssertionError, match="has not been updated"):
        rig.scheduler.schedule(2.0)
    with pytest.raises(AssertionError, match="result of step 9"):
        rig.scheduler.update(StepResult(9, {}), 2.0)
    rig.finish(plan)
    assert not rig.scheduler.in_flight


def test_nothing_to_do_is_none() -> None:
    assert SchedulerRig().plan() is None


def test_the_fake_engine_notices_a_wrong_table() -> None:
    """Negative control: two swapped blocks, and the output is another one."""
    outputs = []
    for swap in (False, True):
        rig = SchedulerRig()
        request = make_request("a", range(12))
        rig.add(request)
        rig.step()
        if swap:
            table = request.block_table
            table[0], table[1] = table[1], table[0]
        plan = rig.plan()
        assert plan is not None
        outputs.append(rig.engine.step(plan).sampled["a"].token_id)
    assert outputs[0] == reference_output(range(12), request.params)[1]
    assert outputs[0] != outputs[1]


def test_the_fake_engine_notices_a_write_to_a_shared_block() -> None:
    """Negative control: a step that computes into a block that somebody else holds too is refused."""
    rig = SchedulerRig()
    request = make_request("a", range(6))
    rig.add(request)
    plan = rig.plan()
    assert plan is not None
    rig.cache.hold(request.block_table)
    with pytest.raises(AssertionError, match="shared block"):
        rig.engine.step(plan)
