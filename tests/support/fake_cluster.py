"""A cluster of fake services under the real supervisor, for tests of starting, restarting and stopping."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import psutil

from pando.cli.cluster_spec import ClusterSpec, Probe, ServiceSpec
from pando.cli.ports import free_port
from pando.cli.run_folder import ClusterState, RunFolder

LIMIT_S = 60.0


def eventually(condition: Callable[[], Any], what: str, limit_s: float = LIMIT_S) -> Any:
    """The first true value of `condition`; fails the test when there is none in time."""
    gives_up_at = time.monotonic() + limit_s
    while time.monotonic() < gives_up_at:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {limit_s:g} s: {what}")


def runs(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def fake_service(folder: Path, name: str, layer: int, *flags: str, grace_s: float = 30.0) -> ServiceSpec:
    """The spec of one fake service that logs `ready`."""
    script = Path(__file__).with_name("fake_service.py")
    argv = (sys.executable, str(script), "--name", name, "--folder", str(folder), *flags)
    return ServiceSpec(name, argv, layer, Probe("log"), grace_s)


def fake_spec(folder: Path, *extra: ServiceSpec, timeout_s: float = LIMIT_S) -> ClusterSpec:
    """registry, two workers, a gateway that answers HTTP, and what else is given (replacing equal names)."""
    port = free_port()
    gateway = fake_service(folder, "gateway", 3, "--http", str(port))
    gateway = ServiceSpec(gateway.name, gateway.argv, 3, Probe("http", f"http://127.0.0.1:{port}/ready"), 30.0)
    usual = [
        fake_service(folder, "registry", 0),
        fake_service(folder, "prefill-0", 1),
        fake_service(folder, "decode-0", 1),
    ]
    services = {service.name: service for service in (*usual, gateway, *extra)}
    return ClusterSpec(
        services=tuple(services.values()),
        url=f"http://127.0.0.1:{port}",
        router="",
        registry="",
        environment={"PANDO_LOG__LEVEL": "debug"},
        start_timeout_s=timeout_s,
    )


class FakeCluster:
    """The detached supervisor over fake services. Use as a context manager."""

    def __init__(self, tmp_path: Path, *extra: ServiceSpec, timeout_s: float = LIMIT_S) -> None:
        self.data = tmp_path
        self.folder = RunFolder(tmp_path / "run")
        self.folder.prepare()
        self.spec = fake_spec(tmp_path, *extra, timeout_s=timeout_s)
        self.log = tmp_path / "supervisor.log"
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "pando.cli.supervisor"], stdin=subprocess.PIPE, stdout=log, stderr=log
            )
        assert process.stdin is not None
        with process.stdin:
            process.stdin.write(orjson.dumps({"run_dir": str(self.folder.path), "spec": self.spec.to_json()}))
        return process

    def state(self) -> ClusterState:
        """What the supervisor wrote last."""
        return eventually(self.folder.read_state, "a state file")

    def wait_for(self, state: str) -> ClusterState:
        """The state of the cluster once it is called `state`."""

        def reached() -> ClusterState | None:
            now = self.folder.read_state()
            return now if now is not None and now.state == state else None

        return eventually(reached, f"state {state}; log: {self.log.read_text()}")

    def lives(self, name: str) -> list[dict[str, Any]]:
        """Every life that a service had so far."""
        path = self.data / f"{name}.lives"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def pids(self) -> list[int]:
        """Pids of all lives of all services, and of their children."""
        lives = [life for service in self.spec.services for life in self.lives(service.name)]
        return [pid for life in lives for pid in (life["pid"], life["child"]) if pid]

    def __enter__(self) -> FakeCluster:
        return self

    def __exit__(self, *exit_information: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(LIMIT_S)
        for pid in self.pids():
            if runs(pid):
                psutil.Process(pid).kill()
