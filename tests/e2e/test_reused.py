"""Reused: what one worker computed for an earlier turn, no worker computes again.

Six turns of a conversation run over a whole cluster of two prefill and two decode workers. Three ways to place them:
as the router likes; by the router, when the worker of the last turn decodes no more; and by hand, on another pair each
turn. From the second turn on, all full blocks of the previous turn's prompt and output count as cached, and those that
lie elsewhere travel. How much time that saves is `bench/reuse.py`'s question.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import grpc
import pytest

from pando.v1 import inference_pb2, inference_pb2_grpc, types_pb2
from tests.support.cluster import UNHURRIED, Cluster
from tests.support.oracle import Ask, Run, WorkerClient
from tests.support.role_calls import set_role
from tests.support.tiny_vocab import tiny_vocab
from tests.support.workers import wait_until

pytestmark = pytest.mark.e2e
BLOCK = 16
NUM_TURNS = 6
NUM_OUTPUT = 40
VOCAB = len(tiny_vocab().tokens)
VIEW_S = 60.0
Call: TypeAlias = "grpc.aio.UnaryStreamCall[inference_pb2.GenerateRequest, inference_pb2.GenerateResponse]"
WORKERS = ("prefill-0", "prefill-1", "decode-0", "decode-1")


def tokens(length: int, kind: int) -> tuple[int, ...]:
    """Token ids that share no block with those of another kind."""
    return tuple(2 + (kind * 37 + i * i * (kind + 3) + i) % (VOCAB - 2) for i in range(length))


@dataclass(slots=True)
class Conversation:
    """The prompt of the next turn and what must be cached of it."""

    prompt: tuple[int, ...] = tokens(150, 0)
    num_known: int = 0
    used: list[str] = field(default_factory=list)

    @property
    def num_reusable(self) -> int:
        """Tokens in the full blocks of the previous prompt and output whose KV exists: the last token's does not."""
        return max(0, self.num_known - 1) // BLOCK * BLOCK

    def take(self, run: Run) -> None:
        """Check a turn's usage and make the next turn's prompt of it."""
        assert len(run.token_ids) == NUM_OUTPUT
        assert run.usage.prompt_tokens == len(self.prompt)
        assert run.num_cached >= self.num_reusable, f"turn {len(self.used)}: {run.usage}"
        self.used.append(run.usage.decode_worker)
        self.num_known = len(self.prompt) + NUM_OUTPUT
        self.prompt = (*self.prompt, *run.token_ids, *tokens(85, len(self.used)))


class RouterClient:
    """The public API of the cluster."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        self._stub = inference_pb2_grpc.InferenceStub(self._channel)

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()

    def call(self, prompt: tuple[int, ...], salt: str) -> Call:
        """Start a greedy request."""
        sampling = types_pb2.SamplingParams(max_tokens=NUM_OUTPUT, temperature=0, ignore_eos=True)
        request = inference_pb2.GenerateRequest(
            token_ids=types_pb2.TokenIds(ids=prompt), sampling=sampling, cache_salt=salt
        )
        call: Call = self._stub.Generate(request)
        return call

    async def run(self, prompt: tuple[int, ...], salt: str) -> Run:
        """Run a request to its end."""
        run = Run()
        async for frame in self.call(prompt, salt):
            run.add(frame)
        return run


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[Cluster, None, None]:
    flags = (*UNHURRIED, "--prefill-workers", "2", "--decode-workers", "2", "--worker.local-prefill-tokens", "0")
    with Cluster(tmp_path_factory.mktemp("reused"), *flags, "--router.remote-prefill-min-tokens", "1") as started:
        started.wait_serving()
        yield started


@pytest.fixture
async def router(cluster: Cluster) -> AsyncGenerator[RouterClient, None]:
    client = RouterClient(cluster.router)
    yield client
    await client.close()


@asynccontextmanager
async def worker_client(cluster: Cluster, name: str) -> AsyncGenerator[WorkerClient, None]:
    """A connection to one worker."""
    client = WorkerClient(cluster.service(name).address, name)
    try:
        yield client
    finally:
        await client.close()


def view_is_current(cluster: Cluster) -> bool:
    """Whether the router has heard of every cached block."""
    known = {worker.worker_id: worker.blocks_in_view for worker in cluster.known_workers()}
    return all(known[name] == cluster.stats(name).blocks_cached for name in WORKERS)


async def wait_for_view(cluster: Cluster) -> None:
    """Wait for the router to hear of all that was computed; a person's next turn comes much later."""
    await asyncio.to_thread(wait_until, lambda: view_is_current(cluster), VIEW_S, lambda: str(cluster.known_workers()))


def bytes_read(cluster: Cluster, kind: str) -> float:
    """Bytes of KV that the workers of a kind have read from others."""
    names = [name for name in WORKERS if name.startswith(kind)]
    return sum(cluster.metric(name, "pando_worker_transfer_bytes_total") for name in names)


async def test_as_the_router_likes(cluster: Cluster, router: RouterClient) -> None:
    talk = Conversation()
    for _ in range(NUM_TURNS):
        talk.take(await router.run(talk.prompt, "likes"))
        await wait_for_view(cluster)
    assert len(set(talk.used)) == 1, f"an idle cluster kept moving the conversation: {talk.used}"


def decodes(cluster: Cluster, name: str) -> bool:
    """Whether the router takes a worker for one that decodes."""
    return any(one.worker_id == name and "decode" in one.roles for one in cluster.known_workers())


@asynccontextmanager
async def without(cluster: Cluster, name: str) -> AsyncGenerator[None, None]:
    """A decode worker computes prompts only for the body, and keeps its blocks."""

    async def change(role: str) -> None:
        await set_role(cluster.service(name).address, role)
        await asyncio.to_thread(
            wait_until,
            lambda: decodes(cluster, name) == (role == "decode"),
            VIEW_S,
            lambda: str(cluster.known_workers()),
        )

    await change("prefill")
    yield
    await change("decode")


async def test_when_the_last_worker_decodes_no_more(cluster: Cluster, router: RouterClient) -> None:
    talk = Conversation()
    talk.take(await router.run(talk.prompt, "moved"))
    before = bytes_read(cluster, "")
    for _ in range(1, NUM_TURNS):
        await wait_for_view(cluster)
        async with without(cluster, talk.used[-1]):
            talk.take(await router.run(talk.prompt, "moved"))
            assert talk.used[-1] != talk.used[-2]
    assert bytes_read(cluster, "") > before


async def test_on_another_pair_each_turn(cluster: Cluster) -> None:
    talk = Conversation()
    previous = ""
    for turn in range(NUM_TURNS):
        decode, prefill = f"decode-{turn % 2}", f"prefill-{turn // 2 % 2}"
        source = (previous, cluster.service(previous).address, talk.num_reusable // BLOCK) if previous else None
        before = {kind: bytes_read(cluster, kind) for kind in ("prefill", "decode")}
        async with worker_client(cluster, decode) as client:
            ask = Ask(
                talk.prompt, NUM_OUTPUT, "pairs", (), cluster.service(prefill).address, (source,) if source else ()
            )
            run = await client.run(ask)
            block_bytes = await client.block_bytes()
        assert (run.usage.decode_worker, run.usage.prefill_worker) == (decode, prefill)
        assert bytes_read(cluster, "decode") - before["decode"] == run.usage.transfer_bytes > 0
        fetched = bytes_read(cluster, "prefill") - before["prefill"]
        assert fetched == run.usage.cached_tokens.peer // BLOCK * block_bytes
        if turn:
            assert fetched > 0, "the previous answer was computed again"
        talk.take(run)
        previous = decode


async def test_without_a_source_it_is_computed_again(cluster: Cluster) -> None:
    talk = Conversation()
    prefill = cluster.service("prefill-0").address
    async with worker_client(cluster, "decode-0") as client:
        talk.take(await client.run(Ask(talk.prompt, NUM_OUTPUT, "alone", prefill=prefill)))
    async with worker_client(cluster, "decode-1") as client:
        run = await client.run(Ask(talk.prompt, NUM_OUTPUT, "alone", prefill=prefill))
    assert run.num_cached < talk.num_reusable, "the count does not see what is missing"
