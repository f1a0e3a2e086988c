"""The keyed tag: a changed bit anywhere changes it, and key files are refused when others could read them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from common.base.errors import InvalidRequest
from common.transport.tag import TAG_BYTES, Tagger, load_tag_key

KEY = bytes(range(32))
ARGUMENTS = (b"namespace", b"name", b"payload", 3)


def test_is_what_it_was() -> None:
    """A golden vector: workers of two builds must agree."""
    assert Tagger(KEY).tag(*ARGUMENTS).hex() == "eaeebcae226774f6b597e5905c50f211"
    assert Tagger(KEY).key_id.hex() == "c500c544c87bc4978dff12ec0208e252"


def test_takes_all_kinds_of_buffers() -> None:
    payload = bytes(1000)
    tags = {Tagger(KEY).tag(b"n", b"h", kind(payload)) for kind in (bytes, bytearray, memoryview)}
    assert len(tags) == 1 and len(tags.pop()) == TAG_BYTES


@pytest.mark.parametrize(
    "other",
    [
        (b"namespacen", b"ame", b"payload", 3),
        (b"namespace", b"namep", b"ayload", 3),
        (b"namespace", b"name", b"payload", 4),
        (b"namespace", b"name", b"payload\0", 3),
        (b"namespace", b"name", b"paylobd", 3),
        (b"", b"", b"", 0),
    ],
)
def test_feels_every_field(other: tuple[bytes, bytes, bytes, int]) -> None:
    tagger = Tagger(KEY)
    assert tagger.matches(tagger.tag(*ARGUMENTS), *ARGUMENTS)
    assert not tagger.matches(tagger.tag(*ARGUMENTS), *other)


@given(st.binary(min_size=1, max_size=200), st.data())
def test_feels_every_bit(payload: bytes, data: st.DataObject) -> None:
    tagger = Tagger(KEY)
    tag = tagger.tag(b"n", b"h", payload)
    bit = data.draw(st.integers(0, 8 * len(payload) - 1))
    flipped = bytearray(payload)
    flipped[bit // 8] ^= 1 << bit % 8
    assert tagger.matches(tag, b"n", b"h", payload)
    assert not tagger.matches(tag, b"n", b"h", flipped)


def test_another_key_is_another_tag() -> None:
    one, other = Tagger(KEY), Tagger(KEY[:-1] + b"\xff")
    assert one.tag(*ARGUMENTS) != other.tag(*ARGUMENTS)
    assert one.key_id != other.key_id
    assert not one.matches(blake3(ARGUMENTS[2], key=KEY).digest(length=TAG_BYTES), *ARGUMENTS)


def test_keys_may_be_longer_than_32_bytes_and_all_of_them_counts() -> None:
    assert Tagger(b"k" * 64).tag(*ARGUMENTS) != Tagger(b"k" * 63 + b"l").tag(*ARGUMENTS)


def test_no_key_makes_zeros() -> None:
    tagger = Tagger(None)
    assert not tagger.keyed
    assert tagger.tag(*ARGUMENTS) == tagger.key_id == bytes(TAG_BYTES)
    assert tagger.matches(bytes(TAG_BYTES), *ARGUMENTS)
    assert not Tagger(KEY).matches(bytes(TAG_BYTES), *ARGUMENTS)


def test_a_tag_of_another_length_does_not_match() -> None:
    tagger = Tagger(KEY)
    assert not tagger.matches(tagger.tag(*ARGUMENTS)[:-1], *ARGUMENTS)
    assert not tagger.matches(b"", *ARGUMENTS)


def key_file(folder: Path, content: bytes, mode: int = 0o600) -> Path:
    path = folder / "tag.key"
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_loads_a_key_without_its_line_end(tmp_path: Path, end: bytes) -> None:
    assert load_tag_key(key_file(tmp_path, b"0123456789abcdef" * 4 + end)) == b"0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        (b"short\n", 0o600, "holds 5 bytes"),
        (b"k" * 31, 0o600, "holds 31 bytes"),
        (b"", 0o600, "holds 0 bytes"),
        (b"k" * 5000, 0o600, "32 to 4096"),
        (b"k" * 64, 0o640, "mode 0640"),
        (b"k" * 64, 0o604, "mode 0604"),
        (b"k" * 64, 0o620, "mode 0620"),
    ],
)
def test_refuses_bad_key_files(tmp_path: Path, content: bytes, mode: int, why: str) -> None:
    path = key_file(tmp_path, content, mode)
    with pytest.raises(InvalidRequest, match=why) as caught:
        load_tag_key(path)
    assert str(path) in caught.value.message
    assert "kkkk" not in caught.value.message


def test_refuses_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(InvalidRequest, match="not a plain file"):
        load_tag_key(tmp_path / "fifo")
    with pytest.raises(InvalidRequest, match="not a plain file"):
        load_tag_key(tmp_path)
    with pytest.raises(InvalidRequest, match=r"missing.*No such file"):
        load_tag_key(tmp_path / "missing")
