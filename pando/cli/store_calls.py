"""Calls of `pando store`: find the store's processes, ask all of them at once, page by page where there are pages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.json_format import MessageToDict

from common.base.errors import Leg
from common.rpc.errors import from_rpc_error
from common.rpc.registry import STORE
from pando.cli.errors import BAD_INPUT, CliError
from pando.cli.members import ALL, registered, registry_of
from pando.v1 import kvstore_pb2, kvstore_pb2_grpc, types_pb2

Stub = kvstore_pb2_grpc.KvStoreServiceStub


@dataclass(slots=True, frozen=True)
class StoreFleet:
    """Which store, and which process of it: a node id, host:port, or `all`."""

    run_dir: Path
    registry: str = ""
    cluster: str = "pando"
    node: str = ALL
    timeout_s: float = 30.0


@dataclass(slots=True)
class _Answer:
    """What one process said; `error` is why it said nothing."""

    node_id: str
    address: str
    error: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)


@dataclass(slots=True)
class Stats(_Answer):
    """See GetStoreStatsResponse; by name of its fields."""

    values: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Listing(_Answer):
    """Objects, and whether there are more."""

    objects: list[dict[str, Any]] = field(default_factory=list)
    more: bool = False


@dataclass(slots=True)
class Verified(_Answer):
    """What was checked; keys of damaged objects."""

    num_checked: int = 0
    damaged: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Removed(_Answer):
    """How many objects went."""

    num_removed: int = 0


A = TypeVar("A", bound=_Answer)


def stats(fleet: StoreFleet) -> list[Stats]:
    """What each process is and holds. Raises CliError."""

    async def fill(answer: Stats, stub: Stub) -> None:
        message = await stub.GetStoreStats(kvstore_pb2.GetStoreStatsRequest(), timeout=fleet.timeout_s)
        answer.values = MessageToDict(
            message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )

    return asyncio.run(_ask(fleet, Stats, fill))


def objects(fleet: StoreFleet, namespace: bytes, limit: int) -> list[Listing]:
    """Up to `limit` objects of each node. Raises CliError."""

    async def fill(answer: Listing, stub: Stub) -> None:
        token = b""
        while not answer.more:
            left = limit - len(answer.objects)
            request = kvstore_pb2.ListObjectsRequest(page_token=token, namespace=namespace, page_size=left)
            page = await stub.ListObjects(request, timeout=fleet.timeout_s)
            answer.objects += [_object(one) for one in page.objects]
            token = page.next_page_token
            if not token:
                return
            answer.more = len(answer.objects) >= limit

    return asyncio.run(_ask(fleet, Listing, fill))


def verify(fleet: StoreFleet, namespace: bytes) -> list[Verified]:
    """Check all objects. Raises CliError."""

    async def fill(answer: Verified, stub: Stub) -> None:
        token = b""
        while True:
            request = kvstore_pb2.VerifyRequest(page_token=token, namespace=namespace)
            page = await stub.Verify(request, timeout=fleet.timeout_s)
            answer.num_checked += page.num_checked
            answer.damaged += [_key(key) for key in page.damaged]
            token = page.next_page_token
            if not token:
                return

    return asyncio.run(_ask(fleet, Verified, fill))


def remove(fleet: StoreFleet, namespace: bytes) -> list[Removed]:
    """Remove a namespace. Raises CliError."""

    async def fill(answer: Removed, stub: Stub) -> None:
        request = kvstore_pb2.RemoveNamespaceRequest(namespace=namespace)
        answer.num_removed = (await stub.RemoveNamespace(request, timeout=fleet.timeout_s)).num_removed

    return asyncio.run(_ask(fleet, Removed, fill))


async def _ask(fleet: StoreFleet, kind: type[A], fill: Callable[[A, Stub], Awaitable[None]]) -> list[A]:
    """Ask all processes that `fleet` means; those without objects are left out where only nodes can answer."""
    answers = [kind(node_id, address) for node_id, address in (await _addresses(fleet)).items()]
    await asyncio.gather(*(_fill(answer, fill) for answer in answers))
    return [answer for answer in answers if answer.error != "not_node"]


async def _fill(answer: A, fill: Callable[[A, Stub], Awaitable[None]]) -> None:
    async with grpc.aio.insecure_channel(answer.address) as channel:
        try:
            await fill(answer, Stub(channel))
        except grpc.aio.AioRpcError as error:
            failure = from_rpc_error(error, Leg.STORE)
            answer.error = failure.reason if failure.reason == "not_node" else f"{answer.node_id}: {failure.message}"


async def _addresses(fleet: StoreFleet) -> dict[str, str]:
    if ":" in fleet.node:
        return {fleet.node: fleet.node}
    known = await registered(fleet.registry or registry_of(fleet.run_dir), fleet.cluster, "--node", STORE)
    if not known:
        raise CliError(
            f"no store process of cluster {fleet.cluster!r} is registered", fix="was it started with a store?"
        )
    if fleet.node != ALL and fleet.node not in known:
        raise CliError(f"there is no store process {fleet.node!r}", fix=f"known: {', '.join(known)}", code=BAD_INPUT)
    return known if fleet.node == ALL else {fleet.node: known[fleet.node]}


def _object(message: kvstore_pb2.StoredObject) -> dict[str, Any]:
    tiers = [name for name, there in (("memory", message.in_memory), ("disk", message.on_disk)) if there]
    return {
        "namespace": message.key.namespace.hex(),
        "prefix_hash": message.key.prefix_hash.hex(),
        "part": message.key.part,
        "num_bytes": message.num_bytes,
        "tiers": tiers,
        "soft_pin": message.soft_pin,
        "num_pins": message.num_pins,
    }


def _key(message: types_pb2.BlockKey) -> str:
    return f"{message.namespace.hex()} {message.prefix_hash.hex()} {message.part}"
