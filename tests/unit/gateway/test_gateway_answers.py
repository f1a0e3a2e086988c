"""Frames to JSON: transcript, usage, logprobs, and the three writers."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from common.base.errors import Cancelled, Internal, PeerLost
from pando.v1 import types_pb2
from pando.v1.inference_pb2 import GenerateResponse, PromptInfo
from pando.v1.types_pb2 import CachedTokens, TokenLogprob, TopLogprob, Usage
from services.gateway.chat_writer import ChatWriter
from services.gateway.completions import CompletionWriter, Echo
from services.gateway.generation import Head
from services.gateway.logprobs import CompletionLogprobs, chat_logprobs, finite, token_string
from services.gateway.openai_types import ChatRequest, CompletionRequest
from services.gateway.sse import DONE
from services.gateway.transcript import Transcript
from services.gateway.usage import final_usage, running_usage

HEAD = Head("req-abc", "m", 7)
STOP = types_pb2.FINISH_REASON_STOP
LENGTH = types_pb2.FINISH_REASON_LENGTH


def frame(text: str = "", ids: tuple[int, ...] = (1,), *, choice: int = 0, **fields: Any) -> GenerateResponse:
    return GenerateResponse(choice=choice, text=text, token_ids=ids, **fields)


def last(text: str = "", *, choice: int = 0, reason: Any = STOP, **usage: Any) -> GenerateResponse:
    cost = Usage(**({"prompt_tokens": 3, "completion_tokens": 2} | usage))
    return frame(text, choice=choice, finish_reason=reason, usage=cost)


def logprob(token: bytes, value: float = -1.0, top: tuple[tuple[bytes, float], ...] = ()) -> TokenLogprob:
    return TokenLogprob(token_id=1, token=token, logprob=value, top=[TopLogprob(token=t, logprob=v) for t, v in top])


def chat_body(**fields: Any) -> ChatRequest:
    return ChatRequest.model_validate({"messages": [{"role": "user", "content": "hi"}], **fields})


def events(raw: bytes) -> list[dict[str, Any]]:
    return [orjson.loads(part.removeprefix(b"data: ")) for part in raw.split(b"\n\n") if part]


def stream(body: ChatRequest, frames: list[GenerateResponse]) -> list[dict[str, Any]]:
    transcript = Transcript(1, body.num_choices, keep=False)
    writer = ChatWriter(body, HEAD, transcript)
    raw = b"".join(writer.events(entry, transcript.add(0, entry)) for entry in frames)
    return events((raw + writer.tail()).removesuffix(DONE))


def test_transcript_numbers_slots_by_prompt_and_choice() -> None:
    transcript = Transcript(2, 3, keep=False)
    assert transcript.add(1, frame(choice=2)).index == 5
    assert [slot.index for slot in transcript.of_prompt(1)] == [3, 4, 5]
    assert transcript.num_prompts == 2 and transcript.slots[5].frames == []


def test_transcript_refuses_frames_that_belong_nowhere() -> None:
    transcript = Transcript(1, 1, keep=False)
    with pytest.raises(Internal):
        transcript.add(0, frame(choice=1))
    transcript.add(0, last())
    with pytest.raises(Internal):
        transcript.add(0, frame())


def test_an_open_choice_is_a_failure() -> None:
    transcript = Transcript(1, 2, keep=False)
    transcript.add(0, last(choice=0))
    with pytest.raises(PeerLost, match="choice 1"):
        transcript.check_complete()
    transcript.add(0, last(choice=1))
    transcript.check_complete()


def test_an_aborted_choice_has_no_finish_reason() -> None:
    with pytest.raises(Cancelled):
        Transcript(1, 1, keep=False).add(0, last(reason=types_pb2.FINISH_REASON_ABORT))


def test_usage_counts_a_prompt_once_and_what_no_choice_computed() -> None:
    transcript = Transcript(2, 2, keep=False)
    for prompt, choice, l1, l3 in ((0, 0, 1, 1), (0, 1, 3, 0), (1, 0, 0, 0), (1, 1, 3, 0)):
        cached = CachedTokens(l1=l1, l3=l3)
        transcript.add(
            prompt,
            last(choice=choice, cached_tokens=cached, prefill_s=0.5 + choice, transfer_bytes=5, decode_worker="d"),
        )
    usage = final_usage(transcript)
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (6, 8, 14)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 2, "cache_write_tokens": usage["prompt_tokens"] - 2}
    assert usage["pando"]["cached_tokens"] == {"l1": 1, "l2": 0, "l3": 1, "peer": 0}
    assert usage["prefill_time"] == 1.5 and usage["pando"]["transfer_bytes"] == 20
    assert usage["pando"]["decode_workers"] == ["d"] and usage["pando"]["prefill_workers"] == []


def test_running_usage_never_falls() -> None:
    transcript = Transcript(1, 1, keep=False)
    counts = []
    for entry in (
        frame(ids=(1, 2), prompt=PromptInfo(num_tokens=3)),
        frame(ids=(3,), usage=Usage(prompt_tokens=3, completion_tokens=3)),
        frame(ids=()),
        last(completion_tokens=4),
    ):
        transcript.add(0, entry)
        usage = running_usage(transcript)
        assert usage["prompt_tokens"] == 3 and type(usage["prompt_tokens_details"]["cached_tokens"]) is int
        counts.append(usage["completion_tokens"])
    assert counts == [2, 3, 3, 4]


def test_chat_stream_has_role_first_and_one_end() -> None:
    chunks = stream(chat_body(), [frame("a"), frame(""), frame("b"), last("c", reason=LENGTH)])
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["delta"] for choice in choices] == [
        {"role": "assistant", "content": ""},
        {"content": "a"},
        {"content": "b"},
        {"content": "c"},
    ]
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "length"]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert {chunk["id"] for chunk in chunks} == {"chatcmpl-abc"} and "usage" not in chunks[0]


def test_each_choice_of_a_stream_gets_its_role_and_end() -> None:
    frames = [frame("a"), frame("b", choice=1), last(choice=1), last()]
    chunks = stream(chat_body(n=2), frames)
    for index in (0, 1):
        mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert mine[0]["delta"]["role"] == "assistant"
        assert [choice["finish_reason"] for choice in mine] == [None, None, "stop"]


def test_usage_chunk_is_last_and_alone() -> None:
    chunks = stream(chat_body(stream=True, stream_options={"include_usage": True}), [frame("a"), last()])
    assert [chunk["usage"] is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    assert chunks[-1]["choices"] == []


def test_continuous_usage_is_on_every_chunk_with_tokens() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = stream(chat_body(stream=True, stream_options=options), [frame("a"), frame("b"), last(completion_tokens=3)])
    assert [chunk["usage"] and chunk["usage"]["completion_tokens"] for chunk in chunks] == [None, 1, 2, 3, 3]


def test_chat_logprobs_and_ids_stream_without_text() -> None:
    body = chat_body(logprobs=True, return_token_ids=True)
    first = frame("", (9,), logprobs=[logprob(b"\xf0\x9f")], prompt=PromptInfo(token_ids=[4, 5]))
    role, chunk, _ = stream(body, [first, last()])
    assert role["choices"][0]["prompt_token_ids"] == [4, 5]
    choice = chunk["choices"][0]
    assert choice["delta"] == {} and choice["token_ids"] == [9]
    assert choice["logprobs"]["content"][0] == {
        "token": "\ufffd", "logprob": -1.0, "bytes": [0xF0, 0x9F], "top_logprobs": [],
    }  # fmt: skip


def test_chat_document() -> None:
    transcript = Transcript(1, 1, keep=True)
    body = chat_body(logprobs=True, return_token_ids=True)
    writer = ChatWriter(body, HEAD, transcript)
    transcript.add(0, frame("a", logprobs=[logprob(b"a")], prompt=PromptInfo(num_tokens=3, token_ids=[7])))
    transcript.add(0, GenerateResponse(text="b", token_ids=[2], finish_reason=STOP, stop_reason="x", usage=Usage()))
    document = writer.document()
    choice = document["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "ab", "refusal": None}
    assert (choice["finish_reason"], choice["stop_reason"], choice["token_ids"]) == ("stop", "x", [1, 2])
    assert document["object"] == "chat.completion" and document["prompt_token_ids"] == [7]
    assert document["usage"]["completion_tokens"] == 2 and len(choice["logprobs"]["content"]) == 1


@pytest.mark.parametrize("streamed", [True, False])
def test_completion_echo_and_offsets(streamed: bool) -> None:
    body = CompletionRequest(prompt="日x", echo=True, logprobs=1, return_token_ids=True)
    transcript = Transcript(1, 1, keep=not streamed)
    writer = CompletionWriter(body, HEAD, transcript, [Echo("日x", b"\xe6")])
    prompt = PromptInfo(token_ids=[1, 2, 3], logprobs=[logprob(b"\x97\xa5"), logprob(b"x", top=((b"y", -0.5),))])
    frames = [frame("a", prompt=prompt, logprobs=[logprob(b"a")])]
    frames.append(
        GenerateResponse(text="b", token_ids=[2], logprobs=[logprob(b"b")], finish_reason=STOP, usage=Usage())
    )
    slot = transcript.add(0, frames[0])
    raw = writer.events(frames[0], slot) if streamed else b""
    transcript.add(0, frames[1])
    raw += writer.events(frames[1], slot) if streamed else b""
    choices = [event["choices"][0] for event in events(raw)] if streamed else [writer.document()["choices"][0]]
    assert "".join(choice["text"] for choice in choices) == "日xab"
    assert choices[-1]["finish_reason"] == "stop" and choices[0]["prompt_token_ids"] == [1, 2, 3]
    columns = {key: [v for choice in choices for v in choice["logprobs"][key]] for key in choices[0]["logprobs"]}
    assert columns["tokens"] == ["bytes:\\xe6", "bytes:\\x97\\xa5", "x", "a", "b"]
    assert columns["text_offset"] == [0, 0, 1, 2, 3]
    assert columns["token_logprobs"] == [None, -1.0, -1.0, -1.0, -1.0]
    assert columns["top_logprobs"][:3] == [None, {"bytes:\\x97\\xa5": -1.0}, {"y": -0.5, "x": -1.0}]


def test_completion_without_news_says_nothing() -> None:
    transcript = Transcript(1, 1, keep=False)
    writer = CompletionWriter(CompletionRequest(prompt="a"), HEAD, transcript, [])
    entry = frame("")
    assert writer.events(entry, transcript.add(0, entry)) == b"" and writer.tail() == DONE


def test_logprobs_are_always_numbers() -> None:
    assert finite(float("-inf")) == finite(float("nan")) == -9999.0 and finite(-0.5) == -0.5
    content = chat_logprobs([logprob(b"a", float("-inf"), ((b"b", float("-inf")),))])["content"][0]
    assert content["logprob"] == -9999.0 and content["top_logprobs"][0]["bytes"] == [98]


def test_look_alike_tokens_keep_their_own_keys() -> None:
    entry = logprob(b"\xc3", -1.0, ((b"\xe2\x82", -0.125), (b"\xe2", -0.25), (b"a", -0.375)))
    piece = CompletionLogprobs().piece([entry])
    assert piece["top_logprobs"] == [
        {"bytes:\\xe2\\x82": -0.125, "bytes:\\xe2": -0.25, "a": -0.375, "bytes:\\xc3": -1.0}
    ]
    assert token_string("é".encode()) == "é"


def test_best_of_tells_the_likeliest_of_each_prompt() -> None:
    body = CompletionRequest(prompt=["a", "b"], n=2, best_of=3)
    transcript = Transcript(2, 3, keep=True)
    values = {(0, 0): -3.0, (0, 1): -1.0, (0, 2): -2.0, (1, 0): -1.0, (1, 1): float("-inf"), (1, 2): -1.5}
    for (prompt, choice), value in values.items():
        text = f"{prompt}.{choice}"
        transcript.add(prompt, frame(text, choice=choice, logprobs=[logprob(b"x", value)]))
        transcript.add(prompt, last(choice=choice))
    document = CompletionWriter(body, HEAD, transcript, []).document()
    told = [(choice["index"], choice["text"], choice["logprobs"]) for choice in document["choices"]]
    assert told == [(0, "0.1", None), (1, "0.2", None), (2, "1.0", None), (3, "1.2", None)]
    assert document["usage"]["completion_tokens"] == 12, "all that were drawn"
