"""Leases on a fake clock: they pin, renew, expire, and count down exactly."""

from __future__ import annotations

import math

import pytest

from common.cache.kvstore_arena import Arena
from services.kvstore.leases import LeaseBook
from services.kvstore.limits import Limits
from services.kvstore.memory import Object
from services.kvstore.objects import Objects


@pytest.fixture
def objects() -> Objects:
    return Objects(Arena(8 * 256, 256), Limits(1 << 20, 1 << 20))


def put(objects: Objects, number: int) -> Object:
    new = Object(bytes([1, 0, 0, 0, 0, 0, number]), 100, b"h" * 64)
    assert objects.stage(new) is None and objects.commit(new)
    return new


def test_a_lease_pins_until_it_is_released(objects: Objects) -> None:
    book, one = LeaseBook(objects, 100, 10, 5), put(objects, 1)
    lease = book.grant([one, one], 0.0, 10.0)
    assert lease == 100 and one.pins == 2 and len(book) == 1
    book.release([lease, lease, 12345])
    assert one.pins == 0 and len(book) == 0
    assert not book.renew(lease, 0.0, 10.0)


def test_leases_expire_in_time_and_renewal_moves_the_end(objects: Objects) -> None:
    book, one = LeaseBook(objects, 1, 10, 5), put(objects, 1)
    first, second = book.grant([one], 0.0, 10.0), book.grant([one], 0.0, 10.0)
    assert first is not None and second is not None
    assert book.renew(second, 9.0, 10.0)
    assert book.expire(9.99) == 0 and one.pins == 2
    assert book.expire(10.0) == 1 and one.pins == 1
    assert not book.renew(first, 10.0, 10.0)
    assert book.expire(18.9) == 0
    assert book.expire(19.0) == 1 and one.pins == 0


def test_renewals_and_releases_leave_nothing_behind(objects: Objects) -> None:
    book, one = LeaseBook(objects, 1, 10, 5), put(objects, 1)
    lease = book.grant([one], 0.0, 10.0)
    assert lease is not None
    for _ in range(20_000):
        assert book.renew(lease, 1.0, 10.0)
        given_back = book.grant([one], 1.0, 10.0)
        assert given_back is not None
        book.release([given_back])
        book.expire(1.0)
    assert len(book._ends) < 2_000, "what is kept grows with the calls"
    assert book.expire(10.9) == 0 and book.expire(11.0) == 1 and one.pins == 0


def test_the_number_of_leases_is_bounded(objects: Objects) -> None:
    book, one = LeaseBook(objects, 1, 10, 2), put(objects, 1)
    assert book.grant([one], 0.0, 1.0) and book.grant([one], 0.0, 1.0)
    assert book.grant([one], 0.0, 1.0) is None and one.pins == 2


@pytest.mark.parametrize(
    ("wanted", "granted"), [(0.0, 10.0), (-1.0, 10.0), (3.0, 3.0), (30.0, 10.0), (math.nan, 10.0), (math.inf, 10.0)]
)
def test_ttl_is_bounded(objects: Objects, wanted: float, granted: float) -> None:
    assert LeaseBook(objects, 1, 10, 2).ttl_s(wanted) == granted
