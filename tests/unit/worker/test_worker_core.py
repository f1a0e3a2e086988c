"""The core loop: who hears what, and that nothing stays behind, whatever ends a request and whenever."""

from __future__ import annotations

import asyncio

import pytest

from common.base.errors import Cancelled, Draining, Internal, InvalidRequest, Overloaded
from common.sched.request import FinishReason
from tests.support.fake_engine import reference_output
from tests.support.worker_rig import Listener, Rig, make_request, running_core


async def began(rig: Rig) -> None:
    """Wait, off the loop, until a step runs."""
    assert await asyncio.to_thread(rig.engine.began.wait, 20)


async def test_requests_run_to_their_end() -> None:
    async with running_core() as rig:
        listeners = {}
        for number in range(5):
            request = make_request(f"r{number}", range(number + 1, 20), max_tokens=10)
            listeners[number] = Listener()
            rig.core.add(request, listeners[number])
        for number, listener in listeners.items():
            await listener.wait()
            request = make_request("reference", range(number + 1, 20), max_tokens=10)
            assert listener.tokens == reference_output(request.prompt_ids, request.params)
            assert listener.updates[-1].finish_reason is FinishReason.LENGTH
        assert rig.metric("pando_worker_requests_total", outcome="length") == 5
        assert rig.metric("pando_worker_generated_tokens_total") == 50


async def test_a_duplicate_id_is_refused_and_hurts_nobody() -> None:
    async with running_core() as rig:
        rig.engine.gate.clear()
        first, second = make_request("a", range(8), max_tokens=4), make_request("a", range(8), max_tokens=4)
        listener = Listener()
        rig.core.add(first, listener)
        with pytest.raises(InvalidRequest, match="running already"):
            rig.core.add(second, Listener())
        with pytest.raises(InvalidRequest, match="running already"):
            rig.core.reserve(second, Listener())
        rig.core.drop(second)
        rig.core.finish(second, FinishReason.STOP)
        rig.core.fail(second, Internal("not this one"))
        rig.core.resume(second, 1)
        rig.core.landed(second, 1)
        assert rig.core.runs(first) and not rig.core.runs(second)
        rig.engine.gate.set()
        await listener.wait()
        assert len(listener.tokens) == 4 and not listener.errors


async def test_an_id_is_taken_until_the_step_that_uses_its_blocks_is_over() -> None:
    async with running_core() as rig:
        rig.engine.gate.clear()
        request = make_request("a", range(8), max_tokens=4)
        rig.core.add(request, Listener())
        await began(rig)
        rig.core.drop(request)
        assert rig.cache.num_held > 0, "the engine writes into these blocks"
        again = make_request("a", range(8), max_tokens=4)
        with pytest.raises(InvalidRequest):
            rig.core.add(again, Listener())
        rig.core.drop(again)
        rig.engine.gate.set()
        await rig.settle()
        assert rig.cache.num_held == 0
        listener = Listener()
        rig.core.add(again, listener)
        await listener.wait()
        assert len(listener.tokens) == 4


@pytest.mark.parametrize("when", ["waiting", "running", "landing"])
async def test_a_third_party_abort_tells_the_sink(when: str) -> None:
    async with running_core(num_blocks=8) as rig:
        rig.engine.gate.clear()
        request, listener = make_request("a", range(8), max_tokens=4), Listener()
        if when == "landing":
            assert rig.core.reserve(request, listener) is not None
        else:
            rig.core.add(request, listener)
        if when == "running":
            await began(rig)
        assert rig.core.cancel("a")
        assert not rig.core.cancel("a")
        await listener.wait()
        assert isinstance(listener.errors[0], Cancelled) and not listener.tokens
        assert rig.metric("pando_worker_requests_total", outcome="abort") == 1
        rig.engine.gate.set()


async def test_a_token_from_prefill_that_reaches_the_limit_ends_the_request() -> None:
    async with running_core(max_model_len=9) as rig:
        request, listener = make_request("a", range(8), max_tokens=50), Listener()
        assert rig.core.reserve(request, listener) is not None
        rig.core.landed(request, 2)
        rig.core.resume(request, 3)
        await listener.wait()
        assert listener.updates[-1].finish_reason is FinishReason.LENGTH
        assert rig.core.num_requests == 0


async def test_what_landed_is_found_by_others_and_the_rest_is_computed() -> None:
    async with running_core() as rig:
        prompt = list(range(1, 19))
        request, listener = make_request("a", prompt, max_tokens=6), Listener()
        reservation = rig.core.reserve(request, listener)
        assert reservation is not None and reservation.num_cached_blocks == 0
        rig.engine.write(reservation.block_ids, 0, prompt[:8])
        rig.core.landed(request, 2)
        assert rig.cache.match(make_request("b", prompt).reusable_hashes()) == 2
        expected = reference_output(prompt, request.params)
        rig.core.resume(request, expected[0])
        await listener.wait()
        assert [expected[0], *listener.tokens] == expected
        assert rig.engine.num_rows["a"] == len(prompt) - 8 + 5


async def test_reserve_without_room_takes_nothing() -> None:
    async with running_core(num_blocks=4) as rig:
        first, listener = make_request("a", range(10), max_tokens=1), Listener()
        assert rig.core.reserve(first, listener) is not None
        second = make_request("b", range(100, 110), max_tokens=1)
        assert rig.core.reserve(second, Listener()) is None
        assert not rig.core.runs(second)
        rig.core.drop(second)
        rig.core.drop(first)


async def test_a_full_queue_is_overloaded() -> None:
    async with running_core(max_waiting_tokens=20, num_blocks=8) as rig:
        rig.engine.gate.clear()
        requests = [make_request(f"r{n}", range(10), max_tokens=1) for n in range(3)]
        rig.core.add(requests[0], Listener())
        rig.core.add(requests[1], Listener())
        with pytest.raises(Overloaded) as refused:
            rig.core.add(requests[2], Listener())
        assert refused.value.retry_after_s > 0
        assert rig.metric("pando_worker_requests_total", outcome="overloaded") == 1
        for request in requests:
            rig.core.drop(request)
        rig.engine.gate.set()


async def test_whoever_waits_for_blocks_is_woken_when_a_transfer_gives_them_back() -> None:
    async with running_core(num_blocks=4) as rig:
        blocks = rig.cache.allocate(3)
        assert blocks is not None
        request, listener = make_request("a", range(8), max_tokens=2), Listener()
        rig.core.add(request, listener)
        await rig.settle()
        assert rig.core.scheduler.num_waiting == 1
        rig.core.release(blocks)
        await listener.wait()
        assert len(listener.tokens) == 2


async def test_a_step_that_raises_costs_its_requests_only() -> None:
    async with running_core() as rig:
        rig.engine.explode = RuntimeError("boom")
        victims = [(make_request(f"v{n}", range(n, 12)), Listener()) for n in range(2)]
        for request, listener in victims:
            rig.core.add(request, listener)
        for _, listener in victims:
            await listener.wait()
            assert isinstance(listener.errors[0], Internal) and "RuntimeError" in listener.errors[0].message
        assert rig.metric("pando_worker_requests_total", outcome="error") == 2
        assert rig.cache.match(make_request("b", range(12)).reusable_hashes()) == 0, "its KV is not trusted"
        rig.engine.explode = None
        request, listener = make_request("after", range(8), max_tokens=3), Listener()
        rig.core.add(request, listener)
        await listener.wait()
        assert len(listener.tokens) == 3


async def test_logits_that_are_not_finite_cost_one_request() -> None:
    async with running_core() as rig:
        rig.engine.fail = ["bad"]
        bad, good = Listener(), Listener()
        rig.core.add(make_request("bad", range(8), max_tokens=3), bad)
        rig.core.add(make_request("good", range(50, 58), max_tokens=3), good)
        await bad.wait()
        await good.wait()
        assert isinstance(bad.errors[0], Internal) and "finite" in bad.errors[0].message
        assert len(good.tokens) == 3


async def test_a_sink_that_raises_costs_its_request_only() -> None:
    async with running_core() as rig:
        bad, good = Listener(explode=ValueError("bug")), Listener()
        rig.core.add(make_request("bad", range(8), max_tokens=3), bad)
        rig.core.add(make_request("good", range(50, 58), max_tokens=3), good)
        await bad.wait()
        await good.wait()
        assert isinstance(bad.errors[0], Internal)
        assert len(good.tokens) == 3


async def test_preemption_changes_no_token() -> None:
    async with running_core(num_blocks=10) as rig:
        requests = [make_request(f"r{n}", range(n, n + 9), max_tokens=12) for n in range(4)]
        listeners = [Listener() for _ in requests]
        for request, listener in zip(requests, listeners, strict=True):
            rig.core.add(request, listener)
        for request, listener in zip(requests, listeners, strict=True):
            await listener.wait()
            assert listener.tokens == reference_output(request.prompt_ids, request.params)
        await rig.settle()
        assert rig.metric("pando_worker_preemptions_total") > 0
        assert rig.metric("pando_worker_evicted_blocks_total") > 0


async def test_drained_waits_for_the_last_request_and_fail_all_tells_the_rest() -> None:
    async with running_core() as rig:
        await rig.core.drained()
        rig.engine.gate.clear()
        listener = Listener()
        rig.core.add(make_request("a", range(8), max_tokens=3), listener)
        waiting = asyncio.create_task(rig.core.drained())
        await asyncio.sleep(0)
        assert not waiting.done()
        rig.core.fail_all(lambda: Draining("down"))
        await waiting
        assert isinstance(listener.errors[0], Draining)
        rig.engine.gate.set()


async def test_events_reach_the_feed_in_order_of_the_index() -> None:
    async with running_core() as rig:
        feed = rig.core.feed.watch()
        assert (await anext(feed)).snapshot_end
        listener = Listener()
        rig.core.add(make_request("a", range(8), max_tokens=5), listener)
        await listener.wait()
        await rig.settle()
        batch = await anext(feed)
        assert [event.kind for event in batch.events] == ["stored", "stored"]
        assert batch.events[1].parent == batch.events[0].hash
        await feed.aclose()
