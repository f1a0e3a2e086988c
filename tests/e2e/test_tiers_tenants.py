"""A tenant never finds another's blocks, in no tier and through no door; its own it does find.

A door is a way to ask: HTTP chat, completions, generate and responses, the router's gRPC, and a decode worker's gRPC
alone, with a handoff, and with a peer that holds the prefix. For each door and tier, tenant `a` asks and its KV is left
in that tier only; then `b`, nobody and tenants of similar names ask the same; then `a` again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

import grpc
import httpx
import pytest

from pando.v1 import inference_pb2, inference_pb2_grpc, types_pb2
from tests.support.cluster import UNHURRIED, Cluster
from tests.support.oracle import Ask
from tests.support.tier_client import BLOCK, TierClient

pytestmark = pytest.mark.e2e
STRANGERS = ("b", "", "A", "aa", "a ")
TIERS = ("l1", "l2", "l3")
PREFILL, DECODE = "prefill-0", "decode-0"
FLAGS = {
    "hicache-ratio": "1",
    "hicache-storage-backend": "file",
    "hicache-storage-prefetch-policy": "wait_complete",
    "hicache-prefetch-min-tokens": "16",
    "local-prefill-tokens": "0",
}


@dataclass(slots=True)
class Found:
    """Prompt tokens of an answer, and those of them that nobody computed, by tier where the door tells it."""

    prompt_tokens: int
    cached: int
    by_tier: dict[str, int]

    @classmethod
    def of(cls, usage: types_pb2.Usage) -> Found:
        by_tier = {field.name: int(value) for field, value in usage.cached_tokens.ListFields()}
        return cls(usage.prompt_tokens, sum(by_tier.values()), by_tier)


@dataclass(slots=True)
class House:
    """A cluster of a prefill and a decode worker with tiers, and every door of it."""

    prefill: TierClient
    decode: TierClient
    http: httpx.AsyncClient
    router: inference_pb2_grpc.InferenceStub

    async def keep_only(self, tier: str) -> None:
        """Drop what the tiers above this one hold, once all is written."""
        for worker in (self.prefill, self.decode):
            await worker.written()
        for worker in (self.prefill, self.decode):
            for above in TIERS[: TIERS.index(tier)]:
                await worker.flush_tier(above)

    async def post(self, path: str, salt: str, **body: Any) -> dict[str, Any]:
        fields = body | ({"cache_salt": salt} if salt else {})
        answer = await self.http.post(path, json=fields)
        assert answer.status_code == 200, answer.text
        result: dict[str, Any] = answer.json()
        return result


def text_of(number: int) -> str:
    """A prompt whose first words are nobody else's."""
    return f"{number} is the number of the house " + " ".join(f"and {number * 7 + i} of a door" for i in range(14))


def tokens_of(number: int) -> tuple[int, ...]:
    return tuple(2 + (number * 41 + i * i * (number + 3) + i) % 250 for i in range(150))


async def chat(house: House, number: int, salt: str) -> Found:
    messages = [{"role": "user", "content": text_of(number)}]
    answer = await house.post("/v1/chat/completions", salt, model="tiny", messages=messages, max_tokens=2)
    return http_found(answer["usage"], "prompt_tokens")


async def completions(house: House, number: int, salt: str) -> Found:
    answer = await house.post("/v1/completions", salt, model="tiny", prompt=text_of(number), max_tokens=2)
    return http_found(answer["usage"], "prompt_tokens")


async def responses(house: House, number: int, salt: str) -> Found:
    answer = await house.post("/v1/responses", salt, model="tiny", input=text_of(number), max_output_tokens=2)
    return http_found(answer["usage"], "input_tokens")


def http_found(usage: dict[str, Any], name: str) -> Found:
    by_tier = {tier: count for tier, count in usage["pando"]["cached_tokens"].items() if count}
    return Found(usage[name], usage[f"{name}_details"]["cached_tokens"], by_tier)


async def generate(house: House, number: int, salt: str) -> Found:
    answer = await house.post("/generate", salt, text=text_of(number), sampling_params={"max_new_tokens": 2})
    meta = answer["meta_info"]
    return Found(meta["prompt_tokens"], meta["cached_tokens"], {})


async def router(house: House, number: int, salt: str) -> Found:
    sampling = types_pb2.SamplingParams(max_tokens=2, ignore_eos=True)
    ids = types_pb2.TokenIds(ids=tokens_of(number))
    call = house.router.Generate(inference_pb2.GenerateRequest(token_ids=ids, sampling=sampling, cache_salt=salt))
    frames = [frame async for frame in call]
    return Found.of(frames[-1].usage)


async def worker(house: House, number: int, salt: str) -> Found:
    return await ask_decode(house, Ask(tokens_of(number), 2, salt))


async def handoff(house: House, number: int, salt: str) -> Found:
    return await ask_decode(house, Ask(tokens_of(number), 2, salt, prefill=house.prefill.address))


async def peer(house: House, number: int, salt: str) -> Found:
    """The decode worker has nothing of its own and is told that the prefill worker holds all."""
    await house.decode.written()
    await house.decode.flush()
    ask = Ask(tokens_of(number), 2, salt)
    source = (PREFILL, house.prefill.address, len(ask.prompt) // BLOCK)
    return await ask_decode(house, replace(ask, sources=(source,)))


async def ask_decode(house: House, ask: Ask) -> Found:
    return Found.of((await house.decode.run(ask)).usage)


Door = Callable[[House, int, str], Awaitable[Found]]
DOORS: dict[str, Door] = {
    door.__name__: door for door in (chat, completions, responses, generate, router, worker, handoff, peer)
}
CASES = [(door, tier) for door in DOORS for tier in TIERS if (door, tier) != ("peer", "l3")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[Cluster, None, None]:
    folder = tmp_path_factory.mktemp("tenants")
    flags = FLAGS | {"hicache-storage-dir": str(folder / "store")}
    given = [*UNHURRIED] + [part for name, value in flags.items() for part in (f"--worker.{name}", value)]
    with Cluster(folder / "run", *given, "--router.remote-prefill-min-tokens", "32") as started:
        started.wait_serving()
        yield started


async def in_house(cluster: Cluster, visit: Callable[[House], Awaitable[None]]) -> None:
    async with AsyncExitStack() as stack:
        workers = [TierClient(cluster.service(name).address, name) for name in (PREFILL, DECODE)]
        for client in workers:
            await stack.enter_async_context(client)
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=cluster.url, timeout=60))
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(cluster.router))
        await visit(House(workers[0], workers[1], http, inference_pb2_grpc.InferenceStub(channel)))


@pytest.mark.parametrize(("door", "tier"), CASES)
def test_nobody_finds_what_another_tenant_left(door: str, tier: str, cluster: Cluster) -> None:
    number = CASES.index((door, tier))

    async def visit(house: House) -> None:
        ask = DOORS[door]
        first = await (handoff if ask is peer else ask)(house, number, "a")
        assert first.prompt_tokens > 64 and first.cached == 0, f"the prompt is not new: {first}"
        await house.keep_only(tier)
        for stranger in STRANGERS:
            found = await ask(house, number, stranger)
            assert found.cached == 0, f"{stranger!r} found what `a` left: {found}"
        await house.keep_only(tier)
        again = await ask(house, number, "a")
        assert again.cached == (first.prompt_tokens - 1) // BLOCK * BLOCK, f"`a` does not find its own: {again}"
        where = "peer" if ask is peer else tier
        assert not again.by_tier or again.by_tier == {where: again.cached}, again

    asyncio.run(in_house(cluster, visit))
    cluster.check_logs()
