"""Streams and retries, whatever the wire: what `Client` and `HttpClient` have in common."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from common.base.errors import Cancelled, DeadlineExceeded, PandoError
from pando.client.assembly import Assembly
from pando.client.convert import attribute
from pando.client.retry import MAX_TIMEOUT_S, Retry
from pando.client.types import Chunk, Generation

T = TypeVar("T")
DEFAULT_TIMEOUT_S = 600.0
DEFAULT_RETRY = Retry()


class Call(Protocol):
    """One try at a request."""

    def chunks(self) -> Iterator[Chunk]:
        """The chunks as they come. Raises PandoError."""

    def cancel(self) -> None:
        """End it; the server frees what it holds. May be called from any thread, and more than once."""


class Stream:
    """The chunks of one request as they come; a context manager that cancels the request when it is left early.

    Iterating raises PandoError. Until the first chunk has come a lost or overloaded cluster is asked again.

    Attributes:
        request_id: for `abort` and for the logs.
    """

    def __init__(
        self, begin: Callable[[float], Call], options: Mapping[str, Any], retry: Retry, timeout_s: float
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
        self._left = threading.Event()
        self._call = begin(timeout_s)
        self._chunks = self._run()

    def __iter__(self) -> Iterator[Chunk]:
        return self._chunks

    def text_iter(self) -> Iterator[str]:
        """The text of the first choice, piece by piece."""
        return (chunk.text for chunk in self if chunk.choice == 0 and chunk.text)

    def collect(self) -> Generation:
        """Wait for the end and return everything, also what was iterated over already."""
        for _ in self:
            pass
        return self._assembly.result()

    def close(self) -> None:
        """End the request if it still runs. Idempotent; may be called from any thread."""
        self._left.set()
        self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _run(self) -> Iterator[Chunk]:
        attempt, came = 1, False
        while True:
            try:
                for chunk in self._call.chunks():
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
            if self._left.wait(pause_s):
                raise Cancelled("the stream was closed", request_id=self.request_id)
            attempt += 1
            self._call = self._begin(self._ends_at - time.monotonic())


def ask(once: Callable[[float], T], retry: Retry, timeout_s: float) -> T:
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
            return once(left_s)
        except PandoError as error:
            pause_s = retry.pause_s(error, attempt, random.random())
            if pause_s is None or pause_s >= ends_at - time.monotonic():
                raise
        time.sleep(pause_s)
        attempt += 1
