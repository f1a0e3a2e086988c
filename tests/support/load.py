"""Clients that press on a cluster while something happens to it, and what each of them saw.

Every client is a coroutine with one streamed completion at a time; a `Reply` says what came and when, so that a test
can tell an unbroken stream from an error, and an error from silence.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson

COMPLETIONS = "/v1/completions"
_DATA = "data: "


@dataclass(slots=True)
class Reply:
    """What one request gave.

    Attributes:
        status: of the HTTP answer; 0 when there was none.
        text: of its only choice.
        finish: its finish_reason, empty when none came.
        error: `code` of the error body or event; empty when none came.
        lost: the connection broke, as it does when the gateway dies.
        prompt_tokens, cached_tokens: as the usage says.
        began_s, ended_s, times_s: on the monotonic clock; `times_s` of every piece of text.
    """

    prompt: str
    status: int = 0
    text: str = ""
    finish: str = ""
    error: str = ""
    lost: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    began_s: float = field(default_factory=time.monotonic)
    ended_s: float = 0.0
    times_s: list[float] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """An answer from its start to its finish reason."""
        return self.status == 200 and bool(self.finish) and not self.error and not self.lost

    @property
    def has_typed_end(self) -> bool:
        """Exactly one of: a whole answer, a status with an error code, an error event."""
        return not self.lost and bool(self.finish) != bool(self.error)


@dataclass(slots=True)
class Load:
    """Sends requests to one gateway.

    Attributes:
        started: requests whose first text has come.
    """

    client: httpx.AsyncClient
    model: str
    started: int = 0

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, model: str, timeout_s: float = 120.0) -> AsyncIterator[Load]:
        """A load generator with its own connections."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=url, timeout=timeout_s, limits=limits, verify=False) as client:
            yield cls(client, model)

    async def ask(self, prompt: str, max_tokens: int, leave_after: int | None = None, **fields: Any) -> Reply:
        """One greedy streamed completion; leaves after `leave_after` pieces of text, if that is given."""
        body = {"model": self.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": True}
        body |= {"ignore_eos": True, "stream_options": {"include_usage": True}, **fields}
        reply = Reply(prompt)
        try:
            async with self.client.stream("POST", COMPLETIONS, json=body) as response:
                reply.status = response.status_code
                if response.status_code != 200:
                    reply.error = orjson.loads(await response.aread())["error"]["code"]
                    return reply
                if leave_after == 0:
                    return reply
                await self._follow(response, reply, leave_after)
        except httpx.TransportError as error:
            reply.lost = f"{type(error).__name__}: {error}"
        finally:
            reply.ended_s = time.monotonic()
        return reply

    async def _follow(self, response: httpx.Response, reply: Reply, leave_after: int | None) -> None:
        async for line in response.aiter_lines():
            if not line.startswith(_DATA) or line == f"{_DATA}[DONE]":
                continue
            event = orjson.loads(line.removeprefix(_DATA))
            if "error" in event:
                reply.error = event["error"]["code"]
            self._take(event, reply)
            if leave_after is not None and len(reply.times_s) >= leave_after:
                return

    def _take(self, event: dict[str, Any], reply: Reply) -> None:
        for choice in event.get("choices", ()):
            reply.finish = choice["finish_reason"] or reply.finish
            if choice["text"]:
                self.started += not reply.times_s
                reply.text += choice["text"]
                reply.times_s.append(time.monotonic())
        if event.get("usage"):
            reply.prompt_tokens = event["usage"]["prompt_tokens"]
            reply.cached_tokens = event["usage"]["prompt_tokens_details"]["cached_tokens"]

    async def ask_all(self, prompts: Sequence[str], max_tokens: int, **fields: Any) -> list[Reply]:
        """All at the same time."""
        return await asyncio.gather(*(self.ask(prompt, max_tokens, **fields) for prompt in prompts))

    async def until_started(self, count: int, within_s: float = 60.0) -> None:
        """Wait until that many requests have had text."""
        await until(lambda: self.started >= count, within_s, f"{count} streams under way")

    async def press(self, prompts: Sequence[str], max_tokens: int, stopping: asyncio.Event) -> list[Reply]:
        """One client per prompt that asks again and again until told to stop; returns all replies."""
        replies: list[Reply] = []

        async def client(prompt: str) -> None:
            round_ = 0
            while not stopping.is_set():
                replies.append(await self.ask(f"{prompt} round {round_}", max_tokens))
                round_ += 1

        await asyncio.gather(*(client(prompt) for prompt in prompts))
        return replies


async def until(holds: Callable[[], bool], within_s: float, what: str) -> None:
    """Poll on the loop until `holds`."""
    ends_at = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < ends_at, f"not within {within_s} s: {what}"
        await asyncio.sleep(0.02)


def while_pressed(
    url: str, model: str, prompts: Sequence[str], max_tokens: int, disturb: Callable[[Load], Coroutine[Any, Any, None]]
) -> list[Reply]:
    """Send all prompts at once, do something to the cluster meanwhile, return the replies in order."""

    async def run() -> list[Reply]:
        async with Load.open(url, model) as load:
            asking = asyncio.ensure_future(load.ask_all(prompts, max_tokens))
            try:
                await disturb(load)
                return await asking
            finally:
                asking.cancel()

    return asyncio.run(run())


def undisturbed(url: str, model: str, prompts: Sequence[str], max_tokens: int) -> list[str]:
    """The greedy texts of the prompts while nothing happens."""

    async def nothing(load: Load) -> None:
        await load.until_started(len(prompts))

    replies = while_pressed(url, model, prompts, max_tokens, nothing)
    assert all(reply.is_whole for reply in replies), replies
    return [reply.text for reply in replies]


def make_prompts(count: int, seed: int, num_chars: int = 160) -> list[str]:
    """Different prompts, long enough (one token a character, about) that a prefill worker computes them."""
    random_ = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz      "
    return [f"{index} " + "".join(random_.choices(letters, k=num_chars)) for index in range(count)]
