"""A whole cluster, started the way a user starts it, and what must hold when a test is done with it.

`Cluster` runs `pando up --detach` in a run folder of its own, over the tiny model unless told otherwise, on free ports.
At its end it checks, in this order: every worker has given back all blocks (`held == 0`) and
`free + cached + held == total`; `pando down` leaves no process of it; no log holds an error line or a traceback that
the test did not announce with `expect_errors`.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType

import grpc
import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from pando.cli.processes import ProcessId
from pando.cli.run_folder import ClusterState, RunFolder, ServiceState
from pando.cli.status import routers
from pando.v1 import inference_pb2, inference_pb2_grpc, worker_pb2, worker_pb2_grpc
from tests.support.api_cases import Target
from tests.support.tiny_model import tiny_model_dir
from tests.support.workers import wait_until

ROOT = Path(__file__).parents[2]
SMOLLM2 = ROOT / "models" / "SmolLM2-135M-Instruct"
TINY = "tiny"
START_S, STOP_S, RESTART_S, IDLE_S = 240.0, 120.0, 120.0, 30.0
UNHURRIED = ("--timeouts.scale", "5")
"""Flags of a cluster in which nothing is to fail: a busy machine must not make a slow process look like a dead one."""

TINY_FLAGS = (
    ("--router.served-model-name", TINY),
    ("--worker.max-total-tokens", "32768"),
    ("--worker.num-threads", "1"),
)
_TROUBLE = re.compile(r'"level": "(error|critical)"|Traceback \(most recent|never retrieved|was never awaited')
_BUSY = ("blocks_held", "num_running", "num_waiting")


class Cluster:
    """One running cluster; a context manager that starts, checks and stops it.

    Attributes:
        url: of the gateway, once it is up.
        router: host:port of the router.
        model: name of the served model.
        printed: what `pando up` wrote.
    """

    def __init__(self, run_dir: Path, *flags: str, model: Path | None = None) -> None:
        """`flags` go to `pando up`; without `model` the tiny one is served as `tiny`, without `--store on` no store."""
        self.folder = RunFolder(run_dir)
        self.model = model.name if model else TINY
        self._flags = [*flags, "--model-path", str(model or tiny_model_dir())]
        given = {flag.partition("=")[0] for flag in flags}
        if "--store" not in given:
            self._flags += ["--store", "off"]
        if model is None:
            self._flags += [part for name, value in TINY_FLAGS if name not in given for part in (name, value)]
        self._expected: list[re.Pattern[str]] = []
        self._num_checked: dict[Path, int] = {}
        self._seen: set[ProcessId] = set()
        self.url = self.router = self.printed = ""

    def __enter__(self) -> Cluster:
        return self.up()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Check and stop everything; after a failed test only stop."""
        try:
            if kind is None:
                self.check_idle()
        finally:
            self.down()
        if kind is None:
            self.check_logs()

    def up(self) -> Cluster:
        """Start it and wait until it serves."""
        ports = ("--port", "0", "--router-port", "0")
        done = pando("up", "--detach", "--run-dir", str(self.folder.path), *ports, *self._flags, timeout_s=START_S)
        self.printed = done.stdout
        assert done.returncode == 0, done.stdout + done.stderr
        state = self.state()
        self.url, self.router = state.url, state.router
        return self

    def down(self) -> None:
        """Stop it by `pando down` and fail if any process of it is left."""
        marks = self._marks()
        self._seen |= {service.process for service in self.state().services} | {self.state().supervisor}
        done = pando("down", "--run-dir", str(self.folder.path), timeout_s=STOP_S)
        assert done.returncode == 0, done.stdout + done.stderr
        left = [seen for seen in self._seen if seen.alive()] + processes_with(marks)
        assert not left, f"still running: {left}"

    def expect_errors(self, pattern: str) -> None:
        """Error lines that match are part of what the test does; until the next `check_logs`."""
        self._expected.append(re.compile(pattern))

    def check_logs(self) -> None:
        """Fail on error lines and tracebacks that came into any log since the last check."""
        bad: list[str] = []
        for path in sorted(self.folder.logs.glob("*.log")):
            lines = path.read_text("utf-8", "replace").splitlines()
            new = lines[self._num_checked.get(path, 0) :]
            self._num_checked[path] = len(lines)
            bad += [f"{path.name}: {line}" for line in new if _TROUBLE.search(line) and not self._is_expected(line)]
        self._expected.clear()
        assert not bad, "\n".join(bad)

    def check_idle(self, within_s: float = IDLE_S) -> None:
        """Fail unless every worker holds nothing and runs nothing within the time; the blocks must add up always."""
        ends_at = time.monotonic() + within_s
        for name in self.workers:
            left_s = max(0.0, ends_at - time.monotonic())
            wait_until(
                lambda name=name: all(getattr(self.stats(name), field) == 0 for field in _BUSY),
                left_s,
                lambda name=name: f"{name} is not idle after {within_s} s:\n{self.stats(name)}",
            )

    def state(self) -> ClusterState:
        """What the supervisor wrote last."""
        state = self.folder.read_state()
        assert state is not None, f"no state in {self.folder.path}"
        return state

    def service(self, name: str) -> ServiceState:
        """One process of it as the supervisor knows it."""
        return next(service for service in self.state().services if service.name == name)

    @property
    def workers(self) -> list[str]:
        """Names of the workers that are up."""
        kinds = ("prefill-", "decode-", "worker-")
        return [s.name for s in self.state().services if s.name.startswith(kinds) and s.phase == "ready"]

    @property
    def target(self) -> Target:
        """Where the API cases send their requests."""
        return Target(self.url, self.model)

    def stats(self, name: str) -> worker_pb2.GetStatsResponse:
        """GetStats of a worker, with the conservation law checked."""
        with grpc.insecure_channel(self.service(name).address) as channel:
            stub = worker_pb2_grpc.WorkerServiceStub(channel)
            stats: worker_pb2.GetStatsResponse = stub.GetStats(
                worker_pb2.GetStatsRequest(), timeout=20, wait_for_ready=True
            )
        parts = (stats.blocks_free, stats.blocks_cached, stats.blocks_held)
        assert sum(parts) == stats.blocks_total, f"{name}: free, cached, held {parts} of {stats.blocks_total}"
        return stats

    def metric(self, service: str, name: str, **labels: str) -> float:
        """Sum of a service's samples called `name` whose labels include `labels`; 0 when there is none."""
        with urllib.request.urlopen(f"http://{self.service(service).metrics_address}/metrics", timeout=20) as answer:
            text = answer.read().decode()
        samples = (s for family in text_string_to_metric_families(text) for s in family.samples)
        return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())

    def known_workers(self, router: str = "") -> list[inference_pb2.WorkerStatus]:
        """The workers as a router sees them, the first one unless its host:port is given."""
        with grpc.insecure_channel(router or self.router) as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)
            reply = stub.ListWorkers(inference_pb2.ListWorkersRequest(), timeout=20, wait_for_ready=True)
            return list(reply.workers)

    def signal(self, name: str, number: signal.Signals) -> int:
        """Send a signal to a service; returns how often it had been restarted before."""
        service = self.service(name)
        assert service.process.alive(), f"{name} is not running"
        self._seen.add(service.process)
        os.kill(service.process.pid, number)
        return service.restarts

    def kill(self, name: str) -> int:
        """End a service at once; returns how often it had been restarted before."""
        return self.signal(name, signal.SIGKILL)

    def wait_restarted(self, name: str, restarts_before: int, within_s: float = RESTART_S) -> None:
        """Wait until the supervisor has it ready again."""

        def again() -> bool:
            service = self.service(name)
            return service.restarts > restarts_before and service.phase == "ready"

        wait_until(again, within_s, lambda: f"{name} did not come back: {self.service(name)}")

    def wait_serving(self, within_s: float = RESTART_S) -> None:
        """Wait until every process is up and all routers count every worker that is up as ready."""

        def serving() -> bool:
            if any(service.phase != "ready" for service in self.state().services) or not self.is_ready():
                return False
            return all(self._knows_all_workers(router) for router in routers(self.state()))

        wait_until(serving, within_s, lambda: f"not serving: {self.state()}")

    def _knows_all_workers(self, router: str) -> bool:
        try:
            ready = {worker.worker_id for worker in self.known_workers(router) if worker.state == "ready"}
        except grpc.RpcError:
            return False
        return ready >= set(self.workers)

    def is_ready(self) -> bool:
        """Whether the gateway says that requests can be served."""
        try:
            return httpx.get(f"{self.url}/ready", timeout=20).status_code == 200
        except httpx.HTTPError:
            return False

    def _is_expected(self, line: str) -> bool:
        return any(pattern.search(line) for pattern in self._expected)

    def _marks(self) -> list[str]:
        state = self.state()
        return [str(self.folder.path), state.registry, state.router]


def pando(*arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run the `pando` command to its end."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PANDO_")}
    return subprocess.run(
        [sys.executable, "-m", "pando.cli.main", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def processes_with(marks: Iterable[str]) -> list[str]:
    """Command lines of the processes that name one of the marks: a run folder, a registry, a router."""
    own = os.getpid()
    lines = [" ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"]) if p.pid != own]
    return [line for line in lines if any(mark in line for mark in marks)]


def poll(value: Callable[[], float], wanted: float, within_s: float, what: str) -> None:
    """Wait until a number is what it should be."""
    wait_until(lambda: value() == wanted, within_s, lambda: f"{what}: {value()} after {within_s} s, not {wanted}")
