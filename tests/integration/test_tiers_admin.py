"""Tiers of a running worker under an operator's hand: what is refused changes nothing, what is done disturbs nobody."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from pando.v1 import admin_pb2, admin_pb2_grpc
from tests.support.oracle import Ask, Run
from tests.support.store_files import num_files
from tests.support.tier_client import PATIENT, TierClient, check_exact, reusable_tokens
from tests.support.workers import WorkerProcess, Workers

NO_L2, WITH_L2 = "no-l2", "l2"
FLAGS = {"debug_logits_digest": "", "max_total_tokens": "2048"}
PROMPT = tuple(2 + (i * i * 31 + i * 7) % 250 for i in range(200))
ASK = Ask(PROMPT, 4)
SEEN = ("blocks_total", "blocks_cached", "objects", "capacity_bytes", "eviction_policy", "backend")
Refused = tuple[str, dict[str, object], str]


def attach(folder: object, **changes: object) -> dict[str, object]:
    settings = {"path": str(folder), "size_gb": "1"}
    return {"backend": "file", "settings": settings} | changes


def prefetch(**fields: object) -> admin_pb2.Prefetch:
    return admin_pb2.Prefetch(**fields)  # type: ignore[arg-type]


def refused_always(folder: Path) -> list[Refused]:
    """Method, fields, and the code of the refusal, whether a store is attached or not."""
    bad = "INVALID_ARGUMENT"
    return [
        ("Flush", {"tier": "l9"}, bad),
        ("Flush", {"tier": ""}, bad),
        ("Flush", {"tier": "l1", "namespace": "ab"}, bad),
        ("Flush", {"tier": "l3", "namespace": "xy"}, bad),
        ("Flush", {"tier": "l3", "namespace": "ab" * 65}, bad),
        ("AttachStorage", attach(folder, backend="floppy"), bad),
        ("AttachStorage", attach(folder, backend=""), bad),
        ("AttachStorage", attach(folder, settings={"path": str(folder), "colour": "red"}), bad),
        ("AttachStorage", attach(folder, settings={}), bad),
        ("AttachStorage", attach(folder, settings={"path": str(folder), "size_gb": "-1"}), bad),
        ("AttachStorage", attach(folder, settings={"path": str(folder), "size_gb": "nan"}), bad),
        ("AttachStorage", attach(folder, prefetch=prefetch(policy="hopeful")), bad),
        ("AttachStorage", attach(folder, prefetch=prefetch(min_tokens=7, deadline_s=0.0)), bad),
        ("SetPolicies", {"write_policy": "write_around"}, bad),
        ("SetPolicies", {"write_policy": "write_back", "l1_eviction_policy": "random"}, bad),
        ("SetPolicies", {"l1_eviction_policy": "lfu", "l2_eviction_policy": ""}, bad),
        ("SetPolicies", {"l1_eviction_policy": "lfu", "prefetch": prefetch(timeout_base_s=float("nan"))}, bad),
        ("SetPolicies", {"prefetch": prefetch(policy="best_effort", max_blocks=0)}, bad),
    ]


def refused_without_store(folder: Path) -> list[Refused]:
    (folder.parent / "a-file").touch()
    return [
        ("DetachStorage", {}, "INVALID_ARGUMENT"),
        ("Flush", {"tier": "l3"}, "INVALID_ARGUMENT"),
        ("AttachStorage", attach(folder.parent / "a-file"), "UNAVAILABLE"),
        ("AttachStorage", attach(folder.parent / "a-file" / "below", prefetch=prefetch(min_tokens=7)), "UNAVAILABLE"),
    ]


def refused_with_store(folder: Path, kind: str) -> list[Refused]:
    cases: list[Refused] = [("AttachStorage", attach(folder, prefetch=prefetch(min_tokens=7)), "INVALID_ARGUMENT")]
    if kind == NO_L2:
        cases.append(("Flush", {"tier": "l2"}, "INVALID_ARGUMENT"))
        cases.append(("SetPolicies", {"write_policy": "write_back"}, "INVALID_ARGUMENT"))
        cases.append(("SetPolicies", {"l1_eviction_policy": "slru", "write_policy": "write_back"}, "INVALID_ARGUMENT"))
    return cases


@pytest.fixture(scope="module")
def workers() -> Generator[dict[str, WorkerProcess], None, None]:
    with Workers(**FLAGS) as processes:
        started = {NO_L2: processes.launch("decode"), WITH_L2: processes.launch("decode", hicache_ratio="2")}
        yield {name: worker.wait_ready() for name, worker in started.items()}


@pytest.fixture(params=[NO_L2, WITH_L2])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def client(workers: dict[str, WorkerProcess], kind: str) -> AsyncGenerator[TierClient, None]:
    """A worker without anything cached or attached, under its first policies."""
    async with TierClient(workers[kind].address) as client:
        await client.forget()
        yield client
        if "l3" in await client.tiers():
            await client.detach()
        first = {"write_policy": "write_through", "l1_eviction_policy": "lru", "l2_eviction_policy": "lru"}
        await client.set_policies(**first, prefetch={"min_tokens": 64})


async def seen(client: TierClient) -> tuple[dict[str, dict[str, object]], str]:
    """All that a refused call could have changed."""
    tiers = await client.tiers()
    described = {name: {field: getattr(tier, field) for field in SEEN} for name, tier in tiers.items()}
    return described, str(await client.policies())


async def check_refused(client: TierClient, cases: list[Refused]) -> None:
    """Each call is refused as it should be, and everything is as before."""
    async with grpc.aio.insecure_channel(client.address) as channel:
        admin = admin_pb2_grpc.AdminServiceStub(channel)
        before = await seen(client)
        for method, fields, code in cases:
            message = getattr(admin_pb2, f"{method}Request")(**fields)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await getattr(admin, method)(message)
            assert caught.value.code().name == code, f"{method} {fields}: {caught.value}"
            assert await seen(client) == before, f"{method} {fields} was refused and changed something"


async def test_what_is_refused_changes_nothing(client: TierClient, kind: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    await client.run(ASK)
    await client.written()
    await check_refused(client, [*refused_always(store), *refused_without_store(store)])
    assert not store.exists(), "a refused attach made a folder"
    await client.attach(store)
    await client.written()
    await check_refused(client, [*refused_always(tmp_path / "other"), *refused_with_store(tmp_path / "other", kind)])
    assert not (tmp_path / "other").exists()
    await client.forget()
    assert (await client.run(ASK)).usage.cached_tokens.l3 == reusable_tokens(PROMPT), "the store is not what it was"


async def test_tiers_come_and_go(client: TierClient, kind: str, tmp_path: Path) -> None:
    [cold] = await client.cold([ASK])
    num_blocks = len(PROMPT) // 16

    async def again(**cached: int) -> None:
        run = await client.run(ASK)
        check_exact([ASK], [run], [cold])
        found = {field.name: value for field, value in run.usage.cached_tokens.ListFields()}
        assert found == cached
        await client.written()

    whole = reusable_tokens(PROMPT)
    await again()
    await client.attach(tmp_path / "a")
    await client.written()
    assert num_files(tmp_path / "a") == num_blocks
    assert await client.flush_tier("l1") == num_blocks
    if kind == WITH_L2:
        await again(l2=whole)
        await client.flush_tier("l1")
        assert await client.flush_tier("l2") == num_blocks
    await again(l3=whole)
    await client.forget()
    await client.detach()
    await again()
    await client.forget()
    await client.attach(tmp_path / "b")
    await again()
    assert await client.flush_tier("l3") == num_blocks == num_files(tmp_path / "a")
    assert num_files(tmp_path / "b") == 0
    await client.forget()
    await again()
    await client.forget()
    await again(l3=whole)


@asynccontextmanager
async def load(client: TierClient, asks: list[Ask], colds: list[Run]) -> AsyncGenerator[list[int], None]:
    """Requests all the time while the body runs, each compared with its cold run; yields a count of them."""
    done, going = [0], True
    draw = random.Random(1)

    async def ask_for_ever() -> None:
        while going:
            which = draw.randrange(len(asks))
            check_exact([asks[which]], [await client.run(asks[which])], [colds[which]])
            done[0] += 1

    clients = [asyncio.create_task(ask_for_ever()) for _ in range(4)]
    try:
        yield done
    finally:
        going = False
        await asyncio.gather(*clients)


async def test_everything_changes_under_load(client: TierClient, kind: str, tmp_path: Path) -> None:
    """Stores come and go, tiers are flushed, policies change: nobody who is served sees anything of it."""
    asks = [Ask(tuple(random.Random(n).choices(range(2, 250), k=150 + 17 * n)), 3) for n in range(12)]
    colds = await client.cold(asks)
    evictions = itertools.cycle(["lfu", "slru", "priority", "lru"])
    writes = itertools.cycle(["write_through_selective", "write_through"] + ["write_back"] * (kind == WITH_L2))
    prefetches = itertools.cycle(["best_effort", "timeout", "wait_complete"])
    async with load(client, asks, colds) as done:
        for turn in range(12):
            await client.attach(tmp_path / f"store-{turn % 2}", policy=next(prefetches))
            await _wait_for(done, 3)
            policies = await client.set_policies(
                write_policy=next(writes),
                l1_eviction_policy=next(evictions),
                l2_eviction_policy=next(evictions),
                prefetch={"policy": next(prefetches), "min_tokens": 16},
            )
            assert policies == await client.policies()
            for tier in ("l1", "l2", "l3")[:: 1 if kind == WITH_L2 else 2]:
                await client.flush_tier(tier)
                await _wait_for(done, 2)
            await client.detach()
            await _wait_for(done, 2)
    await client.forget()
    await client.set_policies(write_policy="write_through", prefetch=dict(PATIENT))
    await client.attach(tmp_path / "last")
    for _ in range(2):
        runs = []
        for ask in asks:
            runs.append(await client.run(ask))
            await client.written()  # L1 has no room for all of them
        await client.forget()
        check_exact(asks, runs, colds)
    found = sum(run.usage.cached_tokens.l3 for run in runs)
    assert found == sum(reusable_tokens(ask.prompt) for ask in asks), "L3 is not used as before"


async def _wait_for(done: list[int], num_more: int) -> None:
    """Wait until so many more requests have ended."""
    wanted = done[0] + num_more
    async with asyncio.timeout(60):
        while done[0] < wanted:  # noqa: ASYNC110 - other tasks count
            await asyncio.sleep(0.005)
