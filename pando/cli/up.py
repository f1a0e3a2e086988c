"""`pando up` and `pando down`: from flags to a running local cluster and back.

In the foreground the supervisor runs in this process; detached, it is a process of its own and this one watches the
state file until the cluster is ready. The printed lines are the same.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import orjson
import psutil
from pydantic_settings import SettingsError
from rich.console import Console

from common.base.config import ConfigError, Settings, load
from pando.cli.cluster_spec import ClusterOptions, ClusterSpec, StoreOptions, build_spec
from pando.cli.errors import BAD_INPUT, FAILED, CliError
from pando.cli.flags import Setting
from pando.cli.local_registry import registry_command
from pando.cli.ports import claim, free_port
from pando.cli.processes import ProcessId
from pando.cli.progress import Progress
from pando.cli.resize import MAX_OF_A_KIND
from pando.cli.run_folder import ClusterState, RunFolder, RunLock
from pando.cli.supervisor import supervise

_POLL_S = 0.1
_LOG_LINES = 15
_STOP_PATIENCE_S = 60.0
_STORAGE, _STORAGE_KEY = "hicache-storage-backend", "hicache_storage_backend"
STORE_MEMORY_BYTES, STORE_SSD_BYTES, STORE_LEAST_BYTES = 1 << 30, 8 << 30, 64 << 20
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(slots=True, frozen=True)
class UpRequest:
    """What the user asked for; 0 for a port picks a free one, and routers after the first always take one."""

    model_path: Path
    run_dir: Path = Path("run")
    profile: Literal["pd", "unified"] = "pd"
    prefill_workers: int = 1
    decode_workers: int = 1
    routers: int = 1
    host: str = "127.0.0.1"
    port: int = 30000
    router_port: int = 50051
    registry: str = ""
    store: bool = True
    worker_flags: tuple[str, ...] = ()
    router_flags: tuple[str, ...] = ()
    settings: tuple[Setting, ...] = ()
    start_timeout_s: float = 120.0


def up(request: UpRequest, console: Console, *, detach: bool) -> int:
    """Start a cluster unless one runs in the run folder already; returns the exit status.

    Raises:
        CliError: something that must be there is missing or taken.
    """
    folder = RunFolder(request.run_dir)
    folder.prepare()
    if RunLock(folder).held_by_another():
        return _already_up(folder, console)
    earlier = folder.read_state()
    if earlier is not None:
        if earlier.state != "failed":
            console.print(f"an earlier cluster in {folder.path} died without cleaning up; starting a new one")
        folder.remove_state()
    spec = make_spec(request, folder)
    console.print(f"starting {len(spec.services)} processes with {request.model_path}; logs in {folder.logs}")
    return run_here(spec, folder, console) if not detach else run_detached(spec, folder, console)


def make_spec(request: UpRequest, folder: RunFolder) -> ClusterSpec:
    """Check what can be checked before anything starts, decide the ports, and describe the processes.

    Raises:
        CliError: with the way out.
    """
    check_model(request.model_path)
    if request.host not in LOOPBACK:
        fix = "listen on 127.0.0.1 and put a proxy with TLS and authentication in front"
        raise CliError(f"--host {request.host} is not loopback", fix=fix, code=BAD_INPUT)
    counts = (request.prefill_workers, request.decode_workers, request.routers)
    if min(counts) < 1:
        raise CliError("a cluster needs at least one worker of each kind and a router", code=BAD_INPUT)
    if max(counts) > MAX_OF_A_KIND:
        raise CliError(f"{max(counts)} processes of a kind; at most {MAX_OF_A_KIND}", code=BAD_INPUT)
    port = claim(request.port, request.host, "--port")
    router_port = claim(request.router_port, "127.0.0.1", "--router-port")
    router_ports = (router_port, *(free_port() for _ in range(request.routers - 1)))
    registry_port = 0 if request.registry else free_port()
    command = registry_command(registry_port, folder.registry) if registry_port else ()
    return build_spec(
        ClusterOptions(
            python=sys.executable,
            model_path=str(request.model_path.absolute()),
            registry=request.registry or f"redis://127.0.0.1:{registry_port}/0",
            registry_command=command,
            registry_address=f"127.0.0.1:{registry_port}" if registry_port else "",
            profile=request.profile,
            prefill_workers=request.prefill_workers,
            decode_workers=request.decode_workers,
            host=request.host,
            port=port,
            router_ports=router_ports,
            store=store_options(request, folder),
            worker_flags=request.worker_flags,
            router_flags=request.router_flags,
            settings=request.settings,
            drain_s=drain_s(request.settings),
            start_timeout_s=request.start_timeout_s,
        )
    )


def store_options(request: UpRequest, folder: RunFolder) -> StoreOptions | None:
    """The KV store of the cluster, sized so that a small machine is not filled; None when it is not wanted.

    Workers that were told of another storage by a flag or a setting keep that, without a store.
    """
    chosen = [flag.partition("=")[2] for flag in request.worker_flags if flag.partition("=")[0] == f"--{_STORAGE}"]
    chosen += [value for section, key, value in request.settings if (section, key) == ("worker", _STORAGE_KEY)]
    if not request.store or any(backend != "kvstore" for backend in chosen):
        return None
    memory_bytes = min(STORE_MEMORY_BYTES, psutil.virtual_memory().available // 8)
    ssd_bytes = min(STORE_SSD_BYTES, shutil.disk_usage(folder.path).free // 4)
    if ssd_bytes < STORE_LEAST_BYTES:
        return StoreOptions(max(STORE_LEAST_BYTES, memory_bytes))
    return StoreOptions(max(STORE_LEAST_BYTES, memory_bytes), str(folder.store), ssd_bytes)


def drain_s(settings: Sequence[Setting]) -> float:
    """Seconds that the services will drain, by the flags given here and the configuration that all of them read.

    Raises:
        CliError: a time limit is wrong.
    """
    flags = [f"--timeouts.{key.replace('_', '-')}={value}" for section, key, value in settings if section == "timeouts"]
    try:
        return load(Settings, flags, "pando up").timeouts.scaled().drain_s
    except (ConfigError, SettingsError) as error:
        raise CliError(str(error), code=BAD_INPUT) from error


def check_model(path: Path) -> None:
    """Whether the folder looks like a model. Raises CliError when it does not."""
    fix = "make setup imports SmolLM2-135M-Instruct; pando model import converts a GGUF"
    if not path.is_dir():
        raise CliError(f"no model folder {path}", fix=fix, code=BAD_INPUT)
    missing = [name for name in ("config.json", "tokenizer.json") if not (path / name).is_file()]
    if not any(path.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        raise CliError(f"{path} is not a whole model folder, it lacks {', '.join(missing)}", fix=fix, code=BAD_INPUT)


def down(run_dir: Path, console: Console) -> int:
    """Stop the cluster of a run folder; fine when none runs.

    Raises:
        CliError: it does not stop.
    """
    folder = RunFolder(run_dir)
    state = folder.read_state()
    if not RunLock(folder).held_by_another():
        console.print(f"nothing runs in {folder.path}")
        if state is not None:
            folder.remove_state()
        return 0
    supervisor = state.supervisor if state else ProcessId.of(RunLock(folder).owner())
    if not supervisor.alive():
        raise CliError(f"{folder.path}/lock is held, but not by the pid it names", fix=f"fuser {folder.path}/lock")
    os.kill(supervisor.pid, signal.SIGTERM)
    if not _gone(folder, _STOP_PATIENCE_S):
        os.kill(supervisor.pid, signal.SIGKILL)  # its children are killed by the kernel
        _gone(folder, _STOP_PATIENCE_S)
        _kill_orphans(state)
    console.print("stopped")
    return 0


def _kill_orphans(state: ClusterState | None) -> None:
    """Where the kernel does not end children with their parent: end those that are surely ours."""
    for service in state.services if state else ():
        if service.process.alive():
            os.kill(service.process.pid, signal.SIGKILL)


def _gone(folder: RunFolder, patience_s: float) -> bool:
    gives_up_at = time.monotonic() + patience_s
    while RunLock(folder).held_by_another():
        if time.monotonic() > gives_up_at:
            return False
        time.sleep(_POLL_S)
    return True


def _already_up(folder: RunFolder, console: Console) -> int:
    state = folder.read_state()
    if state is None or state.state in ("stopping", "failed"):
        what = state.state if state else "starting or stopping"
        raise CliError(f"a cluster in {folder.path} is {what}", fix="try again in a moment, or pando down")
    console.print(f"already up ({state.state}): {state.url}", highlight=False)
    return 0


def run_here(spec: ClusterSpec, folder: RunFolder, console: Console) -> int:
    """Run the cluster in this process until it is stopped; returns the exit status."""
    earlier = folder.log_sizes()
    with Progress(console) as progress:
        announced = False

        def show(state: ClusterState) -> None:
            nonlocal announced
            progress.show(state)
            if state.state == "ready" and not announced:
                announced = True
                progress.finish()
                announce(state, folder, console)
                console.print("Ctrl-C stops it.")

        code = supervise(spec, folder, show, progress.say)
    if code != 0:
        _explain_failure(folder, console, earlier)
    return code


def run_detached(spec: ClusterSpec, folder: RunFolder, console: Console) -> int:
    """Run the cluster in a process of its own and return once it is ready (0) or has failed."""
    earlier = folder.log_sizes()
    order = orjson.dumps({"run_dir": str(folder.path), "spec": spec.to_json()})
    with folder.open_log("supervisor")[0].open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "pando.cli.supervisor"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    assert process.stdin is not None
    with process.stdin:
        process.stdin.write(order)
    try:
        with Progress(console) as progress:
            state = _follow(process, folder, progress)
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        console.print("stopped before it was ready")
        return FAILED
    if state is None or state.state != "ready":
        _explain_failure(folder, console, earlier)
        return FAILED
    process.returncode = 0  # it lives on: this object must neither wait for it nor warn about it
    announce(state, folder, console)
    console.print("It runs in the background; pando down (or make down) stops it.")
    return 0


def _follow(process: subprocess.Popen[bytes], folder: RunFolder, progress: Progress) -> ClusterState | None:
    """Show the state file's changes until the cluster is ready or its supervisor ends; returns the last state."""
    while True:
        ended = process.poll() is not None
        state = folder.read_state()
        if state is not None and state.supervisor.pid == process.pid:
            progress.show(state)
            if state.state == "ready":
                return state
        if ended:
            return state
        time.sleep(_POLL_S)


def announce(state: ClusterState, folder: RunFolder, console: Console) -> None:
    """The ready line, a request that works when pasted, and where to look."""
    question = {"role": "user", "content": "What is the capital of France?"}
    body = {"messages": [question], "max_tokens": 32, "temperature": 0}
    console.print(f"\n[green]ready[/green] {state.url}", highlight=False)
    # Plain print: a console would wrap the line, and a wrapped command does not paste.
    print(f"\n  curl -s {state.url}/v1/chat/completions -H 'Content-Type: application/json' -d '{json.dumps(body)}'\n")
    console.print(f"  chat: pando chat   processes: pando status   logs: {folder.logs}", highlight=False)


def _explain_failure(folder: RunFolder, console: Console, earlier: Mapping[Path, int]) -> None:
    """Say which service failed and show the end of its log, without what was there `earlier`."""
    state = folder.read_state()
    name = _culprit(state) if state else "supervisor"
    reason = state.failure if state and state.failure else "the supervisor ended"
    console.print(f"[red]not started[/red]: {reason}; the end of {folder.log(name)}:", highlight=False)
    for line in last_lines(folder.log(name), _LOG_LINES, earlier.get(folder.log(name), 0)):
        print(f"  {line}")


def _culprit(state: ClusterState) -> str:
    failed: Sequence[str] = [service.name for service in state.services if service.phase == "failed"]
    slow = [service.name for service in state.services if state.failure.startswith(f"{service.name} ")]
    return (*failed, *slow, "supervisor")[0]


def last_lines(path: Path, count: int, offset: int = 0) -> list[str]:
    """The last lines of a text file from byte `offset` on (all of it when it is shorter); empty when unreadable."""
    try:
        content = path.read_bytes()
    except OSError:
        return []
    new = content[offset if offset <= len(content) else 0 :]
    return new.decode("utf-8", "replace").splitlines()[-count:]
