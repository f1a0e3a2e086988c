"""Frames: whatever the pieces in which they come, they come out whole; what is no frame ends the stream."""

from __future__ import annotations

import random
import struct

import pytest

from common.rpc import frames
from common.rpc.frames import MAX_BODY_BYTES, Frame, Frames, hello, pack

SENT = [Frame(1, 7, 0.5, b"body"), Frame(2, frames.CANCEL, 0.0, b""), Frame(2**32 - 1, frames.OK, 0.0, bytes(70_000))]
STREAM = b"".join(pack(frame.call, frame.what, frame.body, frame.seconds) for frame in SENT)


def head(length: int = 0, zero: int = 0, seconds: float = 0.0) -> bytes:
    return struct.pack("<IIHHf", length, 1, 1, zero, seconds)


def fed(*pieces: bytes) -> list[Frame]:
    reader = Frames()
    return [frame for piece in pieces for frame in reader.feed(piece)]


def test_all_in_one_piece() -> None:
    assert fed(STREAM) == SENT


def test_byte_by_byte() -> None:
    short = STREAM[: -len(SENT[2].body)]
    assert fed(*(short[at : at + 1] for at in range(len(short)))) == SENT[:2]


@pytest.mark.parametrize("seed", range(50))
def test_in_any_pieces(seed: int) -> None:
    cuts = sorted(random.Random(seed).sample(range(len(STREAM)), 6))
    pieces = [STREAM[start:end] for start, end in zip([0, *cuts], [*cuts, len(STREAM)], strict=True)]
    assert fed(*pieces) == SENT


def test_what_is_cut_off_never_comes_out() -> None:
    assert fed(STREAM[:-1]) == SENT[:2]


def test_a_large_frame_in_small_pieces_is_looked_at_once() -> None:
    """Or each byte of a dawdler would cost a copy of all that came before it."""
    reader = Frames()
    stream = pack(1, 1, bytes(MAX_BODY_BYTES))
    assert list(reader.feed(stream[:1000])) == []
    kept = reader._rest
    for at in range(1000, 2000):
        assert list(reader.feed(stream[at : at + 1])) == []
    assert reader._rest is kept and len(kept) == 2000
    assert [len(frame.body) for frame in reader.feed(stream[2000:])] == [MAX_BODY_BYTES]
    assert not reader._rest


@pytest.mark.parametrize(
    "data",
    [
        head(length=MAX_BODY_BYTES + 1),
        head(zero=1),
        head(seconds=float("nan")),
        head(seconds=float("inf")),
        head(seconds=-1.0),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01" + bytes(range(200, 220)),
    ],
)
def test_what_is_no_frame_is_refused_by_its_head(data: bytes) -> None:
    reader = Frames()
    with pytest.raises(ValueError, match="no frame"):
        list(reader.feed(data))
    with pytest.raises(ValueError, match="no frame"):
        fed(pack(1, 1, b"good"), data)


def test_the_largest_body_travels_and_no_larger() -> None:
    assert len(fed(pack(1, 1, bytes(MAX_BODY_BYTES)))[0].body) == MAX_BODY_BYTES
    with pytest.raises(AssertionError):
        pack(1, 1, bytes(MAX_BODY_BYTES + 1))


def test_a_deadline_beyond_all_bounds_is_a_long_one() -> None:
    assert fed(pack(1, 1, b"", float("inf")))[0].seconds == 86400.0


def test_a_hello_means_one_life_of_one_protocol() -> None:
    assert hello(1) != hello(2) and hello(1)[:8] == hello(2)[:8]
