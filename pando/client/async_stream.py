"""Streams and retries, whatever the wire: what `AsyncClient` and `AsyncHttpClient` have in common."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from common.base.errors import Cancelled, DeadlineExceeded, PandoError
from pando.client.assembly import Assembly
from pando.client.convert import attribute
from pando.client.retry import MAX_TIMEOUT_S, Retry
from pando.client.types import Chunk, Generation

T = TypeVar("T")


class AsyncCall(Protocol):
    """One try at a request."""

    def chunks(self) -> AsyncGenerator[Chunk, None]:
        """The chunks as they come. Raises PandoError."""

    async def cancel(self) -> None:
        """End it; the server frees what it holds. May be called more than once."""


class AsyncStream:
    """The chunks of one request as they come; a context manager that cancels the request when it is left early.

    Iterating raises PandoError. Until the first chunk has come a lost or overloaded cluster is asked again.

    Attributes:
        request_id: for `abort` and for the logs.
    """

    def __init__(
        self, begin: Callable[[float], AsyncCall], options: Mapping[str, Any], retry: Retry, timeout_s: float
    ) -> None:
        """`begin` starts a call that has so many seconds; the first one starts at once.

        Args:
            options: of the request, `convert.checked`.
            timeout_s: where they name no deadline.
        """
        self.request_id: str = options["request_id"]
        self._options = options
        self._begin = begin
        self._retry = retry
        timeout_s = min(options.get("timeout_s", timeout_s), MAX_TIMEOUT_S)
        self._ends_at = time.monotonic() + timeout_s
        self._assembly = Assembly(self.request_id, options.get("n", 1))
        self._left = False
        self._call = begin(timeout_s)
        self._chunks = self._run()

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self._chunks

    async def text_iter(self) -> AsyncIterator[str]:
        """The text of the first choice, piece by piece."""
        async for chunk in self:
            if chunk.choice == 0 and chunk.text:
                yield chunk.text

    async def collect(self) -> Generation:
        """Wait for the end and return everything, also what was iterated over already."""
        async for _ in self:
            pass
        return self._assembly.result()

    async def close(self) -> None:
        """End the request if it still runs. Idempotent; a task that iterates meanwhile gets Cancelled."""
        self._left = True
        await self._call.cancel()
        with suppress(RuntimeError):  # another task is inside: it sees the cancelled call
            await self._chunks.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self) -> AsyncGenerator[Chunk, None]:
        attempt, came = 1, False
        while True:
            try:
                async with aclosing(self._call.chunks()) as chunks:
                    async for chunk in chunks:
                        came = True
                        self._assembly.add(chunk)
                        yield chunk
                self._assembly.check_complete()
                return
            except PandoError as error:
                attribute(error, self._options)
                pause_s = None if came else self._retry.pause_s(error, attempt, random.random())
                if pause_s is None or time.monotonic() + pause_s >= self._ends_at:
                    raise
            await asyncio.sleep(pause_s)
            if self._left:
                raise Cancelled("the stream was closed", request_id=self.request_id)
            attempt += 1
            self._call = self._begin(self._ends_at - time.monotonic())


async def ask(once: Callable[[float], Awaitable[T]], retry: Retry, timeout_s: float) -> T:
    """The answer to a call without side effects, tried again while that may help.

    Args:
        once: makes one try that has so many seconds; raises PandoError.
    """
    ends_at = time.monotonic() + min(timeout_s, MAX_TIMEOUT_S)
    attempt = 1
    while True:
        left_s = ends_at - time.monotonic()
        if left_s <= 0:
            raise DeadlineExceeded("no time was left to ask")
        try:
            return await once(left_s)
        except PandoError as error:
            pause_s = retry.pause_s(error, attempt, random.random())
            if pause_s is None or pause_s >= ends_at - time.monotonic():
                raise
        await asyncio.sleep(pause_s)
        attempt += 1
