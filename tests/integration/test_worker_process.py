"""The life of a worker process: starts that fail, and ends that must not hang."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from pando.v1 import worker_pb2, worker_pb2_grpc
from tests.support.tiny_model import tiny_model_dir
from tests.support.workers import NO_REGISTRY, ROOT, STOP_S, Workers


def run(*flags: str, model: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Start a worker that is expected to end by itself."""
    command = [sys.executable, "-m", "services.decode", "--model-path", str(model or tiny_model_dir()), *flags]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=STOP_S * 4, check=False)


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that a worker says when it cannot start."""
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("decode: ")]
    assert len(lines) == 1 and "Traceback" not in done.stderr, done.stderr
    return lines[0]


def test_a_model_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    assert "does not exist" in refusal(run(model=tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("flags", "named"),
    [(["--chunked-prefill-sise", "3"], "sise"), (["--max-total-tokens", "16"], "--max-total-tokens")],
)
def test_a_bad_setting_is_one_line(flags: list[str], named: str) -> None:
    assert named in refusal(run(*flags))


def test_a_taken_port_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        flags = ("--max-total-tokens", "1024", "--registry.url", NO_REGISTRY)
        assert port in refusal(run("--port", port, *flags))
        refusal(run("--metrics-port", port, *flags))


@pytest.mark.parametrize("transport", ["shm", "ucx", "tcp"])
def test_a_worker_whose_log_nobody_reads_any_more_serves_and_ends(transport: str) -> None:
    """Whoever started it may have been killed."""
    with Workers(transport=transport) as workers:
        worker = workers.start("decode")
        worker.stop_reading_log()
        with grpc.insecure_channel(worker.address) as channel:
            answer = worker_pb2_grpc.WorkerServiceStub(channel).GetInfo(worker_pb2.GetInfoRequest(), timeout=5)
        assert answer.pid == worker.process.pid
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(STOP_S) == 0
