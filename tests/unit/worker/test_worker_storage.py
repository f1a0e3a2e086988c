"""L3 behind a running core: prefixes survive a restart, a bad store costs time and never a token.

The engine reads its KV back from the bytes of L1, so a block that came back wrong changes the output.
"""

from __future__ import annotations

import random

import pytest

from common.base.failpoints import Failpoints
from common.cache.config import PrefetchPolicy
from common.cache.faulty import FaultyBackend
from tests.support.fake_engine import reference_output
from tests.support.l3_memory import MemoryStore, Shelf
from tests.support.worker_rig import BLOCK_SIZE, Listener, make_request, running_core

KEY = b"k" * 32
FOREVER = "drop"


def prompt_of(number: int, length: int = 24) -> list[int]:
    return [(number * 31 + i) % 250 for i in range(length)]


@pytest.fixture
def shelf() -> Shelf:
    return Shelf(1 << 20)


def faulty(shelf: Shelf, failpoints: Failpoints, **rules: str) -> FaultyBackend:
    """A store whose failpoints (`l3.` before their names) are armed."""
    backend = FaultyBackend(MemoryStore(shelf), failpoints)
    for name, rule in rules.items():
        failpoints.arm(f"l3.{name}", rule)
    return backend


@pytest.mark.parametrize("l2_blocks", [0, 64])
async def test_a_restarted_worker_finds_its_prefixes(shelf: Shelf, l2_blocks: int) -> None:
    async with running_core(16, l2_blocks=l2_blocks) as rig:
        rig.attach(MemoryStore(shelf), KEY)
        await rig.run("a", prompt_of(1))
    async with running_core(16, l2_blocks=l2_blocks) as rig:
        rig.attach(MemoryStore(shelf), KEY)
        back = await rig.run("b", prompt_of(1))
        assert back.num_cached_tokens == {"l3": 20}
        assert rig.metric("pando_worker_cached_tokens_total", tier="l3") == 0, "whoever serves the request counts it"
        assert (await rig.run("c", prompt_of(1))).num_cached_tokens == {"l1": 20}
        assert rig.core.storage is not None
        written = rig.core.storage.archive.counters
        assert (written.stored, written.present) == (0, 1), "what came from L3 is not sealed and offered anew"


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("l2_blocks", [0, 48])
async def test_a_bad_store_never_costs_a_token(shelf: Shelf, l2_blocks: int, keyed: bool) -> None:
    """Half of the flips fit the checksum: without a key nothing would catch those, so they are left out there."""
    rules = "8%fail;8%truncate;8%flip;8%delay(0.02)" + (";8%flip(recompute)" if keyed else "")
    choose = random.Random(7)
    async with running_core(24, l2_blocks=l2_blocks) as rig:
        rig.attach(faulty(shelf, Failpoints(seed=3), read=rules), KEY if keyed else None)
        for number in range(200):
            prefix = prompt_of(choose.randrange(20), 32)
            await rig.run(f"r{number}", [*prefix, *(choose.randrange(250) for _ in range(5))])
            if number % 5 == 0:
                rig.flush()
        assert rig.metric("pando_worker_integrity_failures_total") > 0
        assert rig.core.storage is not None
        assert rig.core.storage.prefetcher.counters.fetched > 50


async def test_without_the_key_a_forged_block_would_come_through(shelf: Shelf) -> None:
    """Shows that the test above sees wrong bytes: nothing but the tag catches a flip under a fitting checksum."""
    async with running_core(24) as rig:
        rig.attach(faulty(shelf, Failpoints(), read="flip(recompute)"))
        await rig.run("a", prompt_of(1))
        rig.flush()
        request, listener = make_request("b", prompt_of(1), max_tokens=3), Listener()
        rig.core.add(request, listener)
        await listener.wait()
        assert listener.tokens != reference_output(prompt_of(1), request.params)


@pytest.mark.parametrize("rule", [FOREVER, "delay(30)", "fail"])
@pytest.mark.parametrize("policy", list(PrefetchPolicy))
async def test_a_store_that_does_not_answer_holds_nobody_up(shelf: Shelf, policy: PrefetchPolicy, rule: str) -> None:
    async with running_core(24) as rig:
        rig.attach(faulty(shelf, Failpoints(), lookup=rule), policy=policy, timeout_base_s=0.01, deadline_s=0.2)
        for number in range(5):
            request = await rig.run(f"r{number}", prompt_of(number))
            assert request.num_cached_tokens == {}


async def test_a_slow_store_that_has_nothing_costs_a_share_of_the_work(shelf: Shelf) -> None:
    async with running_core(24) as rig:
        rig.attach(faulty(shelf, Failpoints(), lookup="delay(0.3)"), patience_ratio=0.1)
        rig.core.prefill_tokens_per_s = 1e6
        request, listener = make_request("a", prompt_of(1)), Listener()
        rig.core.add(request, listener)
        assert request.awaits_kv
        await listener.wait()
        assert rig.core.storage is not None and rig.core.storage.prefetcher.num_jobs == 1, "it was not waited for"
        assert rig.core.storage.prefetcher.counters.timeouts == 1


async def test_a_request_that_waits_is_passed_over(shelf: Shelf) -> None:
    async with running_core(24) as rig:
        backend = faulty(shelf, Failpoints(), lookup=FOREVER)
        rig.attach(backend, policy=PrefetchPolicy.WAIT_COMPLETE, deadline_s=1.0)
        slow, first = make_request("slow", prompt_of(1)), Listener()
        rig.core.add(slow, first)
        quick, second = make_request("quick", [7, 8]), Listener()
        rig.core.add(quick, second)
        await second.wait()
        assert not first.ended.is_set() and slow.awaits_kv
        rig.core.drop(slow)


async def test_split_while_writing(shelf: Shelf) -> None:
    """Paths that fork while the store is slow: every full block before the last token comes back."""
    whole = prompt_of(1, 128)
    async with running_core(128, l2_blocks=128) as rig:
        rig.attach(faulty(shelf, Failpoints(), put="delay(0.05)"), KEY)
        asks = {"p": whole, "x": [*whole[:62], 1, 2, 3], "y": [*whole[:25], 4, 5, 6]}
        listeners = {name: Listener() for name in asks}
        for name, prompt in asks.items():
            rig.core.add(make_request(name, prompt, max_tokens=2), listeners[name])
        for listener in listeners.values():
            await listener.wait()
        await rig.settle()
        rig.flush()
        assert rig.core.tiers.match(make_request("m", whole).reusable_hashes()) == 0
        back = await rig.run("back", whole)
        assert back.num_cached_tokens == {"l3": (128 - 1) // BLOCK_SIZE * BLOCK_SIZE}


@pytest.mark.parametrize("l2_blocks", [0, 64])
async def test_a_store_attached_late_gets_what_is_here_under_the_right_names(shelf: Shelf, l2_blocks: int) -> None:
    whole = prompt_of(1, 48)
    async with running_core(64, l2_blocks=l2_blocks) as rig:
        await rig.run("a", whole)
        await rig.run("b", [*whole[:20], *[9] * 12])
        rig.attach(MemoryStore(shelf), KEY)
        await rig.settle()
        rig.flush()
        assert (await rig.run("half", whole[24:])).num_cached_tokens == {}
        assert (await rig.run("c", whole)).num_cached_tokens == {"l3": 44}


async def test_a_request_that_leaves_while_its_blocks_come_leaves_nothing(shelf: Shelf) -> None:
    async with running_core(24) as rig:
        failpoints = Failpoints()
        rig.attach(faulty(shelf, failpoints))
        await rig.run("a", prompt_of(1))
        rig.flush()
        failpoints.arm("l3.read", "delay(0.1)")
        request, listener = make_request("b", prompt_of(1)), Listener()
        rig.core.add(request, listener)
        while not rig.cache.num_held:
            await rig.tick()
        rig.core.drop(request)
        await rig.settle()
        assert rig.cache.num_held == 0


async def test_too_much_on_the_way_goes_without(shelf: Shelf) -> None:
    async with running_core(24) as rig:
        storage = rig.attach(MemoryStore(shelf), max_blocks=4)
        await rig.run("a", prompt_of(1))
        rig.flush()
        assert (await rig.run("b", prompt_of(1))).num_cached_tokens == {}
        assert storage.prefetcher.counters.skipped == 2


async def test_a_full_queue_drops_and_the_next_use_offers_again(shelf: Shelf) -> None:
    async with running_core(24) as rig:
        failpoints = Failpoints()
        storage = rig.attach(faulty(shelf, failpoints, put="fail"))
        await rig.run("a", prompt_of(1))
        assert not shelf.objects and storage.archive.counters.failed > 0
        failpoints.disarm_all()
        await rig.run("b", prompt_of(1))
        assert len(shelf.objects) >= 5


@pytest.mark.parametrize("l2_blocks", [0, 64])
@pytest.mark.parametrize("hole", [0, 4])
async def test_a_hole_in_a_path_is_filled_when_the_path_is_used_again(shelf: Shelf, l2_blocks: int, hole: int) -> None:
    """The store dropped a block whose followers it still has."""
    names = list(make_request("m", prompt_of(1)).reusable_hashes())
    async with running_core(24, l2_blocks=l2_blocks) as rig:
        rig.attach(MemoryStore(shelf), KEY)
        await rig.run("a", prompt_of(1))
        del shelf.objects[next(key for key in shelf.objects if key.prefix_hash == names[hole])]
        rig.flush()
        found = {"l3": hole * BLOCK_SIZE} if hole else {}
        assert (await rig.run("b", prompt_of(1))).num_cached_tokens == found
        rig.flush()
        assert (await rig.run("c", prompt_of(1))).num_cached_tokens == {"l3": 20}


async def test_a_damaged_block_is_written_anew_when_its_path_is_used_again(shelf: Shelf) -> None:
    names = list(make_request("m", prompt_of(1)).reusable_hashes())
    async with running_core(24) as rig:
        rig.attach(MemoryStore(shelf), KEY)
        await rig.run("a", prompt_of(1))
        damaged = next(key for key in shelf.objects if key.prefix_hash == names[2])
        header, payload = shelf.objects[damaged]
        shelf.objects[damaged] = header, bytes([payload[0] ^ 1]) + payload[1:]
        rig.flush()
        assert (await rig.run("b", prompt_of(1))).num_cached_tokens == {"l3": 2 * BLOCK_SIZE}
        rig.flush()
        assert (await rig.run("c", prompt_of(1))).num_cached_tokens == {"l3": 20}


@pytest.mark.parametrize("l2_blocks", [0, 64])
async def test_what_came_from_the_store_is_not_offered_to_it_again(shelf: Shelf, l2_blocks: int) -> None:
    for _ in range(2):
        async with running_core(24, l2_blocks=l2_blocks) as rig:
            storage = rig.attach(MemoryStore(shelf), KEY)
            await rig.run("a", prompt_of(1))
    assert storage.prefetcher.counters.fetched == 5
    counters = storage.archive.counters
    assert (counters.present, counters.stored) == (1, 0), "only the block with output is new to the worker"


async def test_a_write_that_failed_in_the_middle_of_a_path_is_made_up_for(shelf: Shelf) -> None:
    async with running_core(24) as rig:
        failpoints = Failpoints()
        storage = rig.attach(faulty(shelf, failpoints, put="2*off;1*fail"), KEY)
        await rig.run("a", prompt_of(1))
        assert storage.archive.counters.failed == 1 and len(shelf.objects) == 5
        await rig.run("b", prompt_of(1))
        rig.flush()
        assert (await rig.run("c", prompt_of(1))).num_cached_tokens == {"l3": 20}


@pytest.fixture
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of one block, so that short paths have many."""
    monkeypatch.setattr("common.cache.prefetch.NAMES_PER_LOOKUP", 1)
    monkeypatch.setattr("common.cache.archive.BLOCKS_PER_PUT", 1)


@pytest.mark.usefixtures("one_at_a_time")
async def test_a_request_waits_by_the_tokens_of_all_batches(shelf: Shelf) -> None:
    """Each block may take 0.2 s and takes 0.1 s, so all five come in time."""
    async with running_core(24) as rig:
        failpoints = Failpoints()
        rules = {"timeout_base_s": 0.0, "timeout_per_1k_tokens_s": 0.2 / BLOCK_SIZE * 1000}
        storage = rig.attach(faulty(shelf, failpoints), KEY, **rules)
        await rig.run("a", prompt_of(1))
        rig.flush()
        failpoints.arm("l3.read", "delay(0.1)")
        assert (await rig.run("b", prompt_of(1))).num_cached_tokens == {"l3": 20}
        assert storage.prefetcher.counters.timeouts == 0


async def test_all_reads_together_leave_room_for_who_runs(shelf: Shelf) -> None:
    async with running_core(24) as rig:
        failpoints = Failpoints()
        rig.attach(faulty(shelf, failpoints), KEY)
        for number in range(5):
            await rig.run(f"first-{number}", prompt_of(number))
        rig.flush()
        failpoints.arm("l3.read", "delay(0.3)")
        listeners = [Listener() for _ in range(5)]
        for number, listener in enumerate(listeners):
            rig.core.add(make_request(f"then-{number}", prompt_of(number), max_tokens=2), listener)
        most = 0
        while not all(listener.ended.is_set() for listener in listeners):
            waits = rig.core.scheduler.num_running == 0
            most = max(most, rig.cache.num_held if waits and not rig.core.scheduler.in_flight else 0)
            await rig.tick()
        assert 0 < most <= 12


@pytest.mark.usefixtures("one_at_a_time")
async def test_a_store_that_is_closed_is_read_no_further_than_the_running_batch(shelf: Shelf) -> None:
    async with running_core(24) as rig:
        failpoints = Failpoints()
        storage = rig.attach(faulty(shelf, failpoints), KEY, policy=PrefetchPolicy.WAIT_COMPLETE)
        await rig.run("a", prompt_of(1))
        rig.flush()
        failpoints.arm("l3.read", "delay(0.1)")
        listener = Listener()
        rig.core.add(make_request("b", prompt_of(1), max_tokens=2), listener)
        rig.core.storage = None
        await storage.close(0.0)
        await listener.wait()
        assert storage.prefetcher.counters.fetched <= 1


@pytest.mark.usefixtures("one_at_a_time")
@pytest.mark.parametrize("l2_blocks", [0, 24])
async def test_a_store_that_is_closed_is_written_no_further_than_the_running_batch(
    shelf: Shelf, l2_blocks: int
) -> None:
    async with running_core(24, l2_blocks=l2_blocks) as rig:
        await rig.run("a", prompt_of(1))
        storage = rig.attach(faulty(shelf, Failpoints(), put="delay(0.1)"), KEY)
        while not sum(tier.cache.num_held for tier in rig.core.tiers.tiers):
            await rig.tick()
        assert (rig.cache.num_held == 0) == bool(l2_blocks), "L1 is held only where there is no other copy"
        rig.core.storage = None
        await storage.close(0.0)
        assert storage.archive.counters.stored <= 1


@pytest.mark.parametrize("l2_blocks", [0, 64])
async def test_what_one_request_brings_is_not_read_for_another(shelf: Shelf, l2_blocks: int) -> None:
    async with running_core(64, l2_blocks=l2_blocks) as rig:
        storage = rig.attach(faulty(shelf, Failpoints(), read="delay(0.05)"))
        await rig.run("a", prompt_of(1))
        rig.flush()
        requests = [make_request(f"r{number}", prompt_of(1), max_tokens=2) for number in range(6)]
        listeners = [Listener() for _ in requests]
        for request, listener in zip(requests, listeners, strict=True):
            rig.core.add(request, listener)
        for listener in listeners:
            await listener.wait()
        await rig.settle()
        assert storage.prefetcher.counters.answers["hit"] == storage.prefetcher.counters.fetched == 5
        assert all(sum(request.num_cached_tokens.values()) == 20 for request in requests)


async def test_who_waits_for_another_goes_on_when_that_one_leaves(shelf: Shelf) -> None:
    async with running_core(64) as rig:
        failpoints = Failpoints()
        storage = rig.attach(faulty(shelf, failpoints))
        await rig.run("a", prompt_of(1))
        rig.flush()
        failpoints.arm("l3.lookup", "delay(0.05)")
        first, second = make_request("first", prompt_of(1)), make_request("second", prompt_of(1), max_tokens=2)
        listener = Listener()
        rig.core.add(first, Listener())
        rig.core.add(second, listener)
        await rig.tick()
        rig.core.drop(first)
        await listener.wait()
        assert second.num_cached_tokens == {"l3": 20}
        assert storage.prefetcher.num_jobs == 0


@pytest.mark.parametrize("l2_blocks", [0, 64])
async def test_kv_that_made_a_request_fail_leaves_the_store_too(shelf: Shelf, l2_blocks: int) -> None:
    async with running_core(64, l2_blocks=l2_blocks) as rig:
        rig.attach(MemoryStore(shelf))
        await rig.run("a", prompt_of(1))
        await rig.run("other", prompt_of(9))
        assert len(shelf.objects) == 12
        rig.engine.fail = ["b"]
        listener = Listener()
        rig.core.add(make_request("b", prompt_of(1)), listener)
        await listener.wait()
        assert listener.errors
        await rig.settle()
        rig.flush()
        assert (await rig.run("c", prompt_of(1))).num_cached_tokens == {}
        rig.flush()
        assert (await rig.run("d", prompt_of(1))).num_cached_tokens == {"l3": 20}, "computed anew, it is stored anew"


async def test_of_many_that_wait_one_for_another_none_keeps_those_before_it(shelf: Shelf) -> None:
    """Under steady load somebody is always ahead: a chain of all jobs ever would grow for ever."""
    async with running_core(64) as rig:
        storage = rig.attach(faulty(shelf, Failpoints(), lookup="delay(0.02)"))
        listeners = [Listener() for _ in range(5)]
        for number, listener in enumerate(listeners):
            rig.core.add(make_request(f"r{number}", prompt_of(1, 24 + 4 * number), max_tokens=2), listener)
        jobs = list({id(job): job for job in storage.prefetcher._coming.values()}.values())
        assert [job.ahead is None for job in jobs] == [True, False, False, False, False]
        for listener in listeners:
            await listener.wait()
        await rig.settle()
        assert not storage.prefetcher._coming
        assert [job.ahead for job in jobs] == [None] * len(jobs)
