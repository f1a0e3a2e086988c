"""A real router over fake workers that fail: retries, migration, membership; no token twice, none lost."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import grpc
import pytest

from common.base.clock import monotonic
from common.base.config import TimeoutsConfig
from common.base.errors import Draining, HandoffAborted, Internal, Leg, Overloaded, PandoError, PeerLost, StepAborted
from common.kv.hashing import block_hashes, prefix_root
from common.rpc.errors import from_rpc_error
from pando.v1 import inference_pb2, inference_pb2_grpc
from services.router import __main__ as router_main
from tests.support.fake_worker import BLOCK_SIZE, FakeWorker, Fault, identity
from tests.support.router_bench import (
    LIMIT_S,
    Answer,
    Bench,
    bench,
    eventually,
    second_router,
    text_request,
    write_model,
)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


def num_calls(made: Bench) -> list[int]:
    return [len(worker.calls) for worker in made.workers]


async def assert_undisturbed(made: Bench, **fields: object) -> Answer:
    """A greedy request gives what it gives when nothing fails."""
    request = text_request(**fields)  # type: ignore[arg-type]
    answer = await made.ask(request)
    assert (answer.tokens[0], answer.text[0]) == made.expected(request)
    assert answer.finish == {0: 2}
    return answer


async def test_a_failing_decode_is_left_for_another(model_dir: Path) -> None:
    async with bench(model_dir, ["decode", "decode", "prefill"]) as made:
        for worker in made.workers:
            worker.faults.append(Fault(error=PeerLost("bang", leg=Leg.DECODE)))
        made.workers[1].faults.clear()
        await assert_undisturbed(made)
        assert num_calls(made) == [1, 1, 0]
        assert made.workers[1].calls[0].request.attempt == 1
        assert made.metric("retries_total", leg="decode") == 1


@pytest.mark.parametrize("leg", [Leg.PREFILL, Leg.TRANSFER])
async def test_a_failing_prefill_is_replaced_and_decode_kept(model_dir: Path, leg: Leg) -> None:
    async with bench(model_dir, ["decode", "decode", "prefill", "prefill"]) as made:
        made.workers[0].faults.append(Fault(error=HandoffAborted("bang", leg=leg)))
        await assert_undisturbed(made)
        assert num_calls(made) == [2, 0, 0, 0]
        first, second = made.workers[0].calls
        assert {first.prefill.worker_id, second.prefill.worker_id} == {"prefill-2", "prefill-3"}
        assert made.metric("retries_total", leg=leg.value) == 1


async def test_a_lost_transfer_makes_nobody_suspect(model_dir: Path) -> None:
    async with bench(model_dir, poll_s=60.0) as made:
        made.workers[0].faults.append(Fault(error=PeerLost("read failed", leg=Leg.TRANSFER)))
        await assert_undisturbed(made)
        assert {worker.state for worker in (await made.status()).values()} == {"ready"}


async def test_a_failing_prefill_is_asked_whether_it_lives(model_dir: Path) -> None:
    async with bench(model_dir, poll_s=60.0) as made:
        made.workers[0].faults.append(Fault(error=PeerLost("gone", leg=Leg.PREFILL)))
        made.workers[1].pings_hang = True
        await assert_undisturbed(made)
        states = {name: worker.state for name, worker in (await made.status()).items()}
        assert states == {"decode-0": "ready", "prefill-1": "suspect"}
        await assert_undisturbed(made)
        assert not made.workers[0].calls[-1].HasField("prefill"), "a suspect prefill worker gets nothing"


async def test_without_another_prefill_decode_computes_the_prompt(model_dir: Path) -> None:
    async with bench(model_dir) as made:
        made.workers[0].faults.append(Fault(error=PeerLost("prefill is gone", leg=Leg.PREFILL)))
        await assert_undisturbed(made)
        assert [call.HasField("prefill") for call in made.workers[0].calls] == [True, False]
        status = await made.status()
        assert status["decode-0"].state == "ready", "a failing prefill costs the decode worker nothing"


async def test_overload_of_one_is_served_by_another_and_of_all_is_told(model_dir: Path) -> None:
    async with bench(model_dir, ["decode", "decode", "prefill"]) as made:
        made.workers[0].faults.append(Fault(error=Overloaded("full", retry_after_s=3)))
        await assert_undisturbed(made)
        for worker, retry_after_s in zip(made.workers[:2], (3, 2), strict=True):
            worker.faults.append(Fault(error=Overloaded("full", retry_after_s=retry_after_s)))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await made.ask(text_request())
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert made.metric("requests_total", outcome="overloaded") == 1


@pytest.mark.parametrize("error", [Internal("bug"), PeerLost("bang", leg=Leg.DECODE)])
async def test_attempts_end(model_dir: Path, error: PandoError) -> None:
    async with bench(model_dir, ["decode"] * 3 + ["prefill"], max_attempts=2) as made:
        for worker in made.workers:
            worker.faults.append(Fault(error=error))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await made.ask(text_request())
        assert caught.value.code().name == error.grpc_code
        assert sum(num_calls(made)) == (1 if isinstance(error, Internal) else 2)


@pytest.mark.parametrize("after", [1, 2, 7, 23])
@pytest.mark.parametrize("how", ["error", "cut"])
@pytest.mark.parametrize("repeat", [0, 3])
async def test_a_stream_moves_without_a_gap_or_a_repetition(model_dir: Path, after: int, how: str, repeat: int) -> None:
    async with bench(model_dir, ["decode", "decode", "prefill"]) as made:
        fault = Fault(after, error=PeerLost("bang", leg=Leg.DECODE)) if how == "error" else Fault(after, cut=True)
        made.workers[0].faults.append(fault)
        made.workers[1].faults.append(Fault(after=100, repeat=repeat))
        answer = await assert_undisturbed(made, sampling__logprobs=0)
        second = made.workers[1].calls[0]
        assert second.text_offset == sum(len(frame.text) for frame in answer.frames if frame.attempt == 0)
        assert (second.request.attempt, len(second.request.output_token_ids)) == (1, after)
        assert made.metric("migrations_total", leg="decode") == 1


async def test_a_sampled_stream_with_stop_strings_moves_alike(model_dir: Path) -> None:
    async with bench(model_dir, ["decode", "decode", "prefill"]) as made:
        plain = text_request(max_tokens=64, sampling__temperature=1.0, sampling__seed=11)
        text = made.expected(plain)[1]
        stop = text[40:44]
        assert text.find(stop) == 40, "pick another seed"
        request = text_request(max_tokens=64, sampling__temperature=1.0, sampling__seed=11, sampling__stop=[stop])
        tokens, cut = made.expected(request)
        for after in range(1, len(tokens)):
            made.workers[0].faults.append(Fault(after, error=PeerLost("bang", leg=Leg.DECODE)))
            made.workers[1].faults.clear()
            answer = await made.ask(request)
            assert (answer.tokens[0], answer.text[0]) == (tokens, cut)
            await made.until(lambda known: known["decode-0"].state == "ready")
            made.workers[0].faults.clear()


async def test_a_choice_moves_while_its_siblings_stay(model_dir: Path) -> None:
    async with bench(model_dir, ["decode", "decode", "prefill"]) as made:
        made.workers[0].faults.extend([Fault(100), Fault(5, error=PeerLost("bang", leg=Leg.DECODE))])
        made.workers[1].faults.extend([Fault(100), Fault(5, error=PeerLost("bang", leg=Leg.DECODE))])
        request = text_request(n=4, sampling__temperature=1.0, sampling__seed=5)
        answer = await made.ask(request)
        for choice in range(4):
            assert (answer.tokens[choice], answer.text[choice]) == made.expected(request, choice)
        assert made.metric("migrations_total", leg="decode") >= 1


async def test_tokens_that_end_the_request_need_no_other_worker(model_dir: Path) -> None:
    async with bench(model_dir) as made:
        made.workers[0].faults.append(Fault(100, mute_finish=True, error=PeerLost("bang", leg=Leg.DECODE)))
        await assert_undisturbed(made)
        assert num_calls(made) == [1, 0]


async def test_a_worker_that_dies_moves_its_streams_and_a_restart_takes_new_ones(model_dir: Path) -> None:
    async with bench(model_dir, ["decode", "decode", "prefill"], step_s=0.01) as made:
        worker = made.workers[0]
        fault = Fault(after=5, hang=True)
        worker.faults.append(fault)
        running = asyncio.create_task(assert_undisturbed(made))
        await fault.reached.wait()
        await worker.kill()
        await running
        del made.registry.records["decode-0"]
        await made.until(lambda known: set(known) == {"decode-1", "prefill-2"})
        port = int(worker.record.address.rpartition(":")[2])
        again = await FakeWorker("decode-0", ["decode"], made.model.tokenizer, incarnation=99).start(port)
        made.workers.append(again)
        made.registry.register(again)
        await made.until(lambda known: "decode-0" in known and known["decode-0"].incarnation == 99)
        await eventually_used(made, again)


async def eventually_used(made: Bench, worker: FakeWorker) -> None:
    for n in itertools.count():
        await assert_undisturbed(made, text=f"another prompt {n} " * 4)
        if worker.calls:
            return
        assert n < 4, "the restarted worker gets nothing"


async def test_a_stream_waits_for_the_only_decode_worker_to_come_back(model_dir: Path) -> None:
    async with bench(model_dir, migration_wait_s=60.0) as made:
        fault = Fault(after=5, hang=True)
        made.workers[0].faults.append(fault)
        running = asyncio.create_task(assert_undisturbed(made))
        await fault.reached.wait()
        await made.workers[0].kill()
        await made.until(lambda known: known["decode-0"].state == "suspect")
        again = await FakeWorker("decode-0", ["decode"], made.model.tokenizer, incarnation=99).start()
        made.workers.append(again)
        made.registry.register(again)
        await running
        assert again.calls[0].request.attempt == 1


async def test_a_stream_that_nobody_takes_ends_with_an_error(model_dir: Path) -> None:
    async with bench(model_dir, migration_wait_s=0.2) as made:
        fault = Fault(after=5, hang=True)
        made.workers[0].faults.append(fault)
        running = asyncio.create_task(made.ask(text_request()))
        await fault.reached.wait()
        await made.workers[0].kill()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await running
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert made.metric("requests_total", outcome="unavailable") == 1


async def test_a_stream_waits_for_workers_that_have_no_room(model_dir: Path) -> None:
    full = [Fault(error=Overloaded("full", retry_after_s=3)) for _ in range(5)]
    async with bench(model_dir, migration_wait_s=20.0) as made:
        made.workers[0].faults.extend([Fault(5, error=PeerLost("bang", leg=Leg.DECODE)), *full])
        await assert_undisturbed(made)
        assert num_calls(made) == [7, 0], "more refusals than attempts that may fail"
        assert made.metric("migrations_total", leg="decode") == 2, "one for the loss, one for the wait"


async def test_choices_wait_for_room_when_the_first_has_begun(model_dir: Path) -> None:
    full = [Fault(error=Overloaded("full", retry_after_s=3)) for _ in range(5)]
    async with bench(model_dir, migration_wait_s=20.0) as made:
        made.workers[0].faults.extend([Fault(100), *full])
        request = text_request(n=2, sampling__temperature=1.0, sampling__seed=5)
        answer = await made.ask(request)
        assert [(answer.tokens[n], answer.text[n]) for n in range(2)] == [made.expected(request, n) for n in range(2)]


async def test_a_stream_for_which_no_worker_gets_room_in_time_ends_as_overloaded(model_dir: Path) -> None:
    full = [Fault(error=Overloaded("full", retry_after_s=3)) for _ in range(50)]
    async with bench(model_dir, migration_wait_s=0.2) as made:
        made.workers[0].faults.extend([Fault(5, error=PeerLost("bang", leg=Leg.DECODE)), *full])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await made.ask(text_request())
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_blip_on_the_only_worker_is_survived(model_dir: Path) -> None:
    async with bench(model_dir) as made:
        made.workers[0].faults.append(Fault(5, error=PeerLost("connection reset", leg=Leg.DECODE)))
        await assert_undisturbed(made)
        assert num_calls(made) == [2, 0]


async def test_an_abort_ends_a_stream_that_waits_for_a_worker(model_dir: Path) -> None:
    async with bench(model_dir, migration_wait_s=120.0) as made:
        fault = Fault(after=5, hang=True)
        made.workers[0].faults.append(fault)
        running = asyncio.create_task(made.ask(text_request(request_id="waits")))
        await fault.reached.wait()
        await made.workers[0].kill()
        await made.until(lambda known: known["decode-0"].state == "suspect")
        await made.stub.Abort(inference_pb2.AbortRequest(request_id="waits"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async with asyncio.timeout(LIMIT_S):
                await running
        assert caught.value.code() is grpc.StatusCode.CANCELLED


async def test_a_lost_registry_ejects_nobody(model_dir: Path) -> None:
    async with bench(model_dir) as made:
        made.registry.lost = True
        await asyncio.sleep(0.3)  # several polls: time itself is what is tested
        await assert_undisturbed(made)
        assert len(await made.status()) == 2


async def test_an_expired_entry_of_a_worker_that_answers_ejects_nobody(model_dir: Path) -> None:
    async with bench(model_dir) as made:
        made.registry.records.clear()
        await asyncio.sleep(0.3)  # several polls: time itself is what is tested
        assert len(await made.status()) == 2


async def test_a_frozen_worker_is_suspect_and_ejected_when_its_entry_expires(model_dir: Path) -> None:
    timeouts = TimeoutsConfig(ping_s=1.0, drain_s=2.0)
    async with bench(model_dir, ["decode", "decode", "prefill"], timeouts=timeouts) as made:
        made.workers[0].pings_hang = True
        await made.until(lambda known: known["decode-0"].state == "suspect")
        await assert_undisturbed(made)
        assert not made.workers[0].calls
        del made.registry.records["decode-0"]
        await made.until(lambda known: "decode-0" not in known)


async def test_a_stalled_engine_is_suspect_until_it_moves(model_dir: Path) -> None:
    async with bench(model_dir) as made:
        made.workers[0].stats.engine_step_age_s = 100
        await made.until(lambda known: known["decode-0"].state == "suspect")
        made.workers[0].stats.engine_step_age_s = 0
        await made.until(lambda known: known["decode-0"].state == "ready")


async def test_a_draining_worker_gets_nothing_new(model_dir: Path) -> None:
    async with bench(model_dir, ["decode", "decode", "prefill"]) as made:
        made.workers[0].drain()
        await made.until(lambda known: known["decode-0"].state == "draining")
        for _ in range(3):
            await assert_undisturbed(made)
        assert num_calls(made) == [0, 3, 0]


async def test_a_stranger_is_refused(model_dir: Path) -> None:
    async with bench(model_dir) as made:
        stranger = FakeWorker("stranger", ["decode"], made.model.tokenizer, kv=identity("two"))
        made.workers.append(await stranger.start())
        made.registry.register(stranger)
        twin = await FakeWorker("twin", ["decode"], made.model.tokenizer).start()
        made.workers.append(twin)
        made.registry.register(twin)
        await made.until(lambda known: "twin" in known)
        assert "stranger" not in await made.status()


async def test_requests_go_to_the_worker_that_holds_their_prefix(model_dir: Path) -> None:
    async with bench(model_dir, ["decode", "decode", "prefill"]) as made:
        text = "some words that fill more than a block " * 3
        hashes = block_hashes(prefix_root(BLOCK_SIZE, ""), made.model.tokenizer.encode(text, True), BLOCK_SIZE)
        made.workers[1].store(hashes)
        await made.until(lambda known: known["decode-1"].blocks_in_view == len(hashes))
        for _ in range(3):
            await made.ask(text_request(text, max_tokens=2))
        assert num_calls(made) == [0, 3, 0]
        assert not made.workers[1].calls[0].HasField("prefill")


async def test_lost_events_are_repaired_by_a_new_snapshot(model_dir: Path) -> None:
    async with bench(model_dir) as made:
        worker = made.workers[0]
        worker.store([b"a" * 32])
        await made.until(lambda known: known["decode-0"].blocks_in_view == 1)
        assert worker.num_watches == 1
        worker.blocks.append(b"b" * 32)
        worker.store([b"c" * 32], skip_seq=1)
        await made.until(lambda known: known["decode-0"].blocks_in_view == 3)
        assert worker.num_watches == 2


async def test_a_digest_that_differs_is_repaired_by_a_new_snapshot(model_dir: Path) -> None:
    async with bench(model_dir) as made:
        worker = made.workers[0]
        worker.store([b"a" * 32, b"b" * 32])
        worker.check(num_entries=2)
        await made.until(lambda known: known["decode-0"].blocks_in_view == 2)
        worker.blocks.append(b"c" * 32)
        worker.check(num_entries=3)
        await made.until(lambda known: known["decode-0"].blocks_in_view == 3)
        assert worker.num_watches == 2
        await eventually(lambda: made.metric("view_workers", trust="exact") == 2, "all views are exact again")


async def test_requests_wait_for_the_view_but_not_for_ever(model_dir: Path) -> None:
    """A router that was restarted alone places its first request by what the workers hold."""
    async with bench(model_dir, ["decode", "decode", "prefill"]) as made:
        text = "hello there " * 30
        hashes = block_hashes(prefix_root(BLOCK_SIZE, ""), made.model.tokenizer.encode(text, True), BLOCK_SIZE)
        made.workers[1].store(hashes)
        request = text_request(text, max_tokens=2)
        async with second_router(made, model_dir, view_ready_s=60.0) as stub:
            assert [frame async for frame in stub.Generate(request, timeout=LIMIT_S)]
        assert num_calls(made) == [0, 1, 0]
        made.workers[2].watch_hangs = True
        async with second_router(made, model_dir, view_ready_s=0.3) as stub:
            await held_blocks(stub, "decode-1", len(hashes))
            assert [frame async for frame in stub.Generate(request, timeout=LIMIT_S)]
        assert num_calls(made) == [0, 2, 0]


async def held_blocks(stub: inference_pb2_grpc.InferenceStub, name: str, count: int) -> None:
    """Wait until a router knows of so many blocks of a worker."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            listed = await stub.ListWorkers(inference_pb2.ListWorkersRequest())
            if {worker.worker_id: worker.blocks_in_view for worker in listed.workers}.get(name) == count:
                return
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("knows", [True, False])
async def test_the_first_requests_of_a_restarted_router_go_to_who_holds_them(model_dir: Path, knows: bool) -> None:
    async with bench(model_dir, ["decode", "decode", "prefill"]) as made:
        texts = [f"{letter} hello there " * 30 for letter in "abcdefghijklmnop"]
        encoded = [made.model.tokenizer.encode(text, True) for text in texts]
        holders = {tuple(tokens): made.workers[number % 3 == 0] for number, tokens in enumerate(encoded)}
        for tokens in encoded if knows else ():
            holders[tuple(tokens)].store(block_hashes(prefix_root(BLOCK_SIZE, ""), tokens, BLOCK_SIZE))
        async with second_router(made, model_dir, view_ready_s=60.0, max_sources=0) as stub:
            for text in texts:
                assert [frame async for frame in stub.Generate(text_request(text, max_tokens=2), timeout=LIMIT_S)]
        placed = [(worker, tuple(call.request.prompt_token_ids)) for worker in made.workers for call in worker.calls]
        assert len(placed) == len(texts)
        assert (sum(holders[tokens] is worker for worker, tokens in placed) >= 0.95 * len(texts)) is knows


async def test_a_new_life_at_the_same_address_loses_the_old_credit(model_dir: Path) -> None:
    async with bench(model_dir) as made:
        worker = made.workers[0]
        worker.store([b"a" * 32])
        await made.until(lambda known: known["decode-0"].blocks_in_view == 1)
        await worker.kill()
        port = int(worker.record.address.rpartition(":")[2])
        again = await FakeWorker("other-name", ["decode"], made.model.tokenizer, incarnation=50).start(port)
        made.workers.append(again)
        made.registry.register(again)  # the old entry has not expired yet
        await made.until(lambda known: set(known) == {"other-name", "prefill-1"})
        assert (await made.status())["other-name"].blocks_in_view == 0
        await eventually(lambda: again.num_watches == 1, "the new life is followed")


async def test_a_killed_workers_credit_goes_with_its_stream_not_with_its_entry(model_dir: Path) -> None:
    async with bench(model_dir, ["decode", "decode", "prefill"], poll_s=60.0) as made:
        killed, alive = made.workers[:2]
        for worker in (killed, alive):
            worker.store([b"a" * 32, worker.record.worker_id.encode().ljust(32)])
        await made.until(lambda known: all(known[one.record.worker_id].blocks_in_view == 2 for one in (killed, alive)))
        await killed.kill()
        await made.until(lambda known: known["decode-0"].state == "suspect")
        known = await made.status()
        assert (known["decode-0"].blocks_in_view, known["decode-1"].blocks_in_view) == (0, 2)


async def test_a_new_life_is_told_from_the_old_one_by_its_first_words(model_dir: Path) -> None:
    async with bench(model_dir, poll_s=60.0) as made:
        worker = made.workers[0]
        worker.store([b"a" * 32])
        await made.until(lambda known: known["decode-0"].blocks_in_view == 1)
        await worker.kill()
        port = int(worker.record.address.rpartition(":")[2])
        again = FakeWorker("decode-0", ["decode"], made.model.tokenizer, incarnation=50)
        made.workers.append(await again.start(port))
        again.pings_hang = True
        await made.until(lambda known: "decode-0" not in known)
        assert again.num_watches > 0


async def test_running_requests_end_well_when_the_router_drains(model_dir: Path) -> None:
    async with bench(model_dir, timeouts=TimeoutsConfig(ping_s=0.3)) as made:
        fault = Fault(after=5, hang=True)
        made.workers[0].faults.append(fault)
        running = asyncio.create_task(assert_undisturbed(made))
        await fault.reached.wait()
        stopping = asyncio.create_task(made.router.stop())
        with pytest.raises(grpc.aio.AioRpcError):
            while True:
                await made.status()
        fault.resume.set()
        await running
        await stopping


async def test_a_sick_fleet_is_not_hit_by_a_storm_of_retries(model_dir: Path) -> None:
    async with bench(
        model_dir, ["decode", "decode", "prefill"], retry_burst=3, retry_ratio=0.0, breaker_failures=99
    ) as made:
        for worker in made.workers[:2]:
            worker.faults.extend(Fault(error=StepAborted("sick", leg=Leg.DECODE)) for _ in range(40))
        for _ in range(8):
            with pytest.raises(grpc.aio.AioRpcError):
                await made.ask(text_request())
        assert sum(num_calls(made)) == 8 + 3, "8 first attempts and what the budget allows"
        assert made.metric("retries_refused_total") >= 5


async def test_moving_a_stream_costs_no_budget(model_dir: Path) -> None:
    async with bench(model_dir, ["decode", "decode", "prefill"], retry_burst=1, retry_ratio=0.0) as made:
        assert made.router.registry.get_sample_value("pando_router_retry_budget_retries") == 1
        for after in (3, 4, 5):
            made.workers[0].faults.append(Fault(after, error=PeerLost("bang", leg=Leg.DECODE)))
            made.workers[1].faults.append(Fault(after, error=PeerLost("bang", leg=Leg.DECODE)))
        await assert_undisturbed(made, max_tokens=40)
        assert made.metric("migrations_total", leg="decode") >= 5, "more than max_attempts"
        assert made.metric("retry_budget_retries") == 1


async def test_a_worker_that_fails_at_its_work_gets_none_until_a_trial_succeeds(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead_s = [0.0]
    monkeypatch.setattr(router_main, "monotonic", lambda: monotonic() + ahead_s[0])
    async with bench(model_dir, ["decode", "decode", "prefill"], breaker_failures=2, breaker_pause_s=60.0) as made:
        sick, well = made.workers[:2]
        sick.faults.extend(Fault(error=StepAborted("sick", leg=Leg.DECODE)) for _ in range(2))
        while len(sick.calls) < 2:
            await assert_undisturbed(made)
        states = {name: worker.state for name, worker in (await made.status()).items()}
        assert states["decode-0"] == "ready", "it answers pings"
        num_well = len(well.calls)
        for _ in range(3):
            await assert_undisturbed(made)
        assert (len(sick.calls), len(well.calls)) == (2, num_well + 3)
        ahead_s[0] = 61.0
        async with asyncio.timeout(LIMIT_S):
            while len(sick.calls) < 4:
                await assert_undisturbed(made)
        assert made.workers[2].record.worker_id == "prefill-2"


async def test_a_failing_prefill_is_left_out_and_decode_stays(model_dir: Path) -> None:
    async with bench(model_dir, breaker_failures=2, breaker_pause_s=60.0) as made:
        decode = made.workers[0]
        sick = [Fault(error=HandoffAborted("sick", leg=Leg.PREFILL)) for _ in range(2)]
        decode.faults.extend([sick[0], Fault(100), sick[1]])
        for number in range(4):
            await assert_undisturbed(made, text=f"prompt {number} of many words " * 4)
        assert [call.HasField("prefill") for call in decode.calls] == [True, False, True, False, False, False]
        await eventually(lambda: made.metric("open_breakers", role="prefill") == 1, "the breaker is shown")
        assert made.metric("open_breakers", role="decode") == 0


async def test_what_outlives_the_drain_is_handed_over(model_dir: Path) -> None:
    async with bench(model_dir, timeouts=TimeoutsConfig(ping_s=0.3, drain_s=0.2)) as made:
        fault = Fault(after=5, hang=True)
        made.workers[0].faults.append(fault)
        running = asyncio.create_task(made.ask(text_request()))
        await fault.reached.wait()
        await made.router.stop()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await running
        error = from_rpc_error(caught.value, Leg.NONE)
        assert isinstance(error, Draining) and error.leg is Leg.ROUTER


@pytest.mark.parametrize("given", [1, 7, 23, 24])
@pytest.mark.parametrize("choice", [0, 2])
async def test_another_routers_choice_goes_on_after_its_tokens(model_dir: Path, given: int, choice: int) -> None:
    async with bench(model_dir) as made:
        request = text_request(n=3, sampling__temperature=1.0, sampling__seed=9)
        tokens, text = made.expected(request, choice)
        rest = text_request(
            sampling__temperature=1.0, sampling__seed=9, first_choice=choice, output_token_ids=tokens[:given]
        )
        frames = [frame async for frame in made.stub.Generate(rest, timeout=10)]
        assert {frame.choice for frame in frames} == {choice}
        assert tokens[:given] + [token for frame in frames for token in frame.token_ids] == tokens
        assert text.endswith("".join(frame.text for frame in frames))
        assert frames[0].HasField("prompt") and frames[-1].usage.completion_tokens == len(tokens)


async def test_a_thawed_worker_is_heard_no_more_and_comes_back_with_what_it_holds_now(model_dir: Path) -> None:
    async with bench(model_dir, ["decode", "decode", "prefill"], timeouts=TimeoutsConfig(ping_s=1.0)) as made:
        frozen = made.workers[0]
        frozen.store([b"a" * 32])
        await made.until(lambda known: known["decode-0"].blocks_in_view == 1)
        fault = Fault(after=5, hang=True)
        frozen.faults.append(fault)
        running = asyncio.create_task(assert_undisturbed(made))
        await fault.reached.wait()
        frozen.pings_hang = True
        del made.registry.records["decode-0"]
        await made.until(lambda known: "decode-0" not in known)
        fault.resume.set()
        await running
        assert len(made.workers[1].calls[0].request.output_token_ids) == 5
        frozen.blocks = [b"b" * 32, b"c" * 32]
        frozen.pings_hang = False
        made.registry.register(frozen)
        await made.until(lambda known: "decode-0" in known and known["decode-0"].blocks_in_view == 2)
        assert frozen.num_watches == 2, "its old credit was kept"
