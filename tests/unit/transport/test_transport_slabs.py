"""Slabs are neither lost nor given out twice, and quarantine is bounded."""

from __future__ import annotations

import threading

import pytest

from common.base.errors import Overloaded, PeerLost
from common.transport.ucx_slabs import Slabs


def wanted() -> bool:
    """A job that nobody aborted."""
    return True


def test_slabs_are_apart_and_reused() -> None:
    slabs = Slabs(3, 100, 1)
    taken = [slabs.take(wanted, wait=False) for _ in range(3)]
    addresses = sorted(slab.address for slab in taken if slab)
    assert [address - addresses[0] for address in addresses] == [0, 100, 200]
    assert slabs.take(wanted, wait=False) is None
    for slab in taken:
        assert slab is not None and len(slab.view) == 100
        slab.view[:] = bytes(100)
        slabs.give(slab)
    assert {slab.address for slab in (slabs.take(wanted, wait=False) for _ in range(3)) if slab} == set(addresses)


def test_taking_waits_for_one_to_be_given() -> None:
    slabs = Slabs(1, 10, 1)
    slab = slabs.take(wanted, wait=False)
    assert slab is not None
    threading.Timer(0.05, slabs.give, [slab]).start()
    assert slabs.take(wanted, wait=True) is slab


def test_an_aborted_job_stops_waiting() -> None:
    slabs = Slabs(1, 10, 1)
    slabs.take(wanted, wait=False)
    aborted = threading.Event()

    def abort() -> None:
        aborted.set()
        slabs.wake()

    threading.Timer(0.05, abort).start()
    with pytest.raises(PeerLost):
        slabs.take(lambda: not aborted.is_set(), wait=True)


def test_too_much_quarantine_refuses_instead_of_waiting() -> None:
    slabs = Slabs(2, 10, max_quarantined=1)
    taken = [slabs.take(wanted, wait=False) for _ in range(2)]
    slabs.quarantine()
    assert slabs.take(wanted, wait=False) is None
    slabs.quarantine()
    assert slabs.num_quarantined == 2
    with pytest.raises(Overloaded):
        slabs.take(wanted, wait=True)
    assert taken[0] is not None
    slabs.release(taken[0])
    assert slabs.num_quarantined == 1
    assert slabs.take(wanted, wait=True) is taken[0]
