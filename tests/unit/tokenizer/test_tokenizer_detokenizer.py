"""Streaming text: characters stay whole, stop strings never leak, resume stands at the same offset."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.tokenizer.detokenizer import IncrementalDetokenizer
from common.tokenizer.tokenizer import Tokenizer
from tests.support.tiny_vocab import tiny_tokenizer


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return tiny_tokenizer(tmp_path)


def byte_ids(tokenizer: Tokenizer, content: bytes) -> list[int]:
    """One token per byte."""
    by_bytes = {tokenizer.token_bytes(index): index for index in range(2, 258)}
    return [by_bytes[bytes([byte])] for byte in content]


def pieces(detokenizer: IncrementalDetokenizer, ids: list[int]) -> list[str]:
    return [*(detokenizer.feed([index]) for index in ids), detokenizer.finish()]


def test_a_character_is_sent_when_it_is_whole(tokenizer: Tokenizer) -> None:
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert pieces(detokenizer, byte_ids(tokenizer, "a🙂é".encode())) == ["a", "", "", "", "🙂", "", "é", ""]
    assert detokenizer.text_offset == 3
    assert detokenizer.num_tokens == 7


@pytest.mark.parametrize("content", [b"\xf0\x9f\x99", b"\xf0\x9fab", b"\xff\xfe", b"\xe6\x97\xf0\x9f", b"\xed\xa0\x80"])
def test_invalid_bytes_become_one_mark_each(tokenizer: Tokenizer, content: bytes) -> None:
    ids = byte_ids(tokenizer, content)
    assert "".join(pieces(IncrementalDetokenizer(tokenizer), ids)) == content.decode(errors="replace")


def test_special_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("he<|end|>lo<tool>", add_special=False)
    assert "".join(pieces(IncrementalDetokenizer(tokenizer), ids)) == "helo<tool>"
    shown = IncrementalDetokenizer(tokenizer, skip_special_tokens=False)
    assert "".join(pieces(shown, ids)) == "he<|end|>lo<tool>"


def test_beginning_of_a_stop_string_is_held_back(tokenizer: Tokenizer) -> None:
    detokenizer = IncrementalDetokenizer(tokenizer, stop=["STOP"])
    assert pieces(detokenizer, byte_ids(tokenizer, b"aSTSTO")) == ["a", "", "", "ST", "", "", "STO"]
    assert detokenizer.stop_match is None


def test_stop_cuts_the_text_and_ends_consumption(tokenizer: Tokenizer) -> None:
    ids = byte_ids(tokenizer, b"abSTOPcd")
    detokenizer = IncrementalDetokenizer(tokenizer, stop=["STOP"])
    assert detokenizer.feed(ids) == "ab"
    assert (detokenizer.stop_match, detokenizer.num_tokens, detokenizer.text_offset) == ("STOP", 6, 2)
    assert detokenizer.feed(ids) == ""
    assert detokenizer.finish() == ""
    kept = IncrementalDetokenizer(tokenizer, stop=["STOP"], include_stop_str=True)
    assert kept.feed(ids) + kept.finish() == "abSTOP"


def test_text_behind_the_stop_in_the_same_token_is_cut(tokenizer: Tokenizer) -> None:
    hello = tokenizer.encode("hel", add_special=False)
    assert len(hello) == 1
    for include, expected in ((False, "h"), (True, "he")):
        detokenizer = IncrementalDetokenizer(tokenizer, stop=["e"], include_stop_str=include)
        assert detokenizer.feed(hello) == expected


@pytest.mark.parametrize(
    ("stops", "text", "expected", "match"),
    [
        (["abcdef", "cd"], "xabcdef", "xab", "cd"),
        (["cd", "bcd"], "abcd", "a", "bcd"),
        (["aab"], "aaab", "a", "aab"),
        (["abab", "abc"], "ababc", "", "abab"),
        (["é日"], "xé日y", "x", "é日"),
        (["\n\n"], "a\n\n\nb", "a", "\n\n"),
        (["\ufffd"], "ok", "ok", None),
    ],
)
def test_which_stop_wins(tokenizer: Tokenizer, stops: list[str], text: str, expected: str, match: str | None) -> None:
    for ids in (byte_ids(tokenizer, text.encode()), tokenizer.encode(text, add_special=False)):
        detokenizer = IncrementalDetokenizer(tokenizer, stop=stops)
        assert "".join(pieces(detokenizer, ids)) == expected
        assert detokenizer.stop_match == match


def test_stop_before_min_tokens_is_plain_text(tokenizer: Tokenizer) -> None:
    ids = byte_ids(tokenizer, b"aXbXc")
    for min_tokens, expected in ((0, "a"), (2, "a"), (3, "aXb"), (4, "aXb"), (5, "aXbXc")):
        detokenizer = IncrementalDetokenizer(tokenizer, stop=["X"], min_tokens=min_tokens)
        assert "".join(pieces(detokenizer, ids)) == expected, min_tokens


def test_incomplete_character_may_complete_a_stop_at_the_end(tokenizer: Tokenizer) -> None:
    detokenizer = IncrementalDetokenizer(tokenizer, stop=["b\ufffd"])
    assert "".join(pieces(detokenizer, byte_ids(tokenizer, b"ab\xe6"))) == "a"
    assert detokenizer.stop_match == "b\ufffd"


def test_resume_continues_at_the_same_offset(tokenizer: Tokenizer) -> None:
    ids = byte_ids(tokenizer, "aé STO 🙂STOP".encode())
    whole = IncrementalDetokenizer(tokenizer, stop=["STOP"])
    sent = [whole.feed([index]) for index in ids]
    for cut in range(len(ids)):
        resumed = IncrementalDetokenizer(tokenizer, stop=["STOP"])
        resumed.feed(ids[:cut])
        assert resumed.text_offset == len("".join(sent[:cut]))
        assert [resumed.feed([index]) for index in ids[cut:]] == sent[cut:]


def test_ignored_stop_may_overlap_the_one_that_counts(tokenizer: Tokenizer) -> None:
    detokenizer = IncrementalDetokenizer(tokenizer, stop=["aba"], min_tokens=5)
    assert "".join(pieces(detokenizer, byte_ids(tokenizer, b"ababac"))) == "ab"
    assert detokenizer.stop_match == "aba"
