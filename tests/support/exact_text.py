"""Text that is hard to stream, asked of a cluster letter by letter.

A constraint with one choice makes the model write a given string, whatever it would rather say. With logprobs no token
is jumped over, so each is drawn by a step of its own, and characters of many bytes arrive in parts.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

import httpx

ZWJ, VS16, KEYCAP = "\u200d", "\ufe0f", "\u20e3"
_EMOJI = "🙂🔥🧠👍🐈🚀💡🫠🦄🧪"
_ZWJ_EMOJI = ("👩‍👩‍👧‍👦", "👨🏽‍🚀", "🏳️‍🌈", "🧑🏿‍🤝‍🧑🏻", "❤️‍🔥", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "🇫🇷", "1️⃣", "👍🏾")
_CJK = "日本語漢字中文測試한국어あいうエオ𠮷𩸽"
_ARABIC = "السلام عليكم مرحبا ۱۲۳ לשלום"
_BASES = "aeionçñक가ะ"
_MARKS = "\u0300\u0301\u0308\u0323\u0327\u0332\u20d7\u064b\u0651\u094d\u0e48"


def random_text(choice: random.Random, num_parts: int) -> str:
    """A string of emoji, joined emoji, CJK, Arabic and letters under combining marks; never empty, never blank."""
    return "".join(_part(choice) for _ in range(num_parts))


def _part(choice: random.Random) -> str:
    kind = choice.randrange(6)
    if kind == 0:
        return choice.choice(_EMOJI)
    if kind == 1:
        return choice.choice(_ZWJ_EMOJI)
    if kind == 2:
        return choice.choice(_CJK) + choice.choice(("", ZWJ, "\u200c", VS16))
    if kind == 3:
        start = choice.randrange(len(_ARABIC) - 4)
        return _ARABIC[start : start + 4]
    if kind == 4:
        return choice.choice(_BASES) + "".join(choice.choices(_MARKS, k=choice.randint(1, 4)))
    return choice.choice(_EMOJI) + ZWJ + choice.choice(_EMOJI)


@dataclass(slots=True)
class Told:
    """What a client was told.

    Attributes:
        whole: the text of the answer that came in one piece.
        deltas: those of the stream, in order.
        spelled: `bytes` of the streamed tokens' logprobs; None where the door does not tell them.
    """

    whole: str = ""
    deltas: list[str] = field(default_factory=list)
    spelled: bytes | None = None


def faults(told: Told, wanted: str) -> list[str]:
    """What is not as it must be."""
    found = [] if told.whole == wanted else [f"whole: {told.whole!a}"]
    joined = "".join(told.deltas)
    found += [] if joined == told.whole else [f"joined: {joined!a}"]
    found += ["U+FFFD"] if any("\ufffd" in text for text in (told.whole, *told.deltas)) else []
    found += ["an empty stream"] if not any(told.deltas) else []
    if told.spelled is not None and told.spelled != wanted.encode():
        found.append(f"spelled: {told.spelled!r}")
    return found


async def ask_chat(client: httpx.AsyncClient, wanted: str) -> Told:
    """Over chat completions; the streamed tokens are spelled."""
    body = {"messages": [{"role": "user", "content": "Repeat."}], "choices": [wanted], "max_completion_tokens": 400}
    told = Told(whole=(await _whole(client, "/v1/chat/completions", body))["choices"][0]["message"]["content"])
    spelled = bytearray()
    for event in await _stream(client, "/v1/chat/completions", body | {"logprobs": True}):
        told.deltas.append(event["choices"][0]["delta"].get("content") or "")
        for token in (event["choices"][0]["logprobs"] or {}).get("content") or ():
            spelled += bytes(token["bytes"])
    told.spelled = bytes(spelled)
    return told


async def ask_completions(client: httpx.AsyncClient, wanted: str) -> Told:
    """Over text completions."""
    body = {"prompt": "Repeat.", "choices": [wanted], "max_tokens": 400}
    told = Told(whole=(await _whole(client, "/v1/completions", body))["choices"][0]["text"])
    events = await _stream(client, "/v1/completions", body | {"logprobs": 0})
    told.deltas = [event["choices"][0]["text"] for event in events]
    return told


async def ask_responses(client: httpx.AsyncClient, wanted: str) -> Told:
    """Over responses."""
    body = {"input": "Repeat.", "choices": [wanted], "max_output_tokens": 400, "store": False}
    answer = await _whole(client, "/v1/responses", body)
    told = Told(whole=answer["output"][0]["content"][0]["text"])
    include = {"include": ["message.output_text.logprobs"]}
    events = await _stream(client, "/v1/responses", body | include)
    told.deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    return told


DOORS = (ask_chat, ask_completions, ask_responses)


async def _whole(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> Any:
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def _stream(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[Any]:
    answer = await client.post(path, json=body | {"stream": True})
    assert answer.status_code == 200, answer.text
    lines = [line[6:] for line in answer.content.decode().split("\n") if line.startswith("data: {")]
    events = [json.loads(line) for line in lines]
    assert not any("error" in event and event["error"] for event in events), events[-1]
    return events
