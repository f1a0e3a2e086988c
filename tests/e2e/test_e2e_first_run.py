"""What a newcomer does: start, paste the printed request, look, break something, stop. Real model, real processes."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pando.cli.processes import ProcessId
from pando.cli.run_folder import ClusterState, RunFolder, RunLock
from tests.support.fake_cluster import eventually

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models/SmolLM2-135M-Instruct"
START_S = 240.0
QUESTION = "What is the capital of France?"

pytestmark = pytest.mark.e2e


def pando(*arguments: object, timeout_s: float = START_S) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pando.cli.main", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False)


def get_json(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as response:
        return json.loads(response.read())


@dataclass
class Cluster:
    """A cluster that `pando up --detach` started."""

    folder: RunFolder
    printed: str

    def state(self) -> ClusterState:
        state = self.folder.read_state()
        assert state is not None
        return state

    def status(self) -> dict[str, Any]:
        done = pando("status", "--json", "--run-dir", self.folder.path)
        values: dict[str, Any] = json.loads(done.stdout)
        return values


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = RunFolder(tmp_path_factory.mktemp("first") / "run")
    flags = ("--run-dir", folder.path, "--model-path", MODEL, "--port", 0, "--router-port", 0)
    done = pando("up", "--detach", *flags, "--worker.max-total-tokens", 4096, "--log.level", "warning")
    try:
        assert done.returncode == 0, done.stdout + done.stderr
        yield Cluster(folder, done.stdout)
    finally:
        state = folder.read_state()
        down = pando("down", "--run-dir", folder.path)
        assert down.returncode == 0, down.stderr
        assert not any(service.process.alive() for service in (state.services if state else ()))
        assert not RunLock(folder).held_by_another()


def test_the_printed_request_works_when_pasted(cluster: Cluster):
    line = next(line for line in cluster.printed.splitlines() if line.strip().startswith("curl "))
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120, check=True)
    assert "Paris" in json.loads(done.stdout)["choices"][0]["message"]["content"]
    assert shlex.split(line)[2].startswith(cluster.state().url)


def test_generate_prints_the_answer(cluster: Cluster):
    done = pando("generate", QUESTION, "--run-dir", cluster.folder.path, "--max-tokens", 16)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout


def test_generate_raw_continues_the_text(cluster: Cluster):
    done = pando("generate", "1, 2, 3, 4,", "--raw", "--run-dir", cluster.folder.path, "--max-tokens", 6)
    assert done.stdout.strip().startswith("5")


def test_chat_answers_each_line(cluster: Cluster):
    command = [sys.executable, "-m", "pando.cli.main", "chat", "--temperature", "0", "--max-tokens", "24"]
    command += ["--run-dir", str(cluster.folder.path)]
    lines = f"Hello!\n/new\n{QUESTION}\n"
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=120, check=True, cwd=ROOT)
    assert "Paris" in done.stdout.split("> ")[3]


def test_starting_again_only_tells_the_url(cluster: Cluster):
    done = pando("up", "--detach", "--run-dir", cluster.folder.path, timeout_s=START_S)
    assert done.returncode == 0
    assert f"already up (ready): {cluster.state().url}" in done.stdout


def test_status_shows_processes_workers_and_readiness(cluster: Cluster):
    status = cluster.status()
    assert status["ready"]
    assert {service["phase"] for service in status["services"]} == {"ready"}
    workers = {worker["worker_id"]: worker for worker in status["workers"]}
    assert {name: worker["roles"] for name, worker in workers.items()} == {
        "prefill-0": ["prefill"],
        "decode-0": ["decode"],
    }
    eventually(lambda: not any(one["blocks_held"] for one in cluster.status()["workers"]), "nothing is held")
    readable = pando("status", "--run-dir", cluster.folder.path)
    assert readable.returncode == 0
    assert re.search(r"decode-0 +decode +ready", readable.stdout)


def test_every_prometheus_target_answers(cluster: Cluster):
    targets = json.loads((cluster.folder.path / "prometheus" / "targets.json").read_text())
    assert {entry["labels"]["service"] for entry in targets} == {"kvstore", "prefill", "decode", "router", "gateway"}
    for entry in targets:
        with urllib.request.urlopen(f"http://{entry['targets'][0]}/metrics", timeout=60) as response:
            assert b"# HELP pando_" in response.read()


def test_a_killed_worker_comes_back_under_its_name_as_another_life(cluster: Cluster):
    before = {worker["worker_id"]: worker["incarnation"] for worker in cluster.status()["workers"]}
    pid = next(service.process.pid for service in cluster.state().services if service.name == "prefill-0")
    os.kill(pid, signal.SIGKILL)

    def back() -> bool:
        workers = cluster.status()["workers"] or []
        return any(one["worker_id"] == "prefill-0" and one["incarnation"] != before["prefill-0"] for one in workers)

    eventually(back, "another life of prefill-0", limit_s=START_S)
    after = {worker["worker_id"]: worker["incarnation"] for worker in cluster.status()["workers"]}
    assert after["decode-0"] == before["decode-0"]
    assert "prefill-0 was ended by signal 9" in cluster.folder.log("supervisor").read_text()
    done = pando("generate", QUESTION, "--run-dir", cluster.folder.path, "--max-tokens", 16)
    assert "Paris" in done.stdout


def test_a_bad_setting_is_shown_with_the_service_that_refused_it(tmp_path: Path):
    flags = ("--run-dir", tmp_path / "run", "--model-path", MODEL, "--port", 0, "--router-port", 0)
    done = pando("up", "--detach", *flags, "--worker.chunked-prefil-size", 7)
    assert done.returncode == 1
    assert re.search(r"not started: (prefill|decode)-0 ended with status 2 while starting", done.stdout)
    assert "PANDO_WORKER__CHUNKED_PREFIL_SIZE: no such key in section worker" in done.stdout


def test_launch_serves_in_the_foreground_until_ctrl_c(tmp_path: Path):
    command = [sys.executable, "-m", "pando.cli.main", "launch", "--model-path", str(MODEL), "--port", "0"]
    command += ["--served-model-name", "tiny", "--context-length", "256", "--tp-size", "1", "--log-level", "warning"]
    command += ["--run-dir", str(tmp_path / "run"), "--max-total-tokens", "1024"]
    folder = RunFolder(tmp_path / "run")
    with (tmp_path / "out").open("w") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out)
    try:
        eventually(lambda: "Ctrl-C stops it" in (tmp_path / "out").read_text(), "the ready line", limit_s=START_S)
        state = folder.read_state()
        assert state is not None
        assert [service.name for service in state.services] == ["registry", "worker-0", "router", "gateway"]
        assert [model["id"] for model in get_json(f"{state.url}/v1/models")["data"]] == ["tiny"]
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
        assert not any(service.process.alive() for service in state.services)
        assert state.supervisor == ProcessId(process.pid, state.supervisor.started)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
