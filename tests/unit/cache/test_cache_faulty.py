"""Every fault of a store, and what the seal makes of it: right bytes or no hit, and it is counted."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from common.base.failpoints import DISABLED, Failpoints
from common.cache.faulty import LOOKUP, PUT, READ, FaultyBackend
from common.cache.header import Damage
from common.cache.l3 import PutState, State
from tests.support.l3_contract import CAPACITY_BYTES, L3Contract, Place, SealedStore, block_of, fetch, key_of, targets
from tests.support.l3_memory import MemoryStore, Shelf

KEYS = [key_of(number) for number in range(4)]
DEADLINE_S = 0.05


class TestFaultyBackend(L3Contract):
    """With nothing armed it is the backend that it wraps."""

    @pytest.fixture(params=["disabled", "unarmed"])
    def place(self, request: pytest.FixtureRequest) -> Place:
        shelf = Shelf(CAPACITY_BYTES)

        async def open_store() -> FaultyBackend:
            return FaultyBackend(MemoryStore(shelf), DISABLED if request.param == "disabled" else Failpoints())

        return Place(open_store)


@dataclass
class Rig:
    """A sealed store over a faulty one."""

    failpoints: Failpoints
    shelf: Shelf
    store: SealedStore


@pytest.fixture
async def rig() -> Rig:
    failpoints, shelf = Failpoints(), Shelf(CAPACITY_BYTES)
    rig = Rig(failpoints, shelf, SealedStore(FaultyBackend(MemoryStore(shelf), failpoints)))
    await rig.store.put([block_of(key) for key in KEYS])
    return rig


@pytest.mark.parametrize("rule", ["fail", "drop", "delay(10)"])
async def test_a_lookup_without_answer_is_an_error(rig: Rig, rule: str) -> None:
    rig.failpoints.arm(LOOKUP, f"1*{rule}")
    lease = await rig.store.lookup(KEYS, DEADLINE_S)
    assert list(lease.states) == [State.ERROR] * 4
    assert await rig.store.read(lease, list(enumerate(targets(4)))) == [State.ERROR] * 4
    assert await fetch(rig.store, KEYS) == [State.HIT] * 4


async def test_a_late_lookup_in_time_is_fine(rig: Rig) -> None:
    for name in (LOOKUP, READ):
        rig.failpoints.arm(name, "delay(0.01)")
    assert await fetch(rig.store, KEYS) == [State.HIT] * 4


@pytest.mark.parametrize("rule", ["fail", "drop", "delay(10)"])
async def test_a_read_without_answer_is_an_error(rig: Rig, rule: str) -> None:
    lease = await rig.store.lookup(KEYS)
    rig.failpoints.arm(READ, rule)
    assert await rig.store.read(lease, list(enumerate(targets(4))), DEADLINE_S) == [State.ERROR] * 4
    assert rig.store.damage == []


async def test_a_failing_block_does_not_spoil_the_others(rig: Rig) -> None:
    rig.failpoints.arm(READ, "1*off;1*fail")
    assert await fetch(rig.store, KEYS) == [State.HIT, State.ERROR, State.HIT, State.HIT]


@pytest.mark.parametrize(
    ("rule", "damage"), [("truncate", Damage.LENGTH), ("flip", Damage.CHECKSUM), ("flip(recompute)", Damage.TAG)]
)
async def test_damage_on_the_way_back_is_found_and_heals(rig: Rig, rule: str, damage: Damage) -> None:
    rig.failpoints.arm(READ, f"1*off;1*{rule}")
    assert await fetch(rig.store, KEYS) == [State.HIT, State.CORRUPT, State.HIT, State.HIT]
    assert rig.store.damage == [damage]
    assert await fetch(rig.store, KEYS) == [State.HIT, State.MISS, State.HIT, State.HIT], "discarded"
    assert (
        await rig.store.put([block_of(key) for key in KEYS])
        == [PutState.PRESENT, PutState.STORED] + [PutState.PRESENT] * 2
    )
    assert await fetch(rig.store, KEYS) == [State.HIT] * 4


@pytest.mark.parametrize(
    ("rule", "damage"), [("truncate", Damage.LENGTH), ("flip", Damage.CHECKSUM), ("flip(recompute)", Damage.TAG)]
)
async def test_damage_on_the_way_in_is_found_when_read(rig: Rig, rule: str, damage: Damage) -> None:
    key, payload = block_of(key_of(9))
    rig.failpoints.arm(PUT, f"1*{rule}")
    assert await rig.store.put([(key, payload)]) == [PutState.STORED]
    assert payload == block_of(key)[1], "the caller's own bytes were damaged"
    assert await fetch(rig.store, [key]) == [State.CORRUPT]
    assert rig.store.damage == [damage]
    assert await rig.store.put([(key, payload)]) == [PutState.STORED]
    assert await fetch(rig.store, [key]) == [State.HIT]


@pytest.mark.parametrize("rule", ["fail", "drop", "delay(10)"])
async def test_a_put_without_answer_is_an_error(rig: Rig, rule: str) -> None:
    rig.failpoints.arm(PUT, f"1*{rule}")
    assert await rig.store.put([block_of(key_of(9))], DEADLINE_S) == [PutState.ERROR]
    assert await fetch(rig.store, [key_of(9)]) == [State.MISS]


async def test_without_a_key_a_forged_checksum_goes_unseen() -> None:
    """The negative control of the tag."""
    failpoints = Failpoints()
    store = SealedStore(FaultyBackend(MemoryStore(Shelf(CAPACITY_BYTES)), failpoints), key=None)
    await store.put([block_of(KEYS[0])])
    failpoints.arm(READ, "flip(recompute)")
    lease = await store.lookup(KEYS[:1])
    (landed,) = targets(1)
    assert await store.read(lease, [(0, landed)]) == [State.HIT]
    assert bytes(landed) != block_of(KEYS[0])[1]
