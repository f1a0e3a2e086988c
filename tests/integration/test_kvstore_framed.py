"""The store's calls in frames: used when they can be, with gRPC until then and whenever they cannot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from common.cache.kvstore_backend import KvStoreBackend
from common.cache.l3 import PutState, State
from common.rpc import frames
from pando.v1 import kvstore_pb2, kvstore_pb2_grpc
from tests.support.kvstore_rig import StoreRig, running_store
from tests.support.l3_contract import BareStore, block_of, fetch, key_of

HIT, MISS, ERROR = State.HIT, State.MISS, State.ERROR
KEYS = [key_of(number) for number in range(8)]
BLOCKS = [block_of(key) for key in KEYS]


@pytest.fixture
async def rig() -> AsyncIterator[StoreRig]:
    async with running_store() as rig:
        yield rig


async def framed(backend: KvStoreBackend, address: str) -> None:
    """Wait until calls go in frames."""
    async with asyncio.timeout(20):
        while backend._calls._lines.find(address) is None:  # noqa: ASYNC110 - the search has no event for a test
            await asyncio.sleep(0.01)


def count_grpc(backend: KvStoreBackend, address: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the calls that go over gRPC from now on."""
    seen: list[str] = []
    stub = backend._calls.stub(address)
    for name in ("LookupAndLease", "Put", "Release"):
        call: Callable[..., object] = getattr(stub, name)

        def counted(*args: object, call: Callable[..., object] = call, name: str = name, **kwargs: object) -> object:
            seen.append(name)
            return call(*args, **kwargs)

        monkeypatch.setattr(stub, name, counted)
    return seen


async def test_frames_carry_small_calls_and_grpc_goes_on_without_them(
    rig: StoreRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = await rig.client()
    store = BareStore(backend)
    over_grpc = count_grpc(backend, rig.address, monkeypatch)
    assert await store.put(BLOCKS[:4]) == [PutState.STORED] * 4 and over_grpc.pop() == "Put", "nobody waits for frames"
    await framed(backend, rig.address)
    assert await store.put(BLOCKS[4:]) == [PutState.STORED] * 4
    assert await fetch(store, KEYS) == [HIT] * 8 and not over_grpc
    assert rig.server._framed is not None
    await rig.server._framed.stop(0)
    await until(lambda: backend._calls._lines.find(rig.address) is None)
    assert await fetch(store, [*KEYS, key_of(99)]) == [HIT] * 8 + [MISS], "an idle connection that ends costs nothing"
    assert over_grpc.count("LookupAndLease") == 1
    await store.close()


async def test_a_process_without_frames_is_called_over_grpc(rig: StoreRig) -> None:
    rig.process._framed_port = 0
    store = BareStore(await rig.client())
    assert await store.put(BLOCKS) == [PutState.STORED] * 8
    await asyncio.sleep(0.05)
    assert await fetch(store, KEYS) == [HIT] * 8
    await store.close()


async def test_a_port_that_is_another_process_is_left_alone(rig: StoreRig) -> None:
    async with running_store("other") as other:
        rig.process._framed_port = other.process._framed_port
        backend = await rig.client()
        store = BareStore(backend)
        assert await store.put(BLOCKS) == [PutState.STORED] * 8
        await until(lambda: not backend._calls._lines._searches)
        assert backend._calls._lines.find(rig.address) is None
        assert await fetch(store, KEYS) == [HIT] * 8
        assert other.process.parts is not None and not len(other.process.parts.holdings.objects)
        await store.close()


async def test_a_process_that_dies_under_a_call_is_known_to_be_gone_at_once(rig: StoreRig) -> None:
    """The kernel ends the connections of what is killed: nobody waits for the deadline, and others leave it alone."""

    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(frames.pack(1, frames.HELLO, frames.hello(0))))
        writer.write(frames.pack(1, frames.OK))
        await reader.read(1)
        writer.transport.abort()

    dying = await asyncio.start_server(die, "127.0.0.1", 0)
    rig.process._framed_port = dying.sockets[0].getsockname()[1]
    backend = await rig.client()
    store = BareStore(backend)
    await store.put(BLOCKS)
    await framed(backend, rig.address)
    async with asyncio.timeout(60):
        lease = await store.lookup(KEYS, 600)
    assert list(lease.states) == [ERROR] * 8
    assert not backend._view.nodes(backend.now_s())
    await until(lambda: bool(backend._view.nodes(backend.now_s())))
    assert await fetch(store, KEYS) == [HIT] * 8, "it has come back"
    await store.close()
    dying.close()


async def _on_uvloop() -> None:
    async with running_store() as rig:
        backend = await rig.client()
        store = BareStore(backend)
        await store.put(BLOCKS)
        await framed(backend, rig.address)
        assert await fetch(store, [*KEYS, key_of(99)]) == [HIT] * 8 + [MISS]
        await store.close()


def test_on_the_loop_that_services_run_on() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_on_uvloop())


async def test_what_a_process_tells_of_itself_finds_its_frames(rig: StoreRig) -> None:
    backend = await rig.client()
    stub: kvstore_pb2_grpc.KvStoreServiceStub = backend._calls.stub(rig.address)
    stats = await stub.GetStoreStats(kvstore_pb2.GetStoreStatsRequest(), timeout=10)
    assert rig.server._framed is not None and rig.server._framed._server is not None
    (listener,) = rig.server._framed._server.sockets
    assert listener.getsockname() == ("127.0.0.1", stats.framed_port)
    await backend.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - other tasks have no event for a test
            await asyncio.sleep(0.01)
