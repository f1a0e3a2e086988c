"""Tiers never change a bit: whatever path KV takes through L1, L2 and L3, and whatever L3 does to it on the way.

Real worker processes over the tiny model, once per dtype of the KV; what is compared are the logits digests of every
step, with those of cold runs that were made before any store was attached.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from common.base.failpoints import POLL_S
from tests.support.oracle import Ask, Run, difference
from tests.support.store_files import payload_of, swap_payloads
from tests.support.tier_client import TierClient, all_at_once, check_exact, names_of, reusable_tokens
from tests.support.tiny_vocab import tiny_vocab
from tests.support.workers import WorkerProcess, Workers

pytestmark = pytest.mark.e2e
VOCAB = len(tiny_vocab().tokens)
KINDS = {"bf16": {"dtype": "bf16"}, "int8": {"dtype": "bf16", "kv_cache_dtype": "int8"}}
KEY = "k" * 32
NUM_PREFIXES, NUM_REQUESTS, PREFIX_TOKENS = 20, 200, 160
FORGET_AFTER, CONCURRENCY = 40, 4
READ_FAULTS = "7%fail;7%truncate;5%flip;5%flip(recompute)"
LATE = "6%delay(0.02);3%delay(0.3)"
L2_FAULTS = "10%fail;10%delay(0.02)"
PROMPT = tuple(2 + (i * i * 31 + i * 7) % (VOCAB - 2) for i in range(200))
ASK = Ask(PROMPT, 8)


def tokens(length: int, seed: int) -> tuple[int, ...]:
    draw = random.Random(seed)
    return tuple(draw.randrange(2, VOCAB) for _ in range(length))


def key_file(folder: Path) -> str:
    path = folder / "key"
    path.touch(0o600)
    path.write_text(KEY)
    return str(path)


def launch(workers: Workers, kind: str, role: str = "decode", **flags: str) -> WorkerProcess:
    return workers.launch(role, **(KINDS[kind] | {"debug_logits_digest": "", "enable_failpoints": ""} | flags))


def start(workers: Workers, kind: str, **flags: str) -> WorkerProcess:
    return launch(workers, kind, **flags).wait_ready()


def requests() -> list[Ask]:
    """Requests over shared prefixes: one of each first, then in an order that favours none for long."""
    prefixes = [tokens(PREFIX_TOKENS, number) for number in range(NUM_PREFIXES)]
    draw = random.Random(5)
    order = [*range(NUM_PREFIXES), *(draw.randrange(NUM_PREFIXES) for _ in range(NUM_REQUESTS - NUM_PREFIXES))]
    return [Ask((*prefixes[which], *tokens(3 + n % 20, 1000 + n)), 3) for n, which in enumerate(order)]


@pytest.mark.parametrize(("kind", "way"), [("bf16", "local"), ("int8", "local"), ("bf16", "pd"), ("int8", "pd")])
def test_a_store_that_lies_costs_time_and_never_a_bit(kind: str, way: str, tmp_path: Path) -> None:
    """Three in ten reads fail, are cut, flipped (half of the flips under a fitting checksum) or late."""
    faults = tmp_path / "faults"
    faults.mkdir()
    small = {"max_total_tokens": "1280", "hicache_ratio": "3", "kv_tag_key_file": key_file(tmp_path)}
    armed = {"failpoints_dir": str(faults), "local_prefill_tokens": "0", "max_landing_ratio": "1"}
    with Workers(**small, **armed) as workers:
        fleet = [launch(workers, kind, role) for role in (("decode", "prefill") if way == "pd" else ("decode",))]
        asyncio.run(_serve_from_a_bad_store([worker.wait_ready() for worker in fleet], faults, tmp_path / "store"))
        assert sum(worker.metric("pando_worker_integrity_failures_total") for worker in fleet) > 0
        log = [line for worker in fleet for line in worker.log]
        for how in ("length", "checksum", "tag"):
            assert any(f'"how": "{how}"' in line for line in log), f"no block was found out by its {how}"


async def _serve_from_a_bad_store(fleet: Sequence[WorkerProcess], faults: Path, store: Path) -> None:
    """Requests to the first worker, whose prompts the last one computes; both use the store."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(TierClient(worker.address)) for worker in fleet]
        decode, computing = clients[0], clients[-1]
        asks = requests()
        colds = await decode.cold(asks)
        for client in clients:
            await client.attach(store, policy="timeout", timeout_base_s=0.2, patience_ratio=1e6)
        if computing is not decode:
            asks = [replace(ask, prefill=computing.address) for ask in asks]
        await all_at_once(decode, asks[:NUM_PREFIXES], CONCURRENCY)
        (faults / "l3.read").write_text(READ_FAULTS)
        for client in clients:
            await client.arm("l3.read", LATE)
            await client.arm("l2.*", L2_FAULTS)
        await asyncio.sleep(POLL_S)
        for first in range(0, NUM_REQUESTS, FORGET_AFTER):
            for client in clients:
                await client.forget()
            part = slice(first, first + FORGET_AFTER)
            check_exact(asks[part], await all_at_once(decode, asks[part], CONCURRENCY), colds[part])
        hits = await computing.hit_tokens()
        reads, faulty = (await computing.failpoints())["l3.read"]
        assert min(hits["l2"], hits["l3"]) > 3 * PREFIX_TOKENS, f"tokens found by tier: {hits}"
        assert reads > 200 and 0.24 < faulty / reads < 0.38, f"{faulty} of {reads} reads were spoiled"


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_and_logits_are_the_same_after_every_hop_and_a_restart(kind: str, tmp_path: Path) -> None:
    tiers = {"hicache_ratio": "1", "kv_tag_key_file": key_file(tmp_path)}
    with Workers() as workers:
        first = start(workers, kind, **tiers)
        cold, blocks = asyncio.run(_hop(first, tmp_path / "store"))
        assert first.terminate() == 0
        second = start(workers, kind, **tiers)
        asyncio.run(_come_back(second, tmp_path / "store", cold, blocks))


async def _hop(worker: WorkerProcess, store: Path) -> tuple[Run, list[bytes]]:
    """L1 -> L2 -> L1, then L1 -> L2 -> L3 -> L2 -> L1; returns the cold run and the bytes of its blocks."""
    async with TierClient(worker.address) as client:
        [cold] = await client.cold([ASK])
        await client.attach(store)
        check_exact([ASK], [await client.run(ASK)], [cold])
        await client.written()
        names = names_of(PROMPT)
        l1, blocks = await client.lent(names)
        assert len(set(blocks)) == len(names) == 12, "the blocks are not all different"
        assert [payload_of(store, name) for name in names] == blocks, "L3 has other bytes than L1"

        await client.flush_tier("l1")
        l2, lower = await client.lent(names)
        assert l1 != l2 and lower == blocks, "L2 has other bytes than L1 had"
        await _returns_from(client, "l2", cold, blocks)
        await client.forget()
        assert await client.lent(names) == (set(), []), "something is left in L1 or L2"
        await _returns_from(client, "l3", cold, blocks)
        await client.flush_tier("l1")
        assert await client.lent(names) == (l2, blocks), "L2 got other bytes from L3 than L1 had"
        return cold, blocks


async def _come_back(worker: WorkerProcess, store: Path, cold: Run, blocks: Sequence[bytes]) -> None:
    async with TierClient(worker.address) as client:
        await client.attach(store)
        await _returns_from(client, "l3", cold, blocks)


async def _returns_from(client: TierClient, tier: str, cold: Run, blocks: Sequence[bytes]) -> None:
    """The prompt is found in a tier, and then L1 has the same bytes and the run the same logits."""
    run = await client.run(ASK)
    check_exact([ASK], [run], [cold])
    assert getattr(run.usage.cached_tokens, tier) == reusable_tokens(PROMPT), f"{run.usage.cached_tokens}"
    assert (await client.lent(names_of(PROMPT)))[1] == blocks, f"L1 got other bytes from {tier}"


@pytest.mark.parametrize("keyed", [False, True])
def test_swapped_blocks_under_fitting_checksums_are_seen_and_a_key_stops_them(keyed: bool, tmp_path: Path) -> None:
    """The oracle is not blind, and the tag is what keeps it green."""
    flags = {"kv_tag_key_file": key_file(tmp_path)} if keyed else {}
    with Workers() as workers:
        worker = start(workers, "bf16", **flags)
        where = asyncio.run(_swap(worker, tmp_path / "store"))
        caught = worker.metric("pando_worker_integrity_failures_total")
    assert (where, caught) == (("", 2) if keyed else ("logits of output position 0", 0))


async def _swap(worker: WorkerProcess, store: Path) -> str:
    """Swap two blocks of a prompt in the store; returns where its next run differs from the cold one."""
    async with TierClient(worker.address) as client:
        [cold] = await client.cold([ASK])
        await client.attach(store)
        await client.run(ASK)
        await client.forget()
        names = names_of(PROMPT)
        swap_payloads(store, names[4], names[5])
        run = await client.run(ASK)
        await client.written()
        found = run.usage.cached_tokens.l3
        where = difference(run, cold)
        assert found == (4 * 16 if where == "" else reusable_tokens(PROMPT))
        return where
