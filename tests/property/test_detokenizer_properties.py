"""The detokenizer against the naive way: decode everything, then look for stop strings."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from common.tokenizer.detokenizer import IncrementalDetokenizer
from common.tokenizer.tokenizer import Tokenizer
from tests.support.tiny_vocab import tiny_tokenizer

SAMPLES = [
    "👩‍👩‍👧",
    "🏳️‍🌈",
    "日本語",
    "한국",
    "مرحبا",
    "e\u0301\u0327",
    "नमस्ते",
    "abab",
    "aab",
    "\r\n",
    "\x00",
    "STOP",
    "\U0010ffff",
]

texts = st.lists(st.one_of(st.sampled_from(SAMPLES), st.text(max_size=6)), max_size=8).map("".join)
contents = st.one_of(texts.map(str.encode), st.binary(max_size=40))
small_texts = st.text(alphabet="ab日", max_size=30)
small_stops = st.lists(st.text(alphabet="ab日", min_size=1, max_size=5), max_size=3)


@cache
def tokenizer() -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        return tiny_tokenizer(Path(folder))


@cache
def ids_by_bytes() -> dict[bytes, int]:
    return {tokenizer().token_bytes(index): index for index in range(2, tokenizer().vocab_size)}


@st.composite
def token_splits(draw: st.DrawFn, content: bytes) -> list[int]:
    """A random way to spell `content` in tokens."""
    ids: list[int] = []
    start = 0
    while start < len(content):
        fitting = [token for token in ids_by_bytes() if token and content.startswith(token, start)]
        token = draw(st.sampled_from(sorted(fitting)))
        ids.append(ids_by_bytes()[token])
        start += len(token)
    return ids


def naive_cut(text: str, stops: Sequence[str]) -> str:
    """Text before the stop string that completes first, the longest of those that complete together."""
    for end in range(1, len(text) + 1):
        matches = [stop for stop in stops if text.endswith(stop, 0, end)]
        if matches:
            return text[: end - max(map(len, matches))]
    return text


def streamed(ids: list[int], stops: Sequence[str], group: int = 1) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer(), stop=stops)
    pieces = [detokenizer.feed(ids[start : start + group]) for start in range(0, len(ids), group)]
    pieces.append(detokenizer.finish())
    assert detokenizer.text_offset == sum(map(len, pieces))
    return pieces


@given(st.data(), contents)
def test_joined_pieces_are_the_decoding_of_the_whole(data: st.DataObject, content: bytes) -> None:
    ids = data.draw(token_splits(content))
    pieces = streamed(ids, ())
    assert "".join(pieces) == content.decode(errors="replace")
    for count in range(len(ids)):
        sent = "".join(pieces[: count + 1])
        decoded = tokenizer().decode(ids[: count + 1], skip_special=True)
        assert decoded.startswith(sent)
        assert len(decoded) - len(sent) <= 1, "more is held back than one unfinished character"


@given(st.data(), small_texts, small_stops, st.integers(1, 4))
def test_stops_match_the_naive_search_for_every_split(
    data: st.DataObject, text: str, stops: list[str], group: int
) -> None:
    ids = data.draw(token_splits(text.encode()))
    expected = naive_cut(text, stops)
    assert "".join(streamed(ids, stops, group)) == expected


@given(st.data(), small_texts, small_stops)
def test_nothing_is_held_longer_than_a_stop_could_need(data: st.DataObject, text: str, stops: list[str]) -> None:
    ids = data.draw(token_splits(text.encode()))
    pieces = streamed(ids, stops)
    if naive_cut(text, stops) != text:
        return
    for count in range(1, len(ids) + 1):
        whole = b"".join(map(tokenizer().token_bytes, ids[:count])).decode(errors="ignore")
        held = whole[len("".join(pieces[:count])) :]
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


@given(st.data(), small_texts, small_stops)
def test_resume_emits_what_the_first_worker_would(data: st.DataObject, text: str, stops: list[str]) -> None:
    ids = data.draw(token_splits(text.encode()))
    cut = data.draw(st.integers(0, len(ids)))
    whole, resumed = (IncrementalDetokenizer(tokenizer(), stop=stops) for _ in range(2))
    whole.feed(ids[:cut])
    for index in ids[:cut]:
        resumed.feed([index])
    assert resumed.text_offset == whole.text_offset
    assert [resumed.feed(ids[cut:]), resumed.finish()] == [whole.feed(ids[cut:]), whole.finish()]


def test_the_oracle_sees_a_detokenizer_that_decodes_token_by_token() -> None:
    """Negative control: decoding each token alone splits characters and must differ from the whole."""
    ids = [ids_by_bytes()[bytes([byte])] for byte in "🙂".encode()]
    alone = "".join(tokenizer().decode([index], skip_special=True) for index in ids)
    assert alone != "🙂" == "".join(streamed(ids, ()))
    assert naive_cut("xaby", ["ab"]) != "xaby"
