"""`pando status`: what the supervisor, the router and the gateway say about a cluster."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from rich.console import Console
from rich.table import Table

from pando.cli.errors import FAILED
from pando.cli.probes import answers_http
from pando.cli.run_folder import ClusterState, RunFolder, RunLock
from pando.v1 import inference_pb2, inference_pb2_grpc

_TIMEOUT_S = 2.0
_BLOCKS = ("blocks_free", "blocks_cached", "blocks_held")


def status(run_dir: Path, *, as_json: bool) -> int:
    """Print it; returns 0 when requests can be served."""
    folder = RunFolder(run_dir)
    state = folder.read_state()
    if state is None or not RunLock(folder).held_by_another():
        failure = state.failure if state else ""
        text = f"nothing runs in {folder.path}" + (f"; the last start failed: {failure}" if failure else "")
        print(json.dumps({"state": "down", "failure": failure}) if as_json else text)
        return FAILED
    ready = answers_http(f"{state.url}/ready")
    reply = next(filter(None, map(ask_router, routers(state))), None)
    workers = list_workers(reply) if reply is not None else None
    advice = reply.role_advice if reply is not None else ""
    if as_json:
        print(json.dumps({**asdict(state), "ready": ready, "workers": workers, "role_advice": advice}, indent=2))
    else:
        console = Console()
        _print(state, ready, workers, console)
        if advice:
            console.print(f"role controller: {advice}", highlight=False)
    return 0 if ready else FAILED


def routers(state: ClusterState) -> list[str]:
    """host:port of every router, the first one's first."""
    others = [one.address for one in state.services if one.name.startswith("router-") and one.address]
    return [state.router, *(address for address in others if address != state.router)]


def ask_router(address: str) -> inference_pb2.ListWorkersResponse | None:
    """What the router at host:port says of its workers, None when it does not answer."""
    with grpc.insecure_channel(address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        try:
            reply: inference_pb2.ListWorkersResponse = stub.ListWorkers(
                inference_pb2.ListWorkersRequest(), timeout=_TIMEOUT_S
            )
        except grpc.RpcError:
            return None
    return reply


def list_workers(reply: inference_pb2.ListWorkersResponse) -> list[dict[str, Any]]:
    """The workers as plain values."""
    return [
        MessageToDict(worker, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
        for worker in reply.workers
    ]


def _print(state: ClusterState, ready: bool, workers: list[dict[str, Any]] | None, console: Console) -> None:
    serving = "" if ready else " (takes no requests now)"
    console.print(f"{state.state}{serving}: {state.url}", highlight=False)
    processes = Table("process", "phase", "pid", "restarts", "address", "last exit", box=None)
    for service in state.services:
        pid = str(service.process.pid or "-")
        processes.add_row(service.name, service.phase, pid, str(service.restarts), service.address, service.last_exit)
    console.print(processes)
    if workers is None:
        console.print(f"the router at {state.router} does not answer", highlight=False)
        return
    table = Table("worker", "roles", "state", "running", "waiting", "free/cached/held blocks", "transports", box=None)
    for worker in workers:
        blocks = "/".join(str(worker[name]) for name in _BLOCKS)
        roles, transports = ",".join(worker["roles"]), ",".join(worker["transports"])
        running, waiting = str(worker["num_running"]), str(worker["num_waiting"])
        table.add_row(worker["worker_id"], roles, worker["state"], running, waiting, blocks, transports)
    console.print(table)
