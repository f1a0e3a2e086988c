"""The order in which objects leave memory."""

from __future__ import annotations

from dataclasses import dataclass

from services.kvstore.order import Ghosts, Order


@dataclass(eq=False)
class Thing:
    number: int
    proven: bool = False
    pins: int = 0


def order_of(count: int) -> tuple[Order[Thing], list[Thing]]:
    order, things = Order[Thing](), [Thing(number) for number in range(count)]
    for one in things:
        order.add(one)
    return order, things


def numbers(order: Order[Thing]) -> list[int]:
    return [one.number for one in order]


def test_used_ones_leave_after_all_others_but_are_half_at_most() -> None:
    order, things = order_of(6)
    for number in (4, 0):
        order.use(things[number])
    assert numbers(order) == [1, 2, 3, 5, 4, 0]
    for one in things:
        order.use(one)
    assert numbers(order) == [0, 1, 2, 3, 4, 5] and all(one.proven for one in things)
    assert order.victim() is things[0]
    assert [one.number for one in things if one.proven] == [3, 4, 5]


def test_making_room_takes_no_longer_when_many_are_proven() -> None:
    order, things = order_of(1000)
    for one in things:
        order.use(one)
    for number in range(100):
        assert order.victim() is things[number]
        order.discard(things[number])
        demoted = sum(not one.proven for one in things)
        assert demoted <= 8 * (number + 1)
    assert abs(2 * sum(one.proven for one in things[100:]) - 900) <= 16, "half of them, in the end"


def test_refreshing_moves_within_its_half() -> None:
    order, things = order_of(4)
    order.use(things[3])
    order.refresh(things[0])
    order.refresh(things[3])
    assert numbers(order) == [1, 2, 0, 3]


def test_the_victim_is_the_first_that_nobody_pins() -> None:
    order, things = order_of(3)
    order.use(things[0])
    things[1].pins = 1
    assert order.victim() is things[2]
    things[2].pins = 1
    assert order.victim() is things[0]
    things[0].pins = 1
    assert order.victim() is None
    for one in things:
        order.discard(one)
        order.discard(one)
    assert numbers(order) == []


def test_ghosts_are_recalled_once_and_the_oldest_are_forgotten() -> None:
    ghosts = Ghosts()
    for number in range(4):
        ghosts.add(bytes([number]), 3)
    assert [ghosts.recall(bytes([number])) for number in (0, 1, 3, 3)] == [False, True, True, False]
