"""Which router gets the next call."""

from __future__ import annotations

import pytest

from services.gateway.routers import Routers


@pytest.fixture
def routers() -> Routers:
    return Routers(["a", "b", "c"])


def test_the_least_busy_goes_first_and_ties_to_the_one_used_longest_ago(routers: Routers) -> None:
    for expected in ("a", "b", "c"):
        address = routers.pick(())
        assert address == expected
        routers.began(expected)
    routers.ended("b")
    assert routers.pick(()) == "b"
    routers.ended("a")
    assert routers.pick(()) == "a"


def test_one_that_is_down_comes_last_until_it_serves(routers: Routers) -> None:
    assert routers.failed("a") and not routers.failed("a"), "told once that it fell"
    assert routers.pick(()) == "b"
    assert routers.pick(("b", "c")) == "a", "a probe may be late"
    assert routers.any_up
    routers.serves("a")
    assert routers.pick(()) == "a"


def test_each_is_tried_once(routers: Routers) -> None:
    tried: list[str] = []
    while (address := routers.pick(tried)) is not None:
        routers.failed(address)
        tried.append(address)
    assert sorted(tried) == routers.addresses and not routers.any_up
