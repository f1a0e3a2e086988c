"""Real worker processes on the tiny model, for tests that cross a process boundary.

`Workers` is a context manager: what it started is checked and stopped when it ends. Checked is that nothing of any
request is left (`held == 0`, nobody runs or waits) and that `free + cached + held == total`, on every process that is
still up; then that SIGTERM ends it with status 0. A process that a test killed is only reaped.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
from prometheus_client.parser import text_string_to_metric_families

from pando.v1 import worker_pb2, worker_pb2_grpc
from tests.support.nursery import THREADS, nursery
from tests.support.tiny_model import tiny_model_dir

KERNEL_CACHE = "PANDO_KERNEL_CACHE"
ROOT = Path(__file__).parents[2]
NO_REGISTRY = "redis://127.0.0.1:1/0"
START_S, STOP_S, IDLE_S = 240.0, 120.0, 30.0
DEFAULT_FLAGS = {
    "model-path": "",
    "port": "0",
    "metrics-port": "0",
    "transport": "shm",
    "num-threads": "1",
    "max-total-tokens": "16384",
    "log.format": "json",
    "registry.url": NO_REGISTRY,
}


class WorkerProcess:
    """One `python -m services.<role>`, by way of the nursery.

    Attributes:
        role: prefill or decode: which service was started.
        address, metrics_address: host:port.
        facts: the whole `ready` log line.
        log: its stderr so far, as lines.
    """

    def __init__(self, role: str, flags: list[str]) -> None:
        """Start it; `wait_ready` before use."""
        self.role = role
        self.log: list[str] = []
        self.facts: dict[str, Any] = {}
        self._channel: grpc.Channel | None = None
        self._deaf = False
        self._ready = threading.Event()
        environment = {k: v for k, v in os.environ.items() if k == KERNEL_CACHE or not k.startswith("PANDO_")}
        self.process = nursery().start(f"services.{role}", flags, environment | THREADS)
        self._follower = threading.Thread(target=self._follow, name=f"log-{role}")
        self._follower.start()

    def wait_ready(self) -> WorkerProcess:
        """Wait for the `ready` line; fails with the log when the process ends first."""
        assert self._ready.wait(START_S) and self.facts, f"{self.role} did not start:\n{self.tail()}"
        self._channel = grpc.insecure_channel(self.address)
        return self

    @property
    def address(self) -> str:
        """host:port of its gRPC server."""
        return str(self.facts["address"])

    @property
    def metrics_address(self) -> str:
        """host:port of its Prometheus exporter."""
        return str(self.facts["metrics"])

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self.process.poll() is None

    def stats(self, timeout_s: float = 20.0) -> worker_pb2.GetStatsResponse:
        """Its GetStats, with the conservation law checked."""
        assert self._channel is not None, "not ready"
        stub = worker_pb2_grpc.WorkerServiceStub(self._channel)
        stats: worker_pb2.GetStatsResponse = stub.GetStats(
            worker_pb2.GetStatsRequest(), timeout=timeout_s, wait_for_ready=True
        )
        parts = (stats.blocks_free, stats.blocks_cached, stats.blocks_held)
        assert sum(parts) == stats.blocks_total, f"{self.role}: free, cached, held {parts} of {stats.blocks_total}"
        return stats

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the samples called `name` whose labels include `labels`; 0 when there is none."""
        with urllib.request.urlopen(f"http://{self.metrics_address}/metrics", timeout=20) as answer:
            text = answer.read().decode()
        samples = (s for family in text_string_to_metric_families(text) for s in family.samples)
        return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())

    def kill(self) -> None:
        """End it at once, as the kernel would; returns when it is gone."""
        self.process.send_signal(signal.SIGKILL)
        self.reap()

    def freeze(self) -> None:
        """Stop it without ending it: its sockets stay open and silent."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen process go on."""
        self.process.send_signal(signal.SIGCONT)

    def terminate(self) -> int:
        """SIGTERM, then wait; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.reap()

    def stop_reading_log(self) -> None:
        """Close the pipe of its log at the next line, as if whoever started it had been killed."""
        self._deaf = True

    def stop(self) -> str:
        """SIGTERM, thawed if need be; returns what was wrong about its end, "" if nothing."""
        self.process.send_signal(signal.SIGCONT)
        status = self.terminate()
        return "" if status == 0 else f"{self.role} ended with {status}:\n{self.tail()}"

    def reap(self) -> int:
        """Wait for the end of the process and close what belongs to it; returns the exit status.

        One that does not end is killed, and its status says so.
        """
        try:
            status = self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self._follower.join()
        if self._channel is not None:
            self._channel.close()
        return status

    def check_idle(self, within_s: float = IDLE_S) -> None:
        """Fail unless all blocks are free or cached within the time."""
        wait_until(lambda: _is_idle(self.stats()), within_s, lambda: f"{self.role} is not idle:\n{self.stats()}")

    def tail(self, num_lines: int = 30) -> str:
        """The end of its log."""
        return "\n".join(self.log[-num_lines:])

    def _follow(self) -> None:
        with self.process.stderr as lines:
            for line in lines:
                if self._deaf:
                    break
                self.log.append(line.rstrip("\n"))
                if not self.facts and '"event": "ready"' in line:
                    self.facts = json.loads(line)
                    self._ready.set()
        self._ready.set()


class Workers:
    """The worker processes of one test or fixture."""

    def __init__(self, **flags: str) -> None:
        """`flags` are for every process, without dashes: `chunked_prefill_size="32"`."""
        self._flags = DEFAULT_FLAGS | {"model-path": str(tiny_model_dir())} | _named(flags)
        self._processes: list[WorkerProcess] = []

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Check and stop everything; after a failed test only stop."""
        try:
            if kind is None:
                self.check_idle()
        finally:
            live = [worker for worker in self._processes if worker.alive]
            failures = [failure for worker in live if (failure := worker.stop())]
        if kind is None:
            assert not failures, "\n".join(failures)

    def launch(self, role: str, **flags: str) -> WorkerProcess:
        """Start a process without waiting for it; `wait_ready` before use."""
        merged = self._flags | _named(flags)
        worker = WorkerProcess(role, [part for name, value in merged.items() for part in _flag(name, value)])
        self._processes.append(worker)
        return worker

    def start(self, role: str, **flags: str) -> WorkerProcess:
        """Start a process and wait until it is ready."""
        return self.launch(role, **flags).wait_ready()

    def start_pair(self, **flags: str) -> tuple[WorkerProcess, WorkerProcess]:
        """A prefill and a decode worker, started together."""
        prefill, decode = self.launch("prefill", **flags), self.launch("decode", **flags)
        return prefill.wait_ready(), decode.wait_ready()

    def check_idle(self, within_s: float = IDLE_S) -> None:
        """Fail unless every live process has given back all blocks within the time."""
        for worker in self._processes:
            if worker.alive and worker.facts:
                worker.check_idle(within_s)


def wait_until(holds: Callable[[], bool], within_s: float, describe: Callable[[], str]) -> None:
    """Poll until `holds`; fails with `describe()` when the time is over."""
    ends_at = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < ends_at, describe()
        time.sleep(0.02)


def _is_idle(stats: worker_pb2.GetStatsResponse) -> bool:
    return stats.blocks_held == stats.num_running == stats.num_waiting == 0


def _named(flags: dict[str, str]) -> dict[str, str]:
    """Python names to flag names; a double underscore is the dot of a section."""
    return {name.replace("__", ".").replace("_", "-"): value for name, value in flags.items()}


def _flag(name: str, value: str) -> list[str]:
    return [f"--{name}"] if value == "" else [f"--{name}", value]
