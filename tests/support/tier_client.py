"""A worker with tiers, seen from outside: the oracle's client plus the operator's RPCs and a look at block bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from common.kv.hashing import block_hashes, prefix_root
from common.rpc.convert import join_hashes
from common.transport.base import Endpoint
from common.worker.convert import endpoint_from_pb, extent_from_pb
from pando.v1 import admin_pb2, admin_pb2_grpc, worker_pb2
from tests.support.oracle import Ask, Run, WorkerClient, difference
from tests.support.transport_reader import Reader

BLOCK = 16
DRAIN_S = 60.0
MAX_L3_FILL = 1 + 1 / 64
"""A worker may exceed the cap of the file backend by a 64th (`common.cache.file_census`)."""
PATIENT: dict[str, Any] = {"policy": "wait_complete", "min_tokens": 1}
"""Prefetch settings under which what L3 has is waited for."""


class TierClient(WorkerClient):
    """The RPCs of one worker that tests of tiers use."""

    def __init__(self, address: str, worker_id: str = "decode") -> None:
        super().__init__(address, worker_id)
        self._admin = admin_pb2_grpc.AdminServiceStub(self._channel)

    async def __aenter__(self) -> TierClient:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def tiers(self) -> dict[str, admin_pb2.TierInfo]:
        """The tiers by name, with the conservation law checked."""
        answer = await self._admin.GetTiers(admin_pb2.GetTiersRequest())
        for tier in answer.tiers:
            parts = (tier.blocks_free, tier.blocks_cached, tier.blocks_held)
            assert sum(parts) == tier.blocks_total, f"{tier.tier}: free, cached, held {parts} of {tier.blocks_total}"
        return {tier.tier: tier for tier in answer.tiers}

    async def policies(self) -> admin_pb2.Policies:
        """The policies in force."""
        answer: admin_pb2.GetTiersResponse = await self._admin.GetTiers(admin_pb2.GetTiersRequest())
        return answer.policies

    async def hit_tokens(self) -> dict[str, int]:
        """Prompt tokens found per tier since the start."""
        return {name: int(tier.hit_tokens) for name, tier in (await self.tiers()).items()}

    async def flush_tier(self, tier: str) -> int:
        """Drop what nobody holds of one tier."""
        answer = await self._admin.Flush(admin_pb2.FlushRequest(tier=tier))
        return int(answer.num_blocks_dropped)

    async def attach(self, folder: object, size_gb: float = 1.0, **prefetch: Any) -> None:
        """Attach the file backend."""
        await self._attach("file", {"path": str(folder), "size_gb": f"{size_gb:.9f}"}, prefetch)

    async def attach_store(self, address: str, **prefetch: Any) -> None:
        """Attach a KV store that is one process."""
        await self._attach("kvstore", {"address": address}, prefetch)

    async def _attach(self, backend: str, settings: dict[str, str], prefetch: dict[str, Any]) -> None:
        wanted = admin_pb2.Prefetch(**(PATIENT | prefetch))
        await self._admin.AttachStorage(
            admin_pb2.AttachStorageRequest(backend=backend, settings=settings, prefetch=wanted)
        )

    async def detach(self) -> None:
        """Detach L3."""
        await self._admin.DetachStorage(admin_pb2.DetachStorageRequest())

    async def set_policies(self, **fields: Any) -> admin_pb2.Policies:
        """Change policies; `prefetch` is a dict."""
        prefetch = admin_pb2.Prefetch(**fields.pop("prefetch", {}))
        answer = await self._admin.SetPolicies(admin_pb2.SetPoliciesRequest(prefetch=prefetch, **fields))
        policies: admin_pb2.Policies = answer.policies
        return policies

    async def arm(self, name: str, rule: str) -> None:
        """Arm a failpoint."""
        await self._admin.ArmFailpoint(admin_pb2.ArmFailpointRequest(name=name, rule=rule))

    async def disarm(self) -> None:
        """Take back what `arm` did."""
        await self._admin.DisarmFailpoint(admin_pb2.DisarmFailpointRequest(all=True))

    async def failpoints(self) -> dict[str, tuple[int, int]]:
        """How often each failpoint was hit, and how often a fault came of it."""
        answer = await self._admin.ListFailpoints(admin_pb2.ListFailpointsRequest())
        return {point.name: (int(point.hits), int(point.fired)) for point in answer.failpoints}

    async def written(self, within_s: float = DRAIN_S) -> None:
        """Wait until nothing waits to be written to a lower tier."""
        async with asyncio.timeout(within_s):
            while any(tier.pending_writes for tier in (await self.tiers()).values()):  # noqa: ASYNC110 - remote
                await asyncio.sleep(0.01)

    async def forget(self) -> None:
        """Drop L1 and L2, once all is written; what L3 has stays."""
        await self.written()
        await self.flush()
        tiers = await self.tiers()
        left = {name: tier.blocks_cached for name, tier in tiers.items() if tier.blocks_cached}
        assert not left, f"blocks are left after a flush: {left}"

    async def cold(self, asks: Sequence[Ask]) -> list[Run]:
        """Runs without any KV to reuse, one at a time; no store may be attached. Nothing stays in L1 and L2."""
        assert "l3" not in await self.tiers(), "a cold run must not meet L3"
        runs = []
        for number, ask in enumerate(asks):
            run = await self.run(Ask(ask.prompt, ask.max_tokens, f"cold-{number}"))
            assert run.num_cached == 0, f"a cold run had {run.num_cached} cached tokens"
            runs.append(run)
        await self.forget()
        return runs

    async def lent(self, hashes: Sequence[bytes]) -> tuple[set[int], list[bytes]]:
        """Segments and bytes of the leading blocks of a path that are here, read as a peer on this host reads them."""
        info = await self._worker.GetInfo(worker_pb2.GetInfoRequest())
        call = self._worker.Lend()
        try:
            await call.write(worker_pb2.LendRequest(identity=info.identity, prefix_hashes=join_hashes(hashes)))
            answer = await call.read()
            extents = [extent_from_pb(extent) for extent in answer.extents]
            endpoint = endpoint_from_pb(answer.endpoints[0])
            blocks = await asyncio.to_thread(_read, endpoint, extents) if extents else []
            return {extent.segment for extent in extents}, blocks
        finally:
            call.cancel()


def _read(endpoint: Endpoint, extents: Sequence[Any]) -> list[bytes]:
    with Reader(endpoint.driver) as reader:
        return [bytes(target) for target in reader.read(endpoint, extents)]


def names_of(prompt: Sequence[int], salt: str = "", block_size: int = BLOCK) -> list[bytes]:
    """Hashes of the blocks of a prompt that another request of it can find."""
    return block_hashes(prefix_root(block_size, salt), prompt[:-1], block_size)


def reusable_tokens(prompt: Sequence[int], block_size: int = BLOCK) -> int:
    """Tokens of a prompt that another request of it can find: its last token is always computed."""
    return (len(prompt) - 1) // block_size * block_size


def check_exact(asks: Sequence[Ask], runs: Sequence[Run], colds: Sequence[Run]) -> None:
    """Assert that every run has the tokens and logits of its cold run, and all of them."""
    for ask, run, cold in zip(asks, runs, colds, strict=True):
        assert len(run.token_ids) == ask.max_tokens
        where = difference(run, cold)
        assert not where, f"{where} differ: prompt of {len(ask.prompt)} tokens, {run.usage.cached_tokens}"


async def all_at_once(client: WorkerClient, asks: Sequence[Ask], concurrency: int) -> list[Run]:
    """Run asks, so many at a time, and return their runs in order."""
    turn = asyncio.Semaphore(concurrency)

    async def one(ask: Ask) -> Run:
        async with turn:
            return await client.run(ask)

    return list(await asyncio.gather(*(one(ask) for ask in asks)))
