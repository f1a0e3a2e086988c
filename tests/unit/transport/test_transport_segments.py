"""What may be read is decided in one place: incarnation, segment, bounds, generation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.base.errors import InvalidRequest, LeaseLost, StaleIncarnation
from common.transport.base import Extent
from common.transport.region import Region, RegionView
from common.transport.segments import Segments

WANT = Extent(incarnation=7, segment=2, offset=100, length=100, generation=0, checksum=0)


@pytest.fixture
def segments() -> Segments:
    """Two regions: of 1 x 50 bytes and of 4 x 100 bytes."""
    lent = Segments(7)
    assert [lent.add(Region.create(1, 50)), lent.add(Region.create(4, 100))] == [1, 2]
    return lent


def test_a_good_extent_gives_its_bytes(segments: Segments) -> None:
    segments.region(2).data[100:103] = b"abc"
    lent = segments.lend(WANT)
    assert bytes(lent.data[:3]) == b"abc"
    assert len(lent.data) == 100
    lent.check_generation()


def test_registering_stamps_the_incarnation(segments: Segments) -> None:
    assert RegionView(segments.region(1).fd).incarnation == 7


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"incarnation": 8}, StaleIncarnation),
        ({"segment": 3}, InvalidRequest),
        ({"segment": 0}, InvalidRequest),
        ({"offset": 400}, InvalidRequest),
        ({"offset": 101}, InvalidRequest),
        ({"length": 101}, InvalidRequest),
        ({"generation": 1}, LeaseLost),
    ],
    ids=str,
)
def test_anything_else_is_refused(segments: Segments, change: dict[str, int], error: type[Exception]) -> None:
    with pytest.raises(error):
        segments.lend(replace(WANT, **change))


def test_reuse_after_lending_is_noticed(segments: Segments) -> None:
    lent = segments.lend(WANT)
    segments.region(2).bump_generation(1)
    with pytest.raises(LeaseLost):
        lent.check_generation()
