"""The output stream: merging, stop strings, resuming, and that the first end is the only one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from common.base.errors import Internal, InvalidRequest
from common.sched.plan import TokenLogprobs
from common.sched.request import FinishReason, RequestUpdate
from common.tokenizer.detokenizer import IncrementalDetokenizer
from common.tokenizer.tokenizer import Tokenizer
from common.worker.output import OutputStream, Piece
from tests.support.tiny_vocab import tiny_tokenizer
from tests.support.worker_rig import make_request

Make = Callable[..., OutputStream]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return tiny_tokenizer(tmp_path)


@pytest.fixture
def stops() -> list[str]:
    """Filled with an entry for each call of `on_stop`."""
    return []


@pytest.fixture
def gaps() -> list[float]:
    return []


@pytest.fixture
def make(tokenizer: Tokenizer, stops: list[str], gaps: list[float]) -> Make:
    def make(output: str = "", sent_chars: int = 0, stop: tuple[str, ...] = (), min_tokens: int = 0) -> OutputStream:
        ticks = iter(range(1000))
        return OutputStream(
            make_request("r", [5, 6], output_ids=tokenizer.encode(output, False)),
            detokenizer=IncrementalDetokenizer(tokenizer, stop=stop, min_tokens=min_tokens),
            sent_chars=sent_chars,
            on_stop=lambda: stops.append("stop"),
            on_first_token=lambda now_s: gaps.append(-now_s),
            observe_gap=gaps.append,
            clock=lambda: float(next(ticks)),
        )

    return make


def feed(stream: OutputStream, tokenizer: Tokenizer, text: str) -> None:
    for token in tokenizer.encode(text, False):
        stream.push(token, None, None)


async def read_all(stream: OutputStream) -> list[Piece]:
    return [piece async for piece in stream.pieces()]


async def test_a_slow_reader_gets_one_piece(make: Make, tokenizer: Tokenizer, gaps: list[float]) -> None:
    stream = make()
    feed(stream, tokenizer, "abc")
    stream.end(FinishReason.LENGTH)
    (piece,) = await read_all(stream)
    assert piece.text == "abc" and len(piece.token_ids) == 3
    assert (piece.token_index, piece.text_offset, piece.finish_reason) == (0, 0, FinishReason.LENGTH)
    assert gaps == [0.0, 1.0, 1.0], "first token at 0, then a gap of 1 s each"
    assert stream.num_tokens == 3


async def test_a_fast_reader_gets_every_token(make: Make, tokenizer: Tokenizer) -> None:
    stream = make()
    pieces = stream.pieces()
    offsets = []
    for char in "abc":
        feed(stream, tokenizer, char)
        piece = await anext(pieces)
        offsets.append((piece.token_index, piece.text_offset, piece.text))
    assert offsets == [(0, 0, "a"), (1, 1, "b"), (2, 2, "c")]
    await pieces.aclose()


async def test_a_stop_string_ends_the_request_once(make: Make, tokenizer: Tokenizer, stops: list[str]) -> None:
    stream = make(stop=("ll",))
    feed(stream, tokenizer, "abxllyz")
    (piece,) = await read_all(stream)
    assert piece.text == "abx" and piece.stop_reason == "ll" and piece.finish_reason is FinishReason.STOP
    assert len(piece.token_ids) == 5, "tokens after the stop are not the client's"
    assert stops == ["stop"]


async def test_the_first_end_stays(make: Make, tokenizer: Tokenizer) -> None:
    """The token that completes a stop string is also the last one allowed."""
    stream = make(stop=("b",))
    request = make_request("r", [5])
    feed(stream, tokenizer, "a")
    (token,) = tokenizer.encode("b", False)
    stream.on_update(RequestUpdate(request, token_id=token, position=1, finish_reason=FinishReason.LENGTH))
    (piece,) = await read_all(stream)
    assert (piece.finish_reason, piece.stop_reason, piece.text) == (FinishReason.STOP, "b", "a")


async def test_text_that_was_held_back_comes_with_the_end(make: Make, tokenizer: Tokenizer) -> None:
    stream = make(stop=("bcd",))
    feed(stream, tokenizer, "abc")
    pieces = stream.pieces()
    assert (await anext(pieces)).text == "a"
    stream.end(FinishReason.LENGTH)
    last = await anext(pieces)
    assert (last.text, last.token_ids) == ("bc", [])


async def test_resuming_tells_no_token_again_and_no_character_twice(make: Make, tokenizer: Tokenizer) -> None:
    stream = make(output="abcd", sent_chars=2)
    feed(stream, tokenizer, "ef")
    stream.end(FinishReason.LENGTH)
    (piece,) = await read_all(stream)
    assert (piece.token_index, piece.text_offset, piece.text, len(piece.token_ids)) == (4, 2, "cdef", 2)


async def test_a_stop_string_across_the_break_is_found(make: Make, tokenizer: Tokenizer, stops: list[str]) -> None:
    stream = make(output="ab", sent_chars=1, stop=("bc",))
    assert not stream.ended
    feed(stream, tokenizer, "c")
    (piece,) = await read_all(stream)
    assert piece.text == "" and piece.finish_reason is FinishReason.STOP and stops == ["stop"]


async def test_a_resumed_output_that_had_its_stop_string_is_over(make: Make, stops: list[str]) -> None:
    stream = make(output="abc", sent_chars=1, stop=("c",))
    assert stream.ended and not stops
    (piece,) = await read_all(stream)
    assert (piece.text, piece.token_ids, piece.stop_reason) == ("b", [], "c")


def test_more_text_sent_than_there_is_makes_no_sense(make: Make) -> None:
    with pytest.raises(InvalidRequest) as refused:
        make(output="abc", sent_chars=4)
    assert refused.value.param == "text_offset"


async def test_an_error_comes_after_what_was_pending(make: Make, tokenizer: Tokenizer) -> None:
    stream = make()
    feed(stream, tokenizer, "ab")
    stream.on_error(Internal("boom"))
    pieces = stream.pieces()
    assert (await anext(pieces)).text == "ab"
    with pytest.raises(Internal, match="boom"):
        await anext(pieces)


async def test_logprobs_and_digests_stay_with_their_tokens(make: Make) -> None:
    stream = make()
    stream.push_prompt_logprobs([TokenLogprobs(6, -1.0, 1)])
    for token in (70, 71):
        stream.push(token, TokenLogprobs(token, -0.5, 1), bytes([token]))
    stream.end(FinishReason.LENGTH)
    (piece,) = await read_all(stream)
    assert [entry.token_id for entry in piece.logprobs] == piece.token_ids == [70, 71]
    assert piece.digests == [b"F", b"G"] and [entry.token_id for entry in piece.prompt_logprobs] == [6]
