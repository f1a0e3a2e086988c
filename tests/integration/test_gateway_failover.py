"""The gateway's client over two fake routers: one that fails is left for the other, streams go on there unbroken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import structlog

from common.base.config import TimeoutsConfig
from common.base.errors import Draining, InvalidRequest, Leg, NotReady, Overloaded, PandoError, PeerLost
from common.rpc.server import RpcServer
from pando.v1 import inference_pb2_grpc
from pando.v1.inference_pb2 import GenerateRequest
from pando.v1.types_pb2 import SamplingParams
from services.gateway.client import RouterClient
from services.gateway.router_rpc import SERVICE
from tests.support.fake_inference import MODEL, FakeInference, Knobs

LIMIT_S = 60.0
GONE = Draining("the router is going down", leg=Leg.ROUTER)


class FakeRouter:
    """One life of a fake router on a port."""

    def __init__(self) -> None:
        self.fake = FakeInference()
        self.port = 0
        self._server: RpcServer | None = None

    async def start(self) -> FakeRouter:
        """Serve, on the port of an earlier life if there was one."""
        self._server = RpcServer(TimeoutsConfig(), [SERVICE])
        inference_pb2_grpc.add_InferenceServicer_to_server(self.fake, self._server.grpc)
        self.port = self._server.bind("127.0.0.1", self.port)
        await self._server.start()
        await self._server.set_serving(True)
        return self

    async def kill(self) -> None:
        """End at once; running calls break."""
        assert self._server is not None
        await self._server.stop(0.0)

    @property
    def num_calls(self) -> int:
        """Generate calls that came."""
        return len(self.fake.requests)


@dataclass
class Pair:
    """Two routers and a client of both."""

    routers: list[FakeRouter]
    client: RouterClient
    moves: list[bool]

    async def tokens(self, request: GenerateRequest) -> dict[int, tuple[list[int], str]]:
        """Tokens and text of every choice; frames must fit without gap or repetition."""
        found: dict[int, tuple[list[int], str]] = {}
        async for frame in self.client.generate(request, LIMIT_S):
            assert frame.request_id == request.request_id
            ids, text = found.get(frame.choice, ([], ""))
            assert frame.token_index == len(ids)
            assert frame.HasField("prompt") == (not ids)
            assert not frame.text or frame.text_offset == len(text)
            assert len(frame.logprobs) == len(frame.token_ids)
            found[frame.choice] = ([*ids, *frame.token_ids], text + frame.text)
        return found


@asynccontextmanager
async def pair(count: int = 2, wait_s: float = 60.0) -> AsyncGenerator[Pair, None]:
    async with AsyncExitStack() as stack:
        routers = [await FakeRouter().start() for _ in range(count)]
        for router in routers:
            stack.push_async_callback(router.kill)
        address = ",".join(f"127.0.0.1:{router.port}" for router in routers)
        client = RouterClient(address, TimeoutsConfig(), 10.0, wait_s)
        stack.push_async_callback(client.close)
        made = Pair(routers, client, [])
        client.on_move = made.moves.append
        yield made


def ask(n: int = 1, **sampling: Any) -> GenerateRequest:
    fields = {"max_tokens": 24, "temperature": 1.0, "seed": 3, "logprobs": 0, **sampling}
    return GenerateRequest(request_id="r", text="tell me", n=n, sampling=SamplingParams(**fields))


async def until_paused(router: FakeRouter) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not router.fake.num_paused:  # noqa: ASYNC110 - the state is in the fake
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("error", [GONE, NotReady("no worker", leg=Leg.ROUTER)])
async def test_before_the_first_token_the_other_router_takes_the_call(error: PandoError) -> None:
    async with pair() as made:
        undisturbed = await made.tokens(ask())
        made.routers[1].fake.knobs = Knobs(fail_at=0, error=error)
        assert await made.tokens(ask()) == undisturbed
        assert [router.num_calls for router in made.routers] == [2, 1]
        assert made.moves == [False]


@pytest.mark.parametrize("after", [1, 2, 11, 23])
@pytest.mark.parametrize("n", [1, 3])
async def test_after_it_the_other_router_goes_on(after: int, n: int) -> None:
    async with pair() as made:
        undisturbed = await made.tokens(ask(n))
        made.routers[1].fake.knobs = Knobs(fail_at=after, error=GONE)
        assert await made.tokens(ask(n)) == undisturbed
        rest = made.routers[0].fake.requests[1:]
        assert sum(len(request.output_token_ids) for request in rest) == after
        assert made.moves == [True]


@pytest.mark.parametrize("after", [69, 70, 71])
async def test_choices_that_had_ended_are_left_alone(after: int) -> None:
    async with pair() as made:
        undisturbed = await made.tokens(ask(3))
        made.routers[1].fake.knobs = Knobs(fail_at=after, error=GONE)
        assert await made.tokens(ask(3)) == undisturbed
        rest = made.routers[0].fake.requests[1:]
        assert sorted(request.first_choice for request in rest) == list(range(after - 69, 3))


async def test_both_routers_may_fail_in_turn() -> None:
    async with pair() as made:
        undisturbed = await made.tokens(ask(2))
        for router in made.routers:
            router.fake.knobs = Knobs(cut_at=7)
        assert await made.tokens(ask(2)) == undisturbed
        assert len(made.moves) > 2


async def test_requests_without_a_seed_go_on_with_the_one_they_got() -> None:
    async with pair() as made:
        request = ask()
        request.sampling.ClearField("seed")
        made.routers[0].fake.knobs = Knobs(fail_at=5, error=GONE)
        await made.tokens(request)
        first, second = made.routers[0].fake.requests[0], made.routers[1].fake.requests[0]
        assert first.sampling.HasField("seed") and first.sampling.seed == second.sampling.seed
        assert not request.sampling.HasField("seed"), "the caller's request was changed"


async def test_a_killed_router_is_down_until_it_serves_again() -> None:
    async with pair() as made:
        undisturbed = await made.tokens(ask())
        await made.routers[1].kill()
        for _ in range(4):
            assert await made.tokens(ask()) == undisturbed
        assert made.moves == [False], "a router that is down was tried again"
        await made.routers[1].start()
        async with asyncio.timeout(LIMIT_S):
            while made.routers[1].num_calls == 0:
                await made.tokens(ask())


async def test_a_stream_waits_for_the_only_router_to_come_back() -> None:
    async with pair(1) as made:
        undisturbed = await made.tokens(ask())
        router = made.routers[0]
        router.fake.knobs = Knobs(pause_at=5)
        running = asyncio.create_task(made.tokens(ask()))
        await until_paused(router)
        await router.kill()
        router.fake.knobs = Knobs()
        await router.start()
        assert await running == undisturbed


@pytest.mark.parametrize("pause_at", [0, None], ids=["under way", "new"])
async def test_what_has_no_token_yet_waits_for_the_restart_of_a_router(pause_at: int | None) -> None:
    async with pair(1) as made:
        undisturbed = await made.tokens(ask())
        router = made.routers[0]
        if pause_at is None:
            await router.kill()
        router.fake.knobs = Knobs(pause_at=pause_at)
        running = asyncio.create_task(made.tokens(ask()))
        if pause_at is not None:
            await until_paused(router)
            await router.kill()
        async with asyncio.timeout(LIMIT_S):
            while not made.moves:  # noqa: ASYNC110 - told by a callback
                await asyncio.sleep(0.01)
        router.fake.knobs = Knobs()
        await router.start()
        assert await running == undisturbed


async def test_nobody_waits_where_no_restart_is_to_be_expected() -> None:
    async with pair(1) as made, asyncio.timeout(LIMIT_S / 2):
        await made.routers[0].kill()
        with pytest.raises(PeerLost):
            await made.tokens(ask())
    async with pair(1) as made, asyncio.timeout(LIMIT_S / 2):
        await made.tokens(ask())
        made.routers[0].fake.knobs = Knobs(fail_at=0, error=NotReady("no worker", leg=Leg.ROUTER))
        with pytest.raises(NotReady):
            await made.tokens(ask())


async def test_nobody_waits_for_ever_for_a_router_that_was_lost() -> None:
    async with pair(1, wait_s=0.3) as made:
        await made.tokens(ask())
        await made.routers[0].kill()
        for _ in range(2):
            with pytest.raises(PeerLost):
                await made.tokens(ask())


async def test_what_nobody_serves_ends_with_the_last_error() -> None:
    async with pair(wait_s=0.3) as made:
        made.routers[0].fake.knobs = Knobs(pause_at=3)
        running = asyncio.create_task(made.tokens(ask()))
        await until_paused(made.routers[0])
        for router in reversed(made.routers):  # the other one must be gone before the stream looks for it
            await router.kill()
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(PeerLost) as caught:
                await running
        assert caught.value.leg is Leg.ROUTER


@pytest.mark.parametrize(
    "error",
    [Overloaded("full", leg=Leg.ROUTER), InvalidRequest("no"), PeerLost("all decode workers are gone", leg=Leg.DECODE)],
)
@pytest.mark.parametrize("after", [0, 4])
async def test_what_no_other_router_heals_is_final(error: PandoError, after: int) -> None:
    async with pair() as made:
        made.routers[0].fake.knobs = Knobs(fail_at=after, error=error)
        with pytest.raises(type(error)):
            await made.tokens(ask())
        assert [router.num_calls for router in made.routers] == [1, 0]


async def test_calls_that_do_not_stream_find_the_router_that_serves() -> None:
    async with pair() as made:
        await made.routers[0].kill()
        assert (await made.client.get_model()).name == MODEL
        assert await made.client.detokenize("", [104, 105], skip_special_tokens=True) == "hi"
        await made.client.check_ready()
        await made.routers[1].kill()
        with pytest.raises(PeerLost):
            await made.client.get_model()
        with pytest.raises(NotReady, match=r"127\.0\.0\.1:\d+.*127\.0\.0\.1:\d+"):
            await made.client.check_ready()


async def test_a_router_that_goes_and_comes_back_is_named_once_each() -> None:
    async with pair(count=1) as made:
        await made.client.get_model()
        await made.routers[0].kill()
        with structlog.testing.capture_logs() as lines:
            for _ in range(3):
                with pytest.raises(PeerLost):
                    await made.client.get_model()
            await made.routers[0].start()
            async with asyncio.timeout(LIMIT_S):
                while not any(line["event"] == "a router serves again" for line in lines):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        address = f"127.0.0.1:{made.routers[0].port}"
        told = [line["event"] for line in lines if line.get("router") == address]
        assert told == ["a router does not serve", "a router serves again"]
        assert (await made.client.get_model()).name == MODEL
