"""One stream out of frames that overlap: nothing twice, nothing missing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.base.errors import Leg, PeerLost
from common.rpc.stitch import Cut, Stitch


def test_frames_in_order_pass_whole() -> None:
    stitch = Stitch((), 0)
    assert stitch.accept(0, [1, 2], 0, 3, False) == Cut(0, 0)
    assert stitch.accept(2, [3], 3, 0, True) == Cut(0, 0)
    assert (stitch.token_ids, stitch.text_offset, stitch.num_new, stitch.finished) == ([1, 2, 3], 3, 3, True)


def test_what_was_sent_is_cut() -> None:
    stitch = Stitch([1, 2, 3], 5)
    assert stitch.accept(1, [2, 3, 4], 2, 7, False) == Cut(2, 3)
    assert (stitch.token_ids, stitch.text_offset, stitch.num_new) == ([1, 2, 3, 4], 9, 1)
    assert stitch.accept(0, [1, 2], 0, 2, False) == Cut(2, 2)
    assert (stitch.token_ids, stitch.text_offset) == ([1, 2, 3, 4], 9)


@pytest.mark.parametrize(("token_index", "text_offset"), [(4, 5), (3, 6)])
def test_a_gap_is_the_workers_fault_and_changes_nothing(token_index: int, text_offset: int) -> None:
    stitch = Stitch([1, 2, 3], 5)
    with pytest.raises(PeerLost) as caught:
        stitch.accept(token_index, [9], text_offset, 1, True)
    assert (caught.value.reason, caught.value.leg) == ("stream_gap", Leg.DECODE)
    assert (stitch.token_ids, stitch.text_offset, stitch.finished) == ([1, 2, 3], 5, False)


FRAMES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 3), st.integers(0, 3)), max_size=12)


@given(FRAMES)
def test_overlapping_frames_give_the_sequence_once(frames: list[tuple[int, int, int, int]]) -> None:
    """Worker tokens are 0, 1, 2, ... and text is the alphabet; each frame steps back a little."""
    tokens, text = list(range(100)), "abcdefghijklmnopqrstuvwxyz" * 4
    stitch = Stitch((), 0)
    got_tokens: list[int] = []
    got_text = ""
    for num_tokens, num_chars, back_tokens, back_chars in frames:
        index = max(0, len(got_tokens) - back_tokens)
        offset = max(0, len(got_text) - back_chars)
        ids, piece = tokens[index : index + num_tokens], text[offset : offset + num_chars]
        cut = stitch.accept(index, ids, offset, len(piece), False)
        got_tokens += ids[cut.num_tokens :]
        got_text += piece[cut.num_chars :]
        assert stitch.token_ids == got_tokens == tokens[: len(got_tokens)]
        assert got_text == text[: len(got_text)] and stitch.text_offset == len(got_text)
