"""Streams over scripted calls: what is retried, what is not, and what an end means."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any

import pytest

from pando.client import async_stream, stream
from pando.client.retry import Retry
from pando.client.types import Chunk, Usage
from pando.errors import Cancelled, DeadlineExceeded, Internal, InvalidRequest, Overloaded, PandoError, PeerLost

QUICK = Retry(max_attempts=3, first_pause_s=1e-4)
FIRST = Chunk("r", 0, text="a", token_ids=(1,))
LAST = Chunk("r", 0, text="b", token_ids=(2,), finish_reason="length", usage=Usage(3, 2))
Script = Sequence[Chunk | PandoError]


class FakeCall:
    """Plays a script; both a `Call` and, by `AsyncFake`, an `AsyncCall`."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.num_cancels = 0

    def chunks(self) -> Iterator[Chunk]:
        for item in self._script:
            if isinstance(item, PandoError):
                raise item
            yield item

    def cancel(self) -> None:
        self.num_cancels += 1


class AsyncFake:
    def __init__(self, inner: FakeCall) -> None:
        self._inner = inner

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        for chunk in self._inner.chunks():
            yield chunk

    async def cancel(self) -> None:
        self._inner.cancel()


class Calls:
    """Hands out one call per try."""

    def __init__(self, *scripts: Script) -> None:
        self.made: list[FakeCall] = []
        self.times: list[float] = []
        self._scripts = iter(scripts)

    def begin(self, timeout_s: float) -> FakeCall:
        self.times.append(timeout_s)
        self.made.append(FakeCall(next(self._scripts)))
        return self.made[-1]

    def stream(self, n: int = 1, retry: Retry = QUICK, timeout_s: float = 60.0) -> stream.Stream:
        return stream.Stream(self.begin, {"request_id": "r", "n": n}, retry, timeout_s)

    def async_stream(self, retry: Retry = QUICK) -> async_stream.AsyncStream:
        return async_stream.AsyncStream(
            lambda timeout_s: AsyncFake(self.begin(timeout_s)), {"request_id": "r"}, retry, 60.0
        )


def test_collect_returns_what_was_iterated_too() -> None:
    with Calls([FIRST, LAST]).stream() as running:
        assert next(iter(running)) == FIRST
        whole = running.collect()
    assert (whole.text, whole.token_ids, whole.choices[0].finish_reason) == ("ab", (1, 2), "length")
    assert whole.usage.completion_tokens == 2 and whole.request_id == "r"


@pytest.mark.parametrize("error", [PeerLost("gone"), Overloaded("full", retry_after_s=1e-4)])
def test_a_call_that_never_began_is_tried_again(error: PandoError) -> None:
    calls = Calls([error], [error], [FIRST, LAST])
    assert "".join(calls.stream().text_iter()) == "ab"
    assert len(calls.made) == 3 and calls.times[0] == 60.0 > calls.times[1] > calls.times[2]


@pytest.mark.parametrize(
    "scripts",
    [
        [[PeerLost("1")], [PeerLost("2")], [PeerLost("3")]],
        [[InvalidRequest("no")]],
        [[DeadlineExceeded("late")]],
        [[Overloaded("full", retry_after_s=100.0)]],
        [[FIRST, PeerLost("after the first token")]],
    ],
)
async def test_what_is_not_tried_again(scripts: list[Script]) -> None:
    calls, others = Calls(*scripts), Calls(*scripts)
    with pytest.raises(PandoError) as failed:
        calls.stream().collect()
    assert failed.value is scripts[-1][-1] and failed.value.request_id == "r"
    assert len(calls.made) == len(scripts)
    with pytest.raises(PandoError) as failed:
        await others.async_stream().collect()
    assert failed.value is scripts[-1][-1] and len(others.made) == len(scripts)


def test_no_try_begins_that_could_not_end() -> None:
    calls = Calls([PeerLost("gone")])
    with pytest.raises(PeerLost):
        calls.stream(retry=Retry(first_pause_s=50.0), timeout_s=1.0).collect()
    assert len(calls.made) == 1


def test_a_stream_without_an_end_has_failed() -> None:
    with pytest.raises(PeerLost, match="choice 0"):
        Calls([FIRST]).stream(retry=Retry(max_attempts=1)).collect()
    with pytest.raises(PeerLost, match="choice 1"):
        Calls([FIRST, LAST]).stream(n=2, retry=Retry(max_attempts=1)).collect()


def test_chunks_must_fit() -> None:
    with pytest.raises(Internal):
        Calls([LAST, LAST]).stream().collect()
    with pytest.raises(Internal):
        Calls([Chunk("r", 4)]).stream().collect()


def test_leaving_the_with_cancels() -> None:
    calls = Calls([FIRST, LAST])
    with calls.stream() as running:
        next(iter(running))
    assert calls.made[0].num_cancels == 1


def test_closing_ends_a_pause_between_tries() -> None:
    calls = Calls([PeerLost("gone")])
    running = calls.stream(retry=Retry(first_pause_s=30.0, max_pause_s=30.0))
    raised: list[PandoError] = []

    def consume() -> None:
        with pytest.raises(Cancelled) as failed:
            running.collect()
        raised.append(failed.value)

    thread = threading.Thread(target=consume)
    thread.start()
    running.close()
    thread.join(timeout=10)
    assert raised and not thread.is_alive()


async def test_async_streams_do_the_same() -> None:
    calls = Calls([PeerLost("gone")], [FIRST, LAST])
    async with calls.async_stream() as running:
        assert [piece async for piece in running.text_iter()] == ["a", "b"]
        assert (await running.collect()).text == "ab"
    assert len(calls.made) == 2 and calls.made[1].num_cancels == 1
    left = Calls([FIRST, LAST])
    async with left.async_stream() as running:
        async for _ in running:
            break
    assert left.made[0].num_cancels == 1


def test_unary_calls_are_repeated_within_their_time() -> None:
    answers: list[Any] = [PeerLost("gone"), PeerLost("gone"), 7]

    def once(left_s: float) -> int:
        assert 0 < left_s <= 60.0
        answer = answers.pop(0)
        if isinstance(answer, PandoError):
            raise answer
        return int(answer)

    assert stream.ask(once, QUICK, 60.0) == 7
    answers[:] = [InvalidRequest("no")]
    with pytest.raises(InvalidRequest):
        stream.ask(once, QUICK, 60.0)
    with pytest.raises(DeadlineExceeded):
        stream.ask(once, QUICK, 0.0)


def test_pauses_grow_are_jittered_and_honour_the_server() -> None:
    retry = Retry(max_attempts=9, first_pause_s=1.0, max_pause_s=3.0)
    lost = PeerLost("gone")
    assert [retry.pause_s(lost, attempt, 1.0) for attempt in (1, 2, 3, 4)] == [1.0, 2.0, 3.0, 3.0]
    assert retry.pause_s(lost, 1, 0.0) == 0.5
    assert retry.pause_s(Overloaded("full", retry_after_s=2.0), 1, 1.0) == 3.0
    assert retry.pause_s(Overloaded("full", retry_after_s=4.0), 1, 1.0) is None
    assert retry.pause_s(lost, 9, 1.0) is None
    assert Retry(max_attempts=1).pause_s(lost, 1, 1.0) is None
