"""The nodes that a leader follows: one stream each, from which the directory learns.

A node whose stream breaks loses its entries at once, since a new stream brings all of them anew; it counts as missing
(the directory is not complete) until it is back, or its registration has ended as well and it is given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import grpc

from common.base.errors import Leg, PandoError
from common.base.logging import get_logger
from common.cache import kvstore_wire as wire
from common.cache.kvstore_calls import StoreCalls
from common.cache.kvstore_placement import Candidate
from common.cache.kvstore_view import NODE
from common.rpc.errors import cancelled_elsewhere, from_rpc_error
from common.rpc.registry import WorkerRecord
from pando.v1 import kvstore_pb2
from services.kvstore.directory import Directory
from services.kvstore.terms import STALE_TERM

_FOLLOW_AGAIN_S = 0.2
_MAX_NAMES = 1 << 20
"""Of one message: what one call removes may be much more than what one call may name."""


@dataclass(slots=True)
class _Followed:
    """One node; `space` is None until it has said all that it has."""

    record: WorkerRecord
    task: asyncio.Task[None]
    space: kvstore_pb2.NodeSpace | None = None


class Followers:
    """Follows nodes for a leader of `leader_id` at `address`. Lives on one loop.

    Args:
        directory: is kept true.
        calls: to the nodes.
        on_refused: called with the term of a later leader that a node knows.
    """

    def __init__(
        self,
        directory: Directory,
        calls: StoreCalls,
        leader_id: str,
        address: str,
        *,
        on_refused: Callable[[int], None],
    ) -> None:
        self.directory = directory
        self._calls = calls
        self._leader_id = leader_id
        self._address = address
        self._on_refused = on_refused
        self._followed: dict[str, _Followed] = {}

    def __len__(self) -> int:
        return len(self._followed)

    def candidates(self) -> list[Candidate]:
        """The nodes whose inventory is here."""
        return [
            Candidate(
                node_id, one.record.address, one.space.host_id, max(1, one.space.capacity_bytes), one.space.free_bytes
            )
            for node_id, one in self._followed.items()
            if one.space is not None
        ]

    def find(self, node_id: str) -> Candidate | None:
        """A node that is followed."""
        one = self._followed.get(node_id)
        return None if one is None else Candidate(node_id, one.record.address)

    def on_host(self, host_id: str) -> frozenset[str]:
        """The nodes on a host."""
        return frozenset(
            node_id for node_id, one in self._followed.items() if one.space is not None and one.space.host_id == host_id
        )

    def listed(self, records: Iterable[WorkerRecord], term: int, *, settled: bool) -> None:
        """Who is registered now: follow new lives under `term`, give up those that are neither listed nor heard of.

        Unless it is `settled`, there may be nodes that are not listed, and the directory is not complete.
        """
        nodes = {record.worker_id: record for record in records if NODE in record.roles}
        for node_id, one in list(self._followed.items()):
            fresh = nodes.get(node_id)
            if (fresh is None and one.space is None) or (fresh and fresh.incarnation != one.record.incarnation):
                self._give_up(node_id)
        for node_id, record in nodes.items():
            if node_id not in self._followed:
                task = asyncio.create_task(self._follow(record, term))
                self._followed[node_id] = _Followed(record, task)
        self.directory.expect(self._followed if settled else None)

    def end(self) -> list[asyncio.Task[None]]:
        """Follow nobody any more; returns the tasks that are ending."""
        tasks = [one.task for one in self._followed.values()]
        for node_id in list(self._followed):
            self._give_up(node_id)
        self.directory.expect(None)
        return tasks

    def _give_up(self, node_id: str) -> None:
        self._followed.pop(node_id).task.cancel()
        self.directory.drop(node_id)

    async def _follow(self, record: WorkerRecord, term: int) -> None:
        """Keep the directory true for one life of a node, until it is given up."""
        while True:
            try:
                await self._follow_once(record, term)
            except grpc.aio.AioRpcError as error:
                failure = from_rpc_error(error, Leg.STORE)
                if failure.reason == STALE_TERM:
                    self._on_refused(int(failure.param) if failure.param.isdecimal() else term)
                    return
                get_logger().debug("a node's inventory broke off", node=record.worker_id, error=failure.message)
            except PandoError as error:  # names that are none
                get_logger().warning("a node's inventory makes no sense", node=record.worker_id, error=error.message)
            except asyncio.CancelledError:
                if not cancelled_elsewhere():
                    raise
            one = self._followed.get(record.worker_id)
            if one is not None and one.record is record:
                self.directory.drop(record.worker_id)
                one.space = None
            await asyncio.sleep(_FOLLOW_AGAIN_S)

    async def _follow_once(self, record: WorkerRecord, term: int) -> None:
        directory, node_id = self.directory, record.worker_id
        request = kvstore_pb2.WatchInventoryRequest(term=term, leader_id=self._leader_id, leader_address=self._address)
        call = self._calls.stub(record.address).WatchInventory(request)
        try:
            directory.begin(node_id)
            async for page in call:
                if page.incarnation != record.incarnation:
                    return
                directory.add(node_id, wire.unpack_names(page.added, _MAX_NAMES))
                directory.remove(node_id, wire.unpack_names(page.removed, _MAX_NAMES))
                if page.snapshot_end:
                    directory.end_snapshot(node_id)
                if not page.snapshot or page.snapshot_end:
                    self._followed[node_id].space = page.space
        finally:
            call.cancel()
