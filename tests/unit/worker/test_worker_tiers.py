"""L2 behind a running core: what leaves L1 comes back from L2, unchanged, and nothing stays held.

The engine reads its KV back from the bytes of L1, so a block that was copied wrong, late or to the wrong place changes
the output.
"""

from __future__ import annotations

import pytest

from common.cache.config import TierPolicies, WritePolicy
from tests.support.fake_engine import reference_output
from tests.support.worker_rig import BLOCK_SIZE, Listener, Rig, make_request, running_core

POLICIES = list(WritePolicy)


def prompt_of(number: int, length: int = 24) -> list[int]:
    return [(number * 31 + i) % 250 for i in range(length)]


@pytest.fixture(params=[True, False], ids=["on the loop", "in a thread"])
def copies(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short copies are made on the loop, long ones in a thread: take all for one of them."""
    monkeypatch.setattr("common.cache.tiers.MAX_INLINE_BYTES", 1 << 20 if request.param else 0)


@pytest.mark.usefixtures("copies")
@pytest.mark.parametrize("policy", POLICIES)
async def test_what_l1_evicted_comes_back_from_l2(policy: WritePolicy) -> None:
    async with running_core(8, l2_blocks=64, policies=TierPolicies(policy)) as rig:
        await rig.run("a", prompt_of(1))
        await rig.run("again", prompt_of(1))
        for number in range(2, 6):
            await rig.run(f"other-{number}", prompt_of(number))
        assert rig.cache.match(make_request("m", prompt_of(1)).reusable_hashes()) == 0, "L1 has room for one only"
        back = await rig.run("b", prompt_of(1))
        assert back.num_cached_tokens == {"l2": 20}
        assert rig.core.tiers.counters.loaded == 5


async def test_selective_keeps_what_is_used_twice_only() -> None:
    async with running_core(8, l2_blocks=64, policies=TierPolicies(WritePolicy.WRITE_THROUGH_SELECTIVE)) as rig:
        await rig.run("a", prompt_of(1))
        assert rig.core.tiers.match(make_request("m", prompt_of(1)).reusable_hashes()) == 5
        await rig.run("b", prompt_of(2, 29))
        assert (await rig.run("c", prompt_of(1))).num_cached_tokens == {}


async def test_write_back_copies_nothing_that_l1_still_has() -> None:
    async with running_core(32, l2_blocks=64, policies=TierPolicies(WritePolicy.WRITE_BACK)) as rig:
        await rig.run("a", prompt_of(1))
        assert rig.core.tiers.counters.saved == 0
        for number in range(2, 8):
            await rig.run(f"other-{number}", prompt_of(number))
        assert rig.core.tiers.counters.saved > 0


async def _leave_two_in_l2(rig: Rig) -> None:
    """L1 and L2 have room for two paths of six blocks each: c and d are in L1 then, a and b in L2."""
    for number in range(1, 5):
        await rig.run(f"first-{number}", prompt_of(number), max_tokens=1)


async def test_what_makes_room_in_l1_does_not_push_out_of_l2_what_is_about_to_be_loaded() -> None:
    async with running_core(12, l2_blocks=12, policies=TierPolicies(WritePolicy.WRITE_BACK)) as rig:
        await _leave_two_in_l2(rig)
        back = await rig.run("back", prompt_of(1), max_tokens=1)
        assert back.num_cached_tokens == {"l2": 20}, "the oldest of L2, when L2 is full"


async def test_write_back_gives_up_first_what_it_has_loaded() -> None:
    async with running_core(12, l2_blocks=12, policies=TierPolicies(WritePolicy.WRITE_BACK)) as rig:
        await _leave_two_in_l2(rig)
        for number in (1, 5):
            await rig.run(f"then-{number}", prompt_of(number), max_tokens=1)
        found = [rig.core.tiers.match(make_request("m", prompt_of(n)).reusable_hashes()) for n in range(1, 6)]
        assert found == [5, 0, 5, 5, 5], "no block is in both tiers, so four paths of five are here"


@pytest.mark.usefixtures("copies")
@pytest.mark.parametrize("policy", POLICIES)
async def test_a_request_that_lost_its_blocks_finds_them_in_l2(policy: WritePolicy) -> None:
    few = {"max_num_seqs": 2, "load_back_min_tokens": 4}
    async with running_core(12, l2_blocks=64, policies=TierPolicies(policy), **few) as rig:
        names = {"a": prompt_of(1, 16), "b": prompt_of(2, 16)}
        requests = {name: make_request(name, prompt, max_tokens=20) for name, prompt in names.items()}
        listeners = {name: Listener() for name in names}
        for name, request in requests.items():
            rig.core.add(request, listeners[name])
        for name, listener in listeners.items():
            await listener.wait()
            assert listener.tokens == reference_output(names[name], requests[name].params), name
        assert rig.core.scheduler.num_preemptions > 0
        assert rig.core.tiers.counters.loaded > 0
        lost = [r for r in requests.values() if r.num_preemptions]
        assert all(r.num_cached_tokens == {} for r in lost), "what it finds again it computed itself"
        rows = sum(rig.engine.num_rows[r.request_id] for r in lost)
        assert rows < sum(16 + 20 for _ in lost) + 2 * BLOCK_SIZE * len(lost), "most of it was not computed twice"


@pytest.mark.parametrize("policy", POLICIES)
async def test_l2_may_be_smaller_than_l1(policy: WritePolicy) -> None:
    async with running_core(32, l2_blocks=8, policies=TierPolicies(policy)) as rig:
        for number in (*range(1, 12), *range(1, 12), 1, 1, 2, 2):
            await rig.run(f"{number}-{rig.core.metrics.num_prompt}", prompt_of(number, 40))
        assert rig.core.tiers.l2 is not None
        assert rig.core.tiers.l2.cache.num_cached <= 8


async def test_a_request_that_ends_while_its_blocks_are_loaded_leaves_nothing() -> None:
    async with running_core(8, l2_blocks=64) as rig:
        await rig.run("a", prompt_of(1))
        await rig.run("b", prompt_of(2))
        request, listener = make_request("c", prompt_of(1)), Listener()
        rig.core.add(request, listener)
        while request.status != "landing":
            await rig.tick()
        rig.core.drop(request)
        await rig.settle()
        assert rig.core.scheduler.num_landing == 0


async def test_kv_that_gave_no_finite_logits_is_kept_in_no_tier() -> None:
    async with running_core(24, l2_blocks=64) as rig:
        await rig.run("a", prompt_of(1))
        rig.cache.flush()
        rig.engine.fail = ["bad"]
        listener = Listener()
        rig.core.add(make_request("bad", prompt_of(1)), listener)
        await listener.wait()
        await rig.settle()
        assert listener.errors
        assert rig.core.tiers.match(make_request("m", prompt_of(1)).reusable_hashes()) == 0
        assert (await rig.run("b", prompt_of(1))).num_cached_tokens == {}


async def test_a_short_rest_is_computed() -> None:
    async with running_core(8, l2_blocks=64, load_back_min_tokens=24) as rig:
        await rig.run("a", prompt_of(1))
        await rig.run("b", prompt_of(2, 29))
        assert (await rig.run("c", prompt_of(1))).num_cached_tokens == {}
        assert rig.core.tiers.counters.loaded == 0
