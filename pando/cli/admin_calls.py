"""The admin service of several workers, as the terminal uses it: find the workers, ask all of them at once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import Message

from common.base.errors import InvalidRequest, Leg, Unavailable
from common.rpc.errors import from_rpc_error
from common.rpc.operator import AUTHORIZATION, read_token
from common.rpc.registry import RegistryReader
from pando.cli.errors import BAD_INPUT, CliError
from pando.cli.run_folder import RunFolder, RunLock
from pando.v1 import admin_pb2, admin_pb2_grpc

ALL = "all"
_REGISTRY_S = 3.0


@dataclass(slots=True, frozen=True)
class Fleet:
    """Which cluster, and how to be let in.

    Attributes:
        run_dir: of the local cluster; not looked at when `registry` is given.
        registry: URL of a registry, or "".
        cluster: name of the cluster on the registry.
        token_file: holds the operator token; None for none.
        timeout_s: for each call.
    """

    run_dir: Path
    registry: str = ""
    cluster: str = "pando"
    token_file: Path | None = None
    timeout_s: float = 30.0


@dataclass(slots=True, frozen=True)
class Answer:
    """What one worker said: a message, or why there is none."""

    worker_id: str
    message: Message | None = None
    error: str = ""


@dataclass(slots=True, frozen=True)
class _Call:
    method: str
    request: Message
    metadata: Sequence[tuple[str, str]]
    timeout_s: float


def ask(fleet: Fleet, worker: str, method: str, fields: Mapping[str, Any]) -> list[Answer]:
    """Call a method of the admin service on one worker or all.

    Args:
        fleet: where they are.
        worker: its id, its host:port, or `all`.
        method: name of the RPC.
        fields: of the request, as in protobuf's JSON form.

    Raises:
        CliError: no such worker or cluster, a bad token file, or fields that are no request.
    """
    try:
        request = ParseDict(dict(fields), getattr(admin_pb2, f"{method}Request")())
        token = read_token(fleet.token_file) if fleet.token_file else ""
    except ParseError as error:
        raise CliError(str(error), code=BAD_INPUT) from error
    except InvalidRequest as error:
        raise CliError(error.message, code=BAD_INPUT) from error
    metadata = ((AUTHORIZATION, f"Bearer {token}"),) if token else ()
    return asyncio.run(_ask(fleet, worker, _Call(method, request, metadata, fleet.timeout_s)))


async def _ask(fleet: Fleet, worker: str, call: _Call) -> list[Answer]:
    addresses = await _addresses(fleet, worker)
    return await asyncio.gather(*(_answer(name, address, call) for name, address in addresses.items()))


async def _addresses(fleet: Fleet, worker: str) -> dict[str, str]:
    """Worker ids and host:port of whom `worker` means."""
    if ":" in worker:
        return {worker: worker}
    url = fleet.registry or _registry_of(fleet.run_dir)
    reader = RegistryReader(url, fleet.cluster, _REGISTRY_S)
    try:
        records = await reader.list_workers()
    except Unavailable as error:
        raise CliError(error.message, fix="is it up? --worker HOST:PORT needs no registry") from error
    finally:
        await reader.close()
    known = {record.worker_id: record.address for record in records}
    if not known:
        raise CliError(f"no worker of cluster {fleet.cluster!r} is registered at {url}", fix="see --cluster")
    if worker == ALL:
        return known
    if worker not in known:
        raise CliError(f"there is no worker {worker!r}", fix=f"known: {', '.join(known)}", code=BAD_INPUT)
    return {worker: known[worker]}


def _registry_of(run_dir: Path) -> str:
    folder = RunFolder(run_dir)
    state = folder.read_state()
    if state is None or not RunLock(folder).held_by_another():
        raise CliError(f"nothing runs in {folder.path}", fix="start it with pando up, or give --run-dir or --registry")
    return state.registry


async def _answer(name: str, address: str, call: _Call) -> Answer:
    async with grpc.aio.insecure_channel(address) as channel:
        method = getattr(admin_pb2_grpc.AdminServiceStub(channel), call.method)
        try:
            return Answer(name, await method(call.request, timeout=call.timeout_s, metadata=call.metadata))
        except grpc.aio.AioRpcError as error:
            failure = from_rpc_error(error, Leg.NONE)
            return Answer(name, error=f"{failure.message} ({failure.param or failure.reason})")
