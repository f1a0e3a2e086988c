"""What every transport driver promises, between two real processes, whatever carries the bytes.

A driver whose package is missing fails here: it is part of this image.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.base.errors import (
    BlockCorrupt,
    InvalidRequest,
    LeaseLost,
    PandoError,
    PeerLost,
    StaleIncarnation,
)
from common.transport.base import Endpoint, Read
from common.transport.checksum import checksum
from tests.support.transport_garbage import throw_garbage
from tests.support.transport_peer import DRIVERS, PeerProcess, Spec, content
from tests.support.transport_reader import POISON, Reader, reads, stays_poisoned

SCALE = float(os.environ.get("PANDO_TRANSPORT_TEST_SCALE", "0.2"))
"""Of the counts of the long tests; 1 is for who works on a driver."""
LARGE = Spec("", num_extents=8, extent_bytes=4 * 1024 * 1024)
SMALL = Spec("", num_extents=64, extent_bytes=16 * 1024)
DEADLINE_S = 1.0
NOTICED_S = 15.0
"""Far less than any call here may take: who takes longer has waited for its deadline, or for ever."""


@pytest.fixture(scope="module", params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> str:
    """Each driver in turn."""
    return str(request.param)


@pytest.fixture(scope="module")
def peer(driver: str) -> Iterator[PeerProcess]:
    """A process that lends blocks of the size of SmolLM2's; tests leave it as they found it."""
    with PeerProcess(Spec(driver)) as process:
        yield process


@pytest.fixture
def reader(driver: str) -> Iterator[Reader]:
    """This process's side."""
    with Reader(driver) as it:
        yield it


class Failpoint:
    """Makes a peer fail in the middle of a read, on whichever side the driver moves the bytes."""

    def __init__(self, driver: str) -> None:
        self._driver = driver
        self._peer: PeerProcess | None = None
        self._action = ""
        self._chunks_until = 0

    def arm(self, peer: PeerProcess, action: str, after: int) -> None:
        """`action`: "SIGKILL", "SIGSTOP" or "reuse", at the `after`-th chunk."""
        if self._driver == "shm":
            self._peer, self._action, self._chunks_until = peer, action, after
        else:
            peer.ask("arm", action=action, after=after)

    def between_chunks(self) -> None:
        """The reader's hook; only `shm` copies on the reader's side."""
        self._chunks_until -= 1
        if self._peer is None or self._chunks_until > 0:
            return
        peer, self._peer = self._peer, None
        match self._action:
            case "SIGKILL":
                peer.kill()
            case "SIGSTOP":
                peer.stop()
            case _:
                for index in range(peer.spec.num_extents):
                    peer.ask("bump", extent=index)


@contextlib.contextmanager
def large_pair(driver: str) -> Iterator[tuple[PeerProcess, Reader, Failpoint]]:
    """A peer with large extents and a reader that can be made to fail in the middle of one."""
    failpoint = Failpoint(driver)
    with PeerProcess(replace(LARGE, driver=driver)) as peer, Reader(driver, failpoint.between_chunks) as reader:
        yield peer, reader, failpoint


def assert_content(peer: PeerProcess, indices: list[int], targets: list[bytearray]) -> None:
    """The targets hold the extents' bytes, compared with an independent source."""
    for index, target in zip(indices, targets, strict=True):
        assert target == content(index, peer.spec.extent_bytes), index


def test_reads_the_right_bytes(peer: PeerProcess, reader: Reader) -> None:
    indices = [3, 0, 31, 17, 3]
    assert_content(peer, indices, reader.read(peer.endpoint, [peer.extents[index] for index in indices]))
    assert reader.read(peer.endpoint, []) == []


def test_reads_a_part_of_an_extent(peer: PeerProcess, reader: Reader) -> None:
    whole = content(5, peer.spec.extent_bytes)
    part = whole[1000:51_000]
    source = replace(peer.extents[5], offset=peer.extents[5].offset + 1000, length=50_000, checksum=checksum(part))
    assert reader.read(peer.endpoint, [source]) == [bytearray(part)]


def test_reused_extent_is_lease_lost(peer: PeerProcess, reader: Reader) -> None:
    generation = peer.ask("bump", extent=4)
    with pytest.raises(LeaseLost):
        reader.read(peer.endpoint, [peer.extents[3], peer.extents[4]])
    peer.extents[4] = replace(peer.extents[4], generation=generation)
    assert_content(peer, [3, 4], reader.read(peer.endpoint, peer.extents[3:5]))


@pytest.mark.parametrize("after", [1, 3])
def test_extent_reused_while_it_is_read_is_lease_lost(driver: str, after: int) -> None:
    with large_pair(driver) as (peer, reader, failpoint):
        failpoint.arm(peer, "reuse", after)
        with pytest.raises(LeaseLost):
            reader.read(peer.endpoint, peer.extents)


def test_flipped_bit_is_block_corrupt(peer: PeerProcess, reader: Reader) -> None:
    peer.ask("flip", offset=peer.extents[9].offset + 12_345)
    with pytest.raises(BlockCorrupt):
        reader.read(peer.endpoint, [peer.extents[9]])
    peer.ask("flip", offset=peer.extents[9].offset + 12_345)
    assert_content(peer, [8, 9], reader.read(peer.endpoint, peer.extents[8:10]))


def test_swapped_blocks_are_block_corrupt(peer: PeerProcess, reader: Reader) -> None:
    with pytest.raises(BlockCorrupt):
        reader.read(peer.endpoint, [replace(peer.extents[1], offset=peer.extents[2].offset)])


def test_other_incarnation_is_stale(peer: PeerProcess, reader: Reader) -> None:
    with pytest.raises(StaleIncarnation):
        reader.read(peer.endpoint, [replace(peer.extents[0], incarnation=8)])
    with pytest.raises(StaleIncarnation):
        reader.read(replace(peer.endpoint, incarnation=8), [replace(peer.extents[0], incarnation=8)])
    assert_content(peer, [0], reader.read(peer.endpoint, [peer.extents[0]]))


@pytest.mark.parametrize(
    "change",
    [
        {"segment": 2},
        {"segment": 0},
        {"offset": 1},
        {"offset": 32 * 368_640},
        {"offset": 2**63},
        {"offset": -1},
        {"length": 368_639, "offset": 2},
        {"generation": 2**64},
    ],
    ids=str,
)
def test_nonsense_extent_is_invalid(peer: PeerProcess, reader: Reader, change: dict[str, int]) -> None:
    with pytest.raises(InvalidRequest):
        reader.read(peer.endpoint, [replace(peer.extents[0], **change)])
    assert_content(peer, [0], reader.read(peer.endpoint, [peer.extents[0]]))


def test_target_of_another_size_or_read_only_is_invalid(peer: PeerProcess, reader: Reader) -> None:
    extent = peer.extents[0]
    for target in (memoryview(bytearray(extent.length - 1)), memoryview(bytes(extent.length))):
        with pytest.raises(InvalidRequest):
            reader.call(reader.driver.read(peer.endpoint, [Read(extent, target)], 1.0))


def test_survives_fuzzed_extents_and_descriptors(peer: PeerProcess, reader: Reader) -> None:
    good = peer.extents[0]
    number = st.one_of(st.integers(-1, 2**65), st.integers(0, 40), st.sampled_from([good.offset, good.length]))
    extents = st.builds(
        replace,
        st.just(good),
        incarnation=st.sampled_from([good.incarnation, 0, 2**64 - 1]),
        segment=number,
        offset=number,
        length=st.integers(1, 100_000),
        generation=number,
    )
    # Not the address bytes: a fuzzed address could name a stranger.
    descriptors = st.one_of(
        st.binary(max_size=64),
        st.integers(0, len(peer.endpoint.descriptor) - 1).map(lambda size: peer.endpoint.descriptor[:size]),
        st.integers(0, 16).map(lambda at: _flipped(peer.endpoint.descriptor, at)),
    )

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(extents, st.one_of(st.none(), descriptors))
    def refused(extent: object, descriptor: bytes | None) -> None:
        endpoint = peer.endpoint if descriptor is None else replace(peer.endpoint, descriptor=descriptor)
        with pytest.raises(PandoError):
            reader.read(endpoint, [extent], 2.0)  # type: ignore[list-item]

    refused()
    assert peer.ask("ping") == "pong"
    assert_content(peer, [1], reader.read(peer.endpoint, [peer.extents[1]]))


def _flipped(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 0x10
    return bytes(changed)


@pytest.mark.parametrize("after", [1, 5])
def test_peer_killed_in_the_middle_of_a_read(driver: str, after: int) -> None:
    with large_pair(driver) as (peer, reader, failpoint):
        failpoint.arm(peer, "SIGKILL", after)
        targets = [bytearray(extent.length) for extent in peer.extents]
        began_at = time.monotonic()
        with pytest.raises(PeerLost):
            reader.call(reader.driver.read(peer.endpoint, reads(peer.extents, targets), 60.0))
        assert time.monotonic() - began_at < NOTICED_S, "timed out instead of noticing"
        assert stays_poisoned(targets)


@pytest.mark.parametrize("after", [1, 5])
def test_peer_frozen_in_the_middle_of_a_read(driver: str, after: int) -> None:
    with large_pair(driver) as (peer, reader, failpoint):
        reader.read(peer.endpoint, peer.extents[:1])
        failpoint.arm(peer, "SIGSTOP", after)
        targets = [bytearray(extent.length) for extent in peer.extents]
        began_at = time.monotonic()
        with contextlib.nullcontext() if driver == "shm" else pytest.raises(PeerLost):
            reader.call(reader.driver.read(peer.endpoint, reads(peer.extents, targets), DEADLINE_S))
        assert time.monotonic() - began_at < NOTICED_S
        assert stays_poisoned(targets)
        peer.resume()
        assert peer.ask("ping") == "pong"
        assert stays_poisoned(targets)
        assert_content(peer, [2], reader.read(peer.endpoint, [peer.extents[2]]))
        assert all(set(target) == {POISON} for target in targets)


def test_frozen_before_the_first_read_ends_within_the_deadline(driver: str) -> None:
    with large_pair(driver) as (peer, reader, _):
        peer.stop()
        targets = [bytearray(extent.length) for extent in peer.extents]
        began_at = time.monotonic()
        with pytest.raises(PeerLost):
            reader.call(reader.driver.read(peer.endpoint, reads(peer.extents, targets), DEADLINE_S))
        assert time.monotonic() - began_at < NOTICED_S
        peer.resume()
        assert peer.ask("ping") == "pong"
        assert stays_poisoned(targets)
        assert_content(peer, [0], reader.read(peer.endpoint, peer.extents[:1]))


def test_dead_peer_is_lost_at_once(driver: str, reader: Reader) -> None:
    with PeerProcess(Spec(driver)) as peer:
        reader.read(peer.endpoint, peer.extents[:1])
        peer.kill()
        for _ in range(2):
            began_at = time.monotonic()
            with pytest.raises(PeerLost):
                reader.read(peer.endpoint, peer.extents[:1], 60.0)
            assert time.monotonic() - began_at < NOTICED_S


def test_cancelled_read_ends_at_once_and_writes_no_more(driver: str) -> None:
    with large_pair(driver) as (peer, reader, failpoint):
        entered = threading.Event()
        failpoint.arm(peer, "SIGSTOP", 2)
        targets = [bytearray(extent.length) for extent in peer.extents]
        if driver == "shm":
            reader.driver._between_chunks = lambda: (entered.set(), time.sleep(0.02))  # type: ignore[attr-defined]
        future = reader.begin(reader.driver.read(peer.endpoint, reads(peer.extents, targets), 60.0))
        if driver == "shm":
            entered.wait()
        else:
            peer.wait_stopped()
        began_at = time.monotonic()
        future.cancel()
        with pytest.raises(concurrent.futures.CancelledError):
            future.result()
        reader.call(reader.driver.close())  # waits for the thread that was cancelled
        assert time.monotonic() - began_at < NOTICED_S
        peer.resume()
        assert stays_poisoned(targets)


def test_close_ends_running_reads(driver: str) -> None:
    with large_pair(driver) as (peer, reader, _):
        peer.stop()
        targets = [bytearray(extent.length) for extent in peer.extents]
        futures = [
            reader.begin(reader.driver.read(peer.endpoint, reads(peer.extents, targets), 60.0)) for _ in range(6)
        ]
        began_at = time.monotonic()
        reader.call(reader.driver.close())
        for future in futures:
            with pytest.raises(PeerLost):
                future.result(timeout=60)
        assert time.monotonic() - began_at < NOTICED_S
        with pytest.raises(PeerLost):
            reader.read(peer.endpoint, peer.extents[:1])
        peer.resume()
        assert stays_poisoned(targets)


def test_close_peer_then_read_again(peer: PeerProcess, reader: Reader) -> None:
    for _ in range(3):
        assert_content(peer, [6], reader.read(peer.endpoint, [peer.extents[6]]))
        reader.call(reader.driver.close_peer(peer.endpoint))


def test_concurrent_reads(peer: PeerProcess, reader: Reader) -> None:
    async def one(index: int) -> bool:
        target = bytearray(peer.spec.extent_bytes)
        await reader.driver.read(peer.endpoint, reads([peer.extents[index]], [target]), 30.0)
        return target == content(index, peer.spec.extent_bytes)

    futures = [reader.begin(one(place % 32)) for place in range(200)]
    assert all(future.result() for future in futures)


def test_thousands_of_reads_under_cpu_stress(driver: str) -> None:
    num_reads = int(10_000 * SCALE)
    with PeerProcess(replace(SMALL, driver=driver)) as peer, Reader(driver) as reader, cpu_stress():
        expected = [content(index, peer.spec.extent_bytes) for index in range(64)]

        async def batch(start: int) -> int:
            indices = [(start + place * 7) % 64 for place in range(20)]
            targets = [bytearray(peer.spec.extent_bytes) for _ in indices]
            await reader.driver.read(peer.endpoint, reads([peer.extents[i] for i in indices], targets), 60.0)
            return sum(target == expected[index] for target, index in zip(targets, indices, strict=True))

        verified = 0
        for start in range(0, num_reads // 20, 10):
            verified += sum(future.result() for future in [reader.begin(batch(start + k)) for k in range(10)])
        assert verified == num_reads


@contextlib.contextmanager
def cpu_stress() -> Iterator[None]:
    """One busy process per core."""
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def test_thousands_of_unknown_messages_leave_memory_flat(driver: str, peer: PeerProcess, reader: Reader) -> None:
    reader.read(peer.endpoint, peer.extents)
    throw_garbage(peer.endpoint, int(500 * SCALE))
    before = psutil.Process(peer.pid).memory_info().rss
    throw_garbage(peer.endpoint, int(10_000 * SCALE))
    growth = psutil.Process(peer.pid).memory_info().rss - before
    assert growth < 30 * 1024 * 1024, growth
    assert peer.ask("ping") == "pong"
    assert_content(peer, [1], reader.read(peer.endpoint, [peer.extents[1]]))


def test_idle_drivers_use_no_cpu(peer: PeerProcess, reader: Reader) -> None:
    reader.read(peer.endpoint, peer.extents)
    process = psutil.Process(peer.pid)
    period_s, used = 1.5, []
    for _ in range(5):  # a driver that polls does so always; others in this process do something now and then
        theirs, mine = sum(process.cpu_times()[:2]), time.process_time()
        time.sleep(period_s)
        used.append(max(sum(process.cpu_times()[:2]) - theirs, time.process_time() - mine) / period_s)
        if used[-1] < 0.02:
            return
    raise AssertionError(f"CPU time per second: {used}")


def test_killed_owner_leaves_no_files(driver: str) -> None:
    places = [Path("/dev/shm"), Path("/tmp")]
    with PeerProcess(Spec(driver)) as peer, Reader(driver) as reader:
        reader.read(peer.endpoint, peer.extents)
        peer.kill()
        left = [entry for place in places for entry in place.iterdir() if "pando-region" in entry.name]
        assert left == []


def test_the_poison_watch_sees_a_late_byte() -> None:
    """Negative control for every assertion above that nothing lands later."""
    target = bytearray(100)
    late = threading.Timer(0.1, lambda: target.__setitem__(50, 0))
    late.start()
    assert not stays_poisoned([target])
    late.join()


def test_endpoint_is_for_its_driver(peer: PeerProcess, driver: str) -> None:
    assert isinstance(peer.endpoint, Endpoint)
    assert peer.endpoint.driver == driver
    assert signal.getsignal(signal.SIGSEGV) == signal.SIG_DFL  # a driver's library leaves fatal signals alone
