"""Both ways to move bytes: the right bytes, their XXH3, nothing beside them, and an end where one is asked for."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator

import pytest

from common.transport.build import COPYING
from common.transport.checksum import checksum
from common.transport.copying import Copying, NativeCopying, PlainCopying, Source

MIB = 1024 * 1024
LENGTHS = (1, 240, 241, 4095, 4096, 4097, 5120, 65_536, 262_143, 262_144, 262_145, 300_032, MIB, MIB + 1, 3 * MIB + 77)
BYTES = random.Random(7).randbytes(4 * MIB)


@pytest.fixture(params=["plain", "native"])
def copying(request: pytest.FixtureRequest) -> Copying:
    """Each of them."""
    if request.param == "plain":
        return PlainCopying()
    assert COPYING.path().exists(), "the C++ copying is not built: python -m common.transport.build"
    return NativeCopying(COPYING.path())


@pytest.fixture
def stream() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def nothing() -> None:
    """Go on."""


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("at", "into"), [(0, 0), (1, 0), (0, 1), (13, 32)])
def test_copies_and_hashes(copying: Copying, length: int, at: int, into: int) -> None:
    target = bytearray(b"\xee") * (into + length + 64)
    found = copying.copy(memoryview(target)[into : into + length], Source.of(memoryview(BYTES)), at, nothing)
    assert found == checksum(BYTES[at : at + length])
    assert target == b"\xee" * into + BYTES[at : at + length] + b"\xee" * 64


@pytest.mark.parametrize("length", LENGTHS)
def test_receives_and_hashes(copying: Copying, stream: tuple[socket.socket, socket.socket], length: int) -> None:
    target = bytearray(length + 64)
    sender = threading.Thread(target=stream[0].sendall, args=(BYTES[:length] + b"behind",))
    sender.start()
    assert copying.receive(stream[1], memoryview(target)[:length]) == checksum(BYTES[:length])
    sender.join()
    assert target == BYTES[:length] + bytes(64)
    assert stream[1].recv(16) == b"behind"


def test_one_flipped_bit_is_another_sum(copying: Copying) -> None:
    source, target = bytearray(BYTES[:300_000]), memoryview(bytearray(300_000))
    lent = Source.of(memoryview(source))
    right = copying.copy(target, lent, 0, nothing)
    for place in (0, 1023, 1024, 150_000, 299_936, 299_999):
        source[place] ^= 1
        assert copying.copy(target, lent, 0, nothing) != right, place
        source[place] ^= 1


def test_a_copy_ends_where_it_is_told(copying: Copying) -> None:
    target, asked = bytearray(4 * MIB), list[None]()

    def twice() -> None:
        asked.append(None)
        if len(asked) > 1:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        copying.copy(memoryview(target), Source.of(memoryview(BYTES)), 0, twice)
    num_copied = len(target.rstrip(b"\0"))
    assert 0 < num_copied <= MIB
    assert target[:num_copied] == BYTES[:num_copied]


def test_a_stream_that_ends_early(copying: Copying, stream: tuple[socket.socket, socket.socket]) -> None:
    stream[0].sendall(BYTES[:5000])
    stream[0].shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionResetError):
        copying.receive(stream[1], memoryview(bytearray(6000)))


def test_a_stream_that_breaks(copying: Copying) -> None:
    with socket.socket() as never_connected, pytest.raises(OSError, match="not connected"):
        copying.receive(never_connected, memoryview(bytearray(6000)))
