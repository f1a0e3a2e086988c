"""One streamed chat completion of any OpenAI-compatible server, with its times."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson

_DATA = "data: "


@dataclass(slots=True)
class Sample:
    """One request. Times are monotonic seconds.

    Attributes:
        turn: of its conversation, from 0.
        chunks_s: arrival of every chunk with text.
        num_output_tokens: as the server's usage says; the number of chunks where it says nothing.
        num_cached_tokens: None where the server does not tell.
        error: why it gave no whole answer; empty when it did.
    """

    turn: int
    began_s: float = field(default_factory=time.monotonic)
    ended_s: float = 0.0
    chunks_s: list[float] = field(default_factory=list)
    text: str = ""
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_cached_tokens: int | None = None
    error: str = ""

    @property
    def ttft_s(self) -> float:
        """From sending to the first chunk with text."""
        return self.chunks_s[0] - self.began_s

    @property
    def e2e_s(self) -> float:
        """From sending to the end of the stream."""
        return self.ended_s - self.began_s

    @property
    def tpot_s(self) -> float | None:
        """(e2e - TTFT) / (tokens - 1); None for a single token."""
        return (self.e2e_s - self.ttft_s) / (self.num_output_tokens - 1) if self.num_output_tokens > 1 else None

    @property
    def itl_s(self) -> list[float]:
        """Gaps between chunks with text."""
        return [later - earlier for earlier, later in zip(self.chunks_s[:-1], self.chunks_s[1:], strict=True)]


async def ask(client: httpx.AsyncClient, body: dict[str, Any], turn: int) -> Sample:
    """Send one chat request; never raises for what the server or the network does, but notes it."""
    sample = Sample(turn)
    try:
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                sample.error = f"{response.status_code} {(await response.aread()).decode(errors='replace')[:200]}"
                return sample
            async for line in response.aiter_lines():
                if line.startswith(_DATA) and line != f"{_DATA}[DONE]":
                    _take(sample, orjson.loads(line.removeprefix(_DATA)))
    except httpx.HTTPError as error:
        sample.error = f"{type(error).__name__}: {error}"
    finally:
        sample.ended_s = time.monotonic()
    if not sample.error and not sample.chunks_s:
        sample.error = "no text came"
    sample.num_output_tokens = sample.num_output_tokens or len(sample.chunks_s)
    return sample


def _take(sample: Sample, event: dict[str, Any]) -> None:
    if "error" in event:
        sample.error = str(event["error"].get("message", event["error"]))
    for choice in event.get("choices", ()):
        text = choice["delta"].get("content")
        if text:
            sample.chunks_s.append(time.monotonic())
            sample.text += text
    usage = event.get("usage")
    if usage:
        sample.num_prompt_tokens = usage["prompt_tokens"]
        sample.num_output_tokens = usage["completion_tokens"]
        sample.num_cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
