"""What only the `ucx` driver has: slabs between the library and the blocks."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from common.base.errors import PeerLost, Unsupported
from common.transport.ucx import UcxTransport
from tests.support.transport_peer import PeerProcess, Spec
from tests.support.transport_reader import Reader, reads, stays_poisoned

LARGE = Spec("ucx", num_extents=8, extent_bytes=4 * 1024 * 1024)


def quarantined(reader: Reader) -> int:
    """Slabs in quarantine."""
    assert isinstance(reader.driver, UcxTransport)
    return reader.driver.num_quarantined_slabs


def test_slabs_leave_quarantine_while_the_peer_is_still_frozen() -> None:
    with PeerProcess(LARGE) as peer, Reader("ucx") as reader:
        for _ in range(6):  # more slabs than there are, if any were lost
            peer.ask("arm", action="SIGSTOP", after=3)
            targets = [bytearray(extent.length) for extent in peer.extents]
            with pytest.raises(PeerLost):
                reader.call(reader.driver.read(peer.endpoint, reads(peer.extents, targets), 0.5))
            ends_at = time.monotonic() + 60
            while quarantined(reader) and time.monotonic() < ends_at:
                time.sleep(0.01)
            assert quarantined(reader) == 0
            peer.resume()
            assert stays_poisoned(targets, 0.1)
        assert len(reader.read(peer.endpoint, peer.extents)) == 8


def test_an_extent_larger_than_a_slab_is_for_another_driver() -> None:
    large = replace(LARGE, num_extents=1, extent_bytes=9 * 1024 * 1024)
    with PeerProcess(large) as peer, Reader("ucx") as reader, pytest.raises(Unsupported):
        reader.read(peer.endpoint, peer.extents)


def test_reader_and_owner_live_in_one_process_and_find_each_other() -> None:
    with PeerProcess(replace(LARGE, num_extents=2)) as peer, Reader("ucx") as reader, Reader("ucx") as other:
        assert reader.read(peer.endpoint, peer.extents) == other.read(peer.endpoint, peer.extents)
