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

from common.base.errors import InvalidRequest, Leg
from common.rpc.errors import from_rpc_error
from common.rpc.operator import AUTHORIZATION, read_token
from pando.cli.errors import BAD_INPUT, CliError
from pando.cli.members import ALL, registered, registry_of
from pando.client.fields import what_fits
from pando.v1 import admin_pb2, admin_pb2_grpc


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
    _check_prefetch(fields.get("prefetch", {}))
    try:
        request = ParseDict(dict(fields), getattr(admin_pb2, f"{method}Request")())
        token = read_token(fleet.token_file) if fleet.token_file else ""
    except ParseError as error:
        raise CliError(str(error), code=BAD_INPUT) from error
    except InvalidRequest as error:
        raise CliError(error.message, code=BAD_INPUT) from error
    metadata = ((AUTHORIZATION, f"Bearer {token}"),) if token else ()
    return asyncio.run(_ask(fleet, worker, _Call(method, request, metadata, fleet.timeout_s)))


def _check_prefetch(settings: Mapping[str, str]) -> None:
    """Raises CliError for a setting or a value that does not exist, in the words of the command line."""
    known = admin_pb2.Prefetch.DESCRIPTOR.fields_by_name
    for name, value in settings.items():
        if name not in known:
            raise CliError(f"prefetch has no setting {name!r}", fix=f"known: {', '.join(known)}", code=BAD_INPUT)
        try:
            ParseDict({name: value}, admin_pb2.Prefetch())
        except ParseError as error:
            raise CliError(
                f"prefetch {name} must be {what_fits(known[name])}, not {value!r}", code=BAD_INPUT
            ) from error


def roles_by_worker(fleet: Fleet) -> dict[str, list[str]]:
    """The roles of all workers that answer. Raises CliError as `ask` does."""
    messages: dict[str, Any] = {answer.worker_id: answer.message for answer in ask(fleet, ALL, "GetRoles", {})}
    return {worker_id: list(message.roles) for worker_id, message in messages.items() if message is not None}


async def _ask(fleet: Fleet, worker: str, call: _Call) -> list[Answer]:
    addresses = await _addresses(fleet, worker)
    return await asyncio.gather(*(_answer(name, address, call) for name, address in addresses.items()))


async def _addresses(fleet: Fleet, worker: str) -> dict[str, str]:
    """Worker ids and host:port of whom `worker` means."""
    if ":" in worker:
        return {worker: worker}
    url = fleet.registry or registry_of(fleet.run_dir)
    known = await registered(url, fleet.cluster, "--worker")
    if not known:
        raise CliError(f"no worker of cluster {fleet.cluster!r} is registered at {url}", fix="see --cluster")
    if worker == ALL:
        return known
    if worker not in known:
        raise CliError(f"there is no worker {worker!r}", fix=f"known: {', '.join(known)}", code=BAD_INPUT)
    return {worker: known[worker]}


async def _answer(name: str, address: str, call: _Call) -> Answer:
    async with grpc.aio.insecure_channel(address) as channel:
        method = getattr(admin_pb2_grpc.AdminServiceStub(channel), call.method)
        try:
            return Answer(name, await method(call.request, timeout=call.timeout_s, metadata=call.metadata))
        except grpc.aio.AioRpcError as error:
            failure = from_rpc_error(error, Leg.NONE)
            return Answer(name, error=f"{failure.message} ({failure.param or failure.reason})")
