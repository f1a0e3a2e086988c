"""The router as a process: ready line, health, drain by signal, one line when it cannot start; a real registry."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.rpc.registry import Heartbeat
from common.tokenizer.tokenizer import Tokenizer
from pando.cli.local_registry import registry_command
from pando.cli.ports import free_port
from pando.cli.probes import answers_ping
from pando.cli.processes import spawn
from pando.v1 import inference_pb2, inference_pb2_grpc
from tests.support.fake_cluster import eventually
from tests.support.fake_worker import FakeWorker
from tests.support.router_bench import text_request, write_model

NO_REGISTRY = "redis://127.0.0.1:1/0"
EXIT_S = 120


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@contextmanager
def process(model_dir: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """A router process and the facts of its ready line."""
    argv = [sys.executable, "-m", "services.router", "--port", "0", "--model-path", str(model_dir)]
    argv += ["--log.format", "json", "--registry.url", NO_REGISTRY, *flags]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as router:
        try:
            assert router.stderr is not None
            yield router, json.loads(next(line for line in router.stderr if '"event": "ready"' in line))
        finally:
            router.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_ready_serves_and_ends_clean_by_signal(model_dir: Path, number: signal.Signals) -> None:
    with process(model_dir, "--served-model-name", "tiny") as (router, facts):
        assert (facts["event"], facts["service"]) == ("ready", "router")
        with grpc.insecure_channel(facts["address"]) as channel:
            model = inference_pb2_grpc.InferenceStub(channel).GetModel(inference_pb2.GetModelRequest())
            assert model.name == "tiny"
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        with urllib.request.urlopen(f"http://{facts['metrics']}/metrics") as response:
            assert b"pando_router_running_requests 0.0" in response.read()
        router.send_signal(number)
        assert router.wait(EXIT_S) == 0


def refusal(*flags: str) -> str:
    """What a start that must fail says; exit status 2 and one line."""
    argv = [sys.executable, "-m", "services.router", "--registry.url", NO_REGISTRY, *flags]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=EXIT_S, check=False)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    return line


def test_what_is_wrong_at_the_start_is_one_line(model_dir: Path, tmp_path: Path) -> None:
    assert "no-such-folder does not exist" in refusal("--model-path", "no-such-folder")
    assert "config.json is missing" in refusal("--model-path", str(tmp_path))
    assert "max-attempts" in refusal("--max-attempts", "0").replace("_", "-")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert port in refusal("--model-path", str(model_dir), "--port", port)
        assert port in refusal("--model-path", str(model_dir), "--port", "0", "--metrics-port", port)


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """URL and process of a real registry."""
    port = free_port()
    server = spawn(registry_command(port, tmp_path), os.environ, tmp_path / "log")
    eventually(lambda: answers_ping(f"127.0.0.1:{port}"), "a PING's answer")
    yield f"redis://127.0.0.1:{port}/0", server
    server.kill()
    server.wait()


async def test_workers_are_found_in_a_registry_and_kept_without_it(
    model_dir: Path, registry: tuple[str, subprocess.Popen[bytes]]
) -> None:
    url, server = registry
    worker = await FakeWorker("both", ["decode", "prefill"], Tokenizer.load(model_dir)).start()
    heartbeat = Heartbeat(url, "pando", lambda: worker.record, interval_s=0.05, ttl_s=60.0)
    heartbeat.start()
    try:
        with process(model_dir, "--registry.url", url, "--router.poll-s", "0.05") as (_, facts):
            async with grpc.aio.insecure_channel(facts["address"]) as channel:
                await _serving(channel)
                stub = inference_pb2_grpc.InferenceStub(channel)
                assert len([frame async for frame in stub.Generate(text_request(max_tokens=5))]) == 5
                server.kill()
                server.wait()
                for _ in range(3):
                    assert len([frame async for frame in stub.Generate(text_request(max_tokens=5))]) == 5
    finally:
        heartbeat.close()
        await worker.kill()


async def _serving(channel: grpc.aio.Channel) -> None:
    """Follow the health stream until it says SERVING."""
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=EXIT_S)
    async for answer in watch:
        if answer.status == health_pb2.HealthCheckResponse.SERVING:
            watch.cancel()
            return
