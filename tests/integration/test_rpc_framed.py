"""Framed calls over real sockets: what handlers see and callers get, and peers that lie, dawdle, freeze or go."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvloop

from common.base.config import TimeoutsConfig
from common.base.errors import (
    DeadlineExceeded,
    Internal,
    InvalidRequest,
    LeaseLost,
    Leg,
    Overloaded,
    PandoError,
    PeerLost,
    Unsupported,
)
from common.cache.kvstore_calls import StoreCalls
from common.cache.kvstore_view import StoreView
from common.rpc import framed_server, frames
from common.rpc.framed_client import FramedConnection, connect
from common.rpc.framed_server import FramedServer, Served
from common.rpc.frames import Method, pack
from pando.v1 import kvstore_pb2

LIFE = 77
TIMEOUTS = TimeoutsConfig()
Handler = Callable[[kvstore_pb2.RenewRequest, Any], Awaitable[kvstore_pb2.RenewResponse]]
RENEW = Method(1, "Renew", kvstore_pb2.RenewRequest.FromString, kvstore_pb2.RenewResponse.FromString)


async def echo(request: kvstore_pb2.RenewRequest, context: Any) -> kvstore_pb2.RenewResponse:
    return kvstore_pb2.RenewResponse(alive=bytes(request.lease_ids), lease_ttl_s=context.time_remaining())


async def never(request: kvstore_pb2.RenewRequest, context: Any) -> kvstore_pb2.RenewResponse:
    await asyncio.Event().wait()
    raise AssertionError


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[tuple[FramedServer, int]]:
    server = FramedServer(LIFE, [Served(RENEW, handler)])
    port = await server.listen("127.0.0.1")
    try:
        yield server, port
    finally:
        await server.stop(0)
        await asyncio.sleep(0)
        assert not server._connections


@asynccontextmanager
async def asking(port: int, timeouts: TimeoutsConfig = TIMEOUTS) -> AsyncIterator[FramedConnection]:
    connection = await connect("127.0.0.1", port, LIFE, timeouts, Leg.STORE)
    try:
        yield connection
    finally:
        connection.close()
        await asyncio.sleep(0)


async def ask(connection: FramedConnection, *numbers: int, deadline_s: float = 10) -> kvstore_pb2.RenewResponse:
    request = kvstore_pb2.RenewRequest(lease_ids=numbers)
    return RENEW.parse_answer(await connection.call(RENEW.number, request.SerializeToString(), deadline_s))


async def hung_up(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(10):
        while await reader.read(65536):
            pass


async def _calls_meet_their_answers() -> None:
    async with serving(echo) as (_, port), asking(port) as one, asking(port) as other:
        answers = await asyncio.gather(*(ask(line, number) for number in range(100) for line in (one, other)))
        assert [list(answer.alive) for answer in answers] == [[number] for number in range(100) for _ in range(2)]
        assert all(0 < answer.lease_ttl_s <= 10 for answer in answers), "the deadline travels"


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_calls_meet_their_answers(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(_calls_meet_their_answers())


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (InvalidRequest("no", reason="bad", param="keys"), InvalidRequest),
        (LeaseLost("gone", leg=Leg.TRANSFER), LeaseLost),
        (Overloaded("later", retry_after_s=0.5), Overloaded),
        (ZeroDivisionError(), Internal),
    ],
)
async def test_errors_travel(raised: Exception, expected: type[PandoError]) -> None:
    async def fail(request: kvstore_pb2.RenewRequest, context: Any) -> kvstore_pb2.RenewResponse:
        raise raised

    async with serving(fail) as (_, port), asking(port) as line:
        with pytest.raises(expected) as caught:
            await ask(line)
        assert type(caught.value) is expected and caught.value.leg in (Leg.STORE, Leg.TRANSFER)
        if isinstance(raised, PandoError):
            same = (caught.value.reason, caught.value.param, caught.value.retry_after_s, caught.value.message)
            assert same == (raised.reason, raised.param, raised.retry_after_s, raised.message)
        assert line.usable


async def test_a_message_or_method_that_makes_no_sense_is_refused_and_the_connection_goes_on() -> None:
    async with serving(echo) as (_, port), asking(port) as line:
        with pytest.raises(InvalidRequest):
            await line.call(RENEW.number, b"\xff\xff", 10)
        with pytest.raises(Unsupported):
            await line.call(99, b"", 10)
        assert list((await ask(line, 3)).alive) == [3]


async def test_a_call_ends_at_its_deadline_on_both_sides() -> None:
    async with serving(never) as (server, port), asking(port) as line:
        with pytest.raises(DeadlineExceeded):
            await ask(line, deadline_s=0.05)
        await _until(lambda: not any(one._calls for one in server._connections))
        assert line.usable and not line._waiting


async def test_a_cancelled_caller_ends_the_handler() -> None:
    async with serving(never) as (server, port), asking(port) as line:
        call = asyncio.create_task(ask(line, deadline_s=60))
        await _until(lambda: any(one._calls for one in server._connections))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await _until(lambda: not any(one._calls for one in server._connections))


async def test_a_caller_that_hangs_up_ends_its_handlers() -> None:
    async with serving(never) as (server, port):
        async with asking(port) as line:
            call = asyncio.create_task(ask(line, deadline_s=60))
            await _until(lambda: any(one._calls for one in server._connections))
        with pytest.raises(PeerLost):
            await call
        await _until(lambda: not server._connections)


async def test_a_server_that_goes_loses_its_calls_at_once() -> None:
    async with serving(never) as (server, port), asking(port) as line:
        call = asyncio.create_task(ask(line, deadline_s=60))
        await _until(lambda: any(one._calls for one in server._connections))
        await server.stop(0)
        with pytest.raises(PeerLost):
            await call
        assert not line.alive
        with pytest.raises(PeerLost):
            await ask(line)
        with pytest.raises(PeerLost):
            await connect("127.0.0.1", port, LIFE, TIMEOUTS, Leg.STORE)


async def test_running_calls_may_end_when_a_server_stops() -> None:
    release = asyncio.Event()

    async def slow(request: kvstore_pb2.RenewRequest, context: Any) -> kvstore_pb2.RenewResponse:
        await release.wait()
        return kvstore_pb2.RenewResponse(alive=b"\1")

    async with serving(slow) as (server, port), asking(port) as line:
        call = asyncio.create_task(ask(line))
        await _until(lambda: any(one._calls for one in server._connections))
        stopping = asyncio.create_task(server.stop(20))
        await asyncio.sleep(0)
        release.set()
        assert (await call).alive == b"\1"
        await stopping


async def test_a_peer_that_falls_silent_is_given_up() -> None:
    """It answers the hello, then nothing, as one that is frozen: the deadline is far, and nobody waits for it."""

    async def freeze(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(pack(1, frames.OK))
        await hung_up(reader)
        writer.close()

    silent = await asyncio.start_server(freeze, "127.0.0.1", 0)
    async with asking(silent.sockets[0].getsockname()[1], TimeoutsConfig(scale=0.1).scaled()) as line:
        with pytest.raises(PeerLost):
            await ask(line, deadline_s=600)
    silent.close()


async def test_a_peer_that_is_slow_but_alive_is_waited_for() -> None:
    timeouts = TimeoutsConfig(scale=0.1).scaled()
    wait_s = 3 * (timeouts.keepalive_s + timeouts.keepalive_timeout_s)

    async def slow(request: kvstore_pb2.RenewRequest, context: Any) -> kvstore_pb2.RenewResponse:
        await asyncio.sleep(wait_s)
        return kvstore_pb2.RenewResponse(alive=b"\1")

    async with serving(slow) as (_, port), asking(port, timeouts) as line:
        assert (await ask(line, deadline_s=60)).alive == b"\1"


async def test_another_life_is_not_meant() -> None:
    async with serving(echo) as (server, port):
        with pytest.raises(PeerLost):
            await connect("127.0.0.1", port, LIFE + 1, TIMEOUTS, Leg.STORE)
        await _until(lambda: not server._connections)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        pack(1, RENEW.number, b"", 1.0),
        pack(1, frames.PING),
        pack(1, frames.HELLO, b"no"),
        pack(1, frames.HELLO, frames.hello(LIFE)) + b"\xff" * 16,
        pack(1, frames.HELLO, frames.hello(LIFE)) + pack(2, RENEW.number, b"", 60.0) * 2,
    ],
)
async def test_who_keeps_no_rules_is_hung_up_on_and_costs_nobody_else_anything(sent: bytes) -> None:
    async with serving(never) as (server, port), asking(port) as line:
        call = asyncio.create_task(ask(line, deadline_s=60))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        await hung_up(reader)
        writer.close()
        await _until(lambda: len(server._connections) == 1)
        assert line.usable and not call.done()
        call.cancel()


async def test_an_answer_that_makes_no_sense_fails_its_call_and_no_other() -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = await reader.readexactly(32)
        writer.write(pack(int.from_bytes(hello[4:8], "little"), frames.OK))
        for number in (2, 3):
            await reader.readexactly(16)
            writer.write(pack(number, [frames.OK, 13][number - 2], b"\xff" * 9))
        with suppress(ConnectionError):
            await hung_up(reader)
        writer.close()
        over.set()

    over = asyncio.Event()
    stranger = await asyncio.start_server(babble, "127.0.0.1", 0)
    port = stranger.sockets[0].getsockname()[1]
    calls = StoreCalls(TIMEOUTS, StoreView(), time.monotonic)
    line = await connect("127.0.0.1", port, LIFE, TIMEOUTS, Leg.STORE)
    calls._lines._lines["there"] = line
    for _ in range(2):
        with pytest.raises(PeerLost, match="makes no sense"):
            await calls.call("there", RENEW, kvstore_pb2.RenewRequest(), 10)
    assert line.alive
    await calls.close()
    await asyncio.wait_for(over.wait(), 10)
    stranger.close()
    await asyncio.sleep(0)
    with pytest.raises(PeerLost):
        await connect("127.0.0.1", 70_000, LIFE, TIMEOUTS, Leg.STORE)


async def test_who_says_no_hello_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framed_server, "_HELLO_S", 0.05)
    async with serving(echo) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await hung_up(reader)
        writer.close()


async def test_connections_and_calls_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framed_server, "_MAX_CONNECTIONS", 1)
    monkeypatch.setattr(frames, "MAX_CALLS", 2)
    async with serving(never) as (_, port), asking(port) as line:
        with pytest.raises(PeerLost):
            await connect("127.0.0.1", port, LIFE, TIMEOUTS, Leg.STORE)
        calls = [asyncio.create_task(ask(line, deadline_s=60)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await ask(line)
        for call in calls:
            call.cancel()


async def test_of_who_does_not_read_nothing_more_is_read() -> None:
    served = 0

    async def large(request: kvstore_pb2.RenewRequest, context: Any) -> kvstore_pb2.RenewResponse:
        nonlocal served
        served += 1
        return kvstore_pb2.RenewResponse(alive=bytes(1_000_000))

    async with serving(large) as (server, port), asking(port) as other:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(pack(1, frames.HELLO, frames.hello(LIFE)))
        await reader.readexactly(len(pack(1, frames.OK)))
        for number in range(40):
            writer.write(pack(number, RENEW.number, b"", 600.0))
            await ask(other)
        held = [one for one in server._connections if one._transport and one._transport.get_write_buffer_size()]
        assert len(held) == 1 and held[0]._transport is not None
        assert not held[0]._transport.is_reading() and served < 80
        writer.transport.abort()
        await _until(lambda: len(server._connections) == 1)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - the other side's tasks have no event here
            await asyncio.sleep(0.005)
