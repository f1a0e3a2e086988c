"""The supervisor with real processes: restarts, stops exactly its own, and leaves nothing however it ends."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from rich.console import Console

from pando.cli.errors import CliError
from pando.cli.run_folder import RunFolder, RunLock
from pando.cli.scale import scale
from pando.cli.up import down, run_detached
from tests.support.fake_cluster import LIMIT_S, FakeCluster, eventually, fake_service, fake_spec, runs


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeCluster]:
    with FakeCluster(tmp_path) as cluster:
        cluster.wait_for("ready")
        yield cluster


@pytest.fixture
def bystander() -> Iterator[int]:
    """A process of somebody else, which nothing here may touch."""
    process = subprocess.Popen(["sleep", "600"])
    yield process.pid
    alive = process.poll() is None
    process.kill()
    process.wait()
    assert alive, "a process that the supervisor did not start was ended"


def quiet_console() -> Console:
    return Console(file=io.StringIO())


def all_gone(cluster: FakeCluster) -> bool:
    return not any(runs(pid) for pid in cluster.pids())


def test_state_tells_what_runs(cluster: FakeCluster):
    state = cluster.state()
    assert [service.phase for service in state.services] == ["ready"] * 4
    for service in state.services:
        assert service.process.alive()
        assert service.process.pid == cluster.lives(service.name)[0]["pid"]
    assert state.supervisor.pid == cluster.process.pid
    assert RunLock(cluster.folder).held_by_another()


def test_workers_come_and_go_while_it_runs(cluster: FakeCluster):
    assert (
        scale(cluster.folder.path, {"decode": 3, "prefill": 2}, quiet_console(), force=False, patience_s=LIMIT_S) == 0
    )
    names = {service.name for service in cluster.wait_for("ready").services}
    more = {"prefill-1", "decode-1", "decode-2"}
    assert names == {"registry", "prefill-0", "decode-0", "gateway"} | more
    pids = [cluster.lives(name)[0]["pid"] for name in sorted(more)]
    assert all(runs(pid) for pid in pids)
    assert scale(cluster.folder.path, {"decode": 1, "prefill": 1}, quiet_console(), force=True, patience_s=LIMIT_S) == 0
    assert {service.name for service in cluster.wait_for("ready").services} == names - more
    assert not any(runs(pid) for pid in pids)
    assert len(cluster.lives("decode-0")) == 1, "the others went on"


def test_prometheus_targets_follow_the_ready_services(cluster: FakeCluster):
    path = cluster.folder.path / "prometheus" / "targets.json"

    def targets() -> dict[str, list[str]]:
        return {entry["labels"]["name"]: entry["targets"] for entry in orjson.loads(path.read_bytes())}

    before = targets()
    assert set(before) == {"registry", "prefill-0", "decode-0", "gateway"}
    os.kill(cluster.lives("prefill-0")[0]["pid"], signal.SIGKILL)
    eventually(lambda: len(cluster.lives("prefill-0")) == 2, "a second life")
    cluster.wait_for("ready")
    eventually(lambda: "prefill-0" in targets(), "its targets")
    after = targets()
    assert after["prefill-0"] != before["prefill-0"]
    assert after["decode-0"] == before["decode-0"]


def test_a_killed_service_is_reported_and_restarted_alone(cluster: FakeCluster):
    os.kill(cluster.lives("prefill-0")[0]["pid"], signal.SIGKILL)
    eventually(lambda: len(cluster.lives("prefill-0")) == 2, "a second life")
    state = cluster.wait_for("ready")
    assert {service.name: service.restarts for service in state.services}["prefill-0"] == 1
    assert "prefill-0 was ended by signal 9; starting it again" in cluster.log.read_text()
    for other in ("registry", "decode-0", "gateway"):
        assert len(cluster.lives(other)) == 1


def test_first_layer_was_ready_before_the_others_began(tmp_path: Path):
    with FakeCluster(tmp_path, fake_service(tmp_path, "registry", 0, "--mute")) as cluster:
        eventually(lambda: cluster.lives("registry"), "the registry")
        eventually(lambda: cluster.state().services[0].phase == "starting", "its start")
        assert cluster.lives("gateway") == []
        cluster.process.terminate()
        assert cluster.process.wait(LIMIT_S) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_signal_ends_all_it_started_and_nothing_else(cluster: FakeCluster, bystander: int, number: int):
    assert runs(bystander)
    cluster.process.send_signal(number)
    assert cluster.process.wait(LIMIT_S) == 0
    assert all_gone(cluster)
    assert (cluster.data / "ends").read_text().splitlines()[0] == "gateway"
    assert (cluster.data / "ends").read_text().splitlines()[-1] == "registry"
    assert "outlived" not in cluster.log.read_text()
    assert cluster.folder.read_state() is None
    assert not RunLock(cluster.folder).held_by_another()


def test_a_deaf_service_is_killed_with_its_children_after_its_grace_time(tmp_path: Path):
    deaf = fake_service(tmp_path, "decode-0", 1, "--deaf", "--child", grace_s=0.3)
    with FakeCluster(tmp_path, deaf) as cluster:
        cluster.wait_for("ready")
        cluster.process.terminate()
        assert cluster.process.wait(LIMIT_S) == 0
        eventually(lambda: all_gone(cluster), "nothing left")
        assert "decode-0 outlived its grace time" in cluster.log.read_text()


def test_a_second_stop_signal_kills_at_once(tmp_path: Path):
    deaf = fake_service(tmp_path, "gateway", 3, "--deaf", grace_s=600)
    with FakeCluster(tmp_path, deaf) as cluster:
        cluster.wait_for("ready")
        cluster.process.terminate()
        eventually((cluster.data / "ends").exists, "the first signal")
        cluster.process.terminate()
        assert cluster.process.wait(LIMIT_S) == 0
        assert all_gone(cluster)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent death signal is Linux's")
def test_kill_9_of_the_supervisor_leaves_nothing(tmp_path: Path, bystander: int):
    assert runs(bystander)
    with FakeCluster(tmp_path, fake_service(tmp_path, "decode-0", 1, "--deaf")) as cluster:
        cluster.wait_for("ready")
        cluster.process.kill()
        cluster.process.wait(LIMIT_S)
        eventually(lambda: all_gone(cluster), "nothing left")
        assert cluster.folder.read_state() is not None, "the state file is stale now"
        assert not RunLock(cluster.folder).held_by_another()
        with FakeCluster(tmp_path) as next_cluster:
            next_cluster.wait_for("ready")


def test_a_failing_service_ends_the_start_and_is_named(tmp_path: Path):
    with FakeCluster(tmp_path, fake_service(tmp_path, "decode-0", 1, "--exit", "2")) as cluster:
        assert cluster.process.wait(LIMIT_S) == 1
        state = cluster.state()
        assert state.state == "failed"
        assert state.failure == "decode-0 ended with status 2 while starting"
        assert all_gone(cluster)


def test_a_service_that_never_gets_ready_ends_the_start(tmp_path: Path):
    mute = fake_service(tmp_path, "decode-0", 1, "--mute")
    with FakeCluster(tmp_path, mute, timeout_s=5) as cluster:
        assert cluster.process.wait(LIMIT_S) == 1
        assert cluster.state().failure == "decode-0 was not ready within 5 s"
        assert all_gone(cluster)


def test_two_supervisors_do_not_share_a_folder(cluster: FakeCluster):
    order = orjson.dumps({"run_dir": str(cluster.folder.path), "spec": cluster.spec.to_json()})
    command = [sys.executable, "-m", "pando.cli.supervisor"]
    second = subprocess.run(command, input=order, capture_output=True, timeout=LIMIT_S, check=False)
    assert second.returncode == 1
    assert f"another pando (pid {cluster.process.pid})" in second.stdout.decode()
    assert cluster.state().state == "ready"


def test_down_from_another_process_stops_it(cluster: FakeCluster):
    reaper = threading.Thread(target=cluster.process.wait)
    reaper.start()
    assert down(cluster.folder.path, quiet_console()) == 0
    reaper.join(LIMIT_S)
    assert all_gone(cluster)
    assert cluster.folder.read_state() is None


def test_down_does_not_signal_a_stranger_with_the_supervisors_pid(tmp_path: Path, request: pytest.FixtureRequest):
    with FakeCluster(tmp_path) as cluster:
        state = cluster.wait_for("ready")
        cluster.process.kill()
        cluster.process.wait()
        bystander = request.getfixturevalue("bystander")
        path = cluster.folder.path / "state.json"
        values = orjson.loads(orjson.dumps(state))
        values["supervisor"]["pid"] = bystander
        path.write_bytes(orjson.dumps(values))
        with RunLock(cluster.folder) as lock:
            assert lock.acquire()
            with pytest.raises(CliError, match="not by the pid it names"):
                down(cluster.folder.path, quiet_console())
        assert runs(bystander)


def test_detached_start_returns_when_ready_and_leaves_it_running(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    folder = RunFolder(tmp_path / "run")
    folder.prepare()
    spec = fake_spec(tmp_path)
    try:
        assert run_detached(spec, folder, Console(soft_wrap=True)) == 0
        shown = capfd.readouterr().out
        assert f"ready {spec.url}" in shown
        assert f"curl -s {spec.url}/v1/chat/completions" in shown
        state = folder.read_state()
        assert state is not None
        assert all(service.process.alive() for service in state.services)
    finally:
        down(folder.path, quiet_console())
    assert not any(service.process.alive() for service in state.services)


def test_detached_start_that_fails_shows_the_end_of_the_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    folder = RunFolder(tmp_path / "run")
    folder.prepare()
    spec = fake_spec(tmp_path, fake_service(tmp_path, "decode-0", 1, "--exit", "2"))
    assert run_detached(spec, folder, Console(soft_wrap=True)) == 1
    shown = capfd.readouterr().out
    assert "decode-0 ended with status 2 while starting" in shown
    assert "the model folder is damaged" in shown


def test_services_get_the_environment_of_the_spec_over_their_own(tmp_path: Path):
    with FakeCluster(tmp_path) as cluster:
        cluster.wait_for("ready")
        seen = cluster.lives("decode-0")[0]["environment"]
        assert seen["PANDO_LOG__LEVEL"] == "debug"
        assert seen["PATH"] == os.environ["PATH"]
