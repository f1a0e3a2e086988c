"""What `pando up` says before it starts anything: ports, models, folders and locks, with real files and sockets."""

from __future__ import annotations

import io
import os
import shutil
import socket
from collections import namedtuple
from pathlib import Path

import pytest
from rich.console import Console

from pando.cli.errors import BAD_INPUT, CliError
from pando.cli.ports import claim, free_port
from pando.cli.processes import ProcessId
from pando.cli.run_folder import ClusterState, RunFolder, RunLock, prometheus_targets
from pando.cli.up import UpRequest, check_model, down, drain_s, make_spec, up

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder that looks like a model from outside."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (folder / name).write_text("{}")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.prepare()
    return folder


def console() -> Console:
    return Console(file=io.StringIO(), soft_wrap=True)


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def make_state(state: str) -> ClusterState:
    return ClusterState(state, "http://127.0.0.1:4711", "", "", ProcessId.of(os.getpid()))


def test_a_free_port_can_be_claimed_and_zero_picks_one():
    assert claim(0, "127.0.0.1", "--port") > 0
    port = free_port()
    assert claim(port, "127.0.0.1", "--port") == port


def test_a_taken_port_names_its_owner_and_the_flag():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(CliError, match=rf"port {port} on 127.0.0.1 is taken by .*\(pid {os.getpid()}\).*--port"):
            claim(port, "127.0.0.1", "--port")


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_model_folder_that_lacks_a_file_is_named(model: Path, missing: str):
    check_model(model)
    (model / missing).unlink()
    with pytest.raises(CliError, match="lacks") as caught:
        check_model(model)
    assert caught.value.code == BAD_INPUT


def test_no_model_folder_says_how_to_get_one(tmp_path: Path):
    with pytest.raises(CliError, match=r"no model folder .*: make setup imports"):
        up(UpRequest(tmp_path / "nowhere", run_dir=tmp_path / "run"), console(), detach=True)


def test_a_host_off_loopback_is_refused(model: Path, folder: RunFolder):
    with pytest.raises(CliError, match=r"not loopback: .*proxy"):
        make_spec(UpRequest(model, host="0.0.0.0", port=0, router_port=0), folder)


def test_no_worker_and_too_many_are_refused(model: Path, folder: RunFolder):
    with pytest.raises(CliError, match="at most 256"):
        make_spec(UpRequest(model, port=0, router_port=0, decode_workers=100_000), folder)
    with pytest.raises(CliError, match="at least one worker"):
        make_spec(UpRequest(model, port=0, router_port=0, decode_workers=0), folder)


def test_services_get_the_time_to_drain_that_they_read_themselves(
    model: Path, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PANDO_TIMEOUTS__DRAIN_S", "7")
    assert drain_s(()) == 7
    settings = (("timeouts", "scale", "2"), ("timeouts", "drain_s", "30"), ("worker", "port", "0"))
    spec = make_spec(
        UpRequest(model, port=0, router_port=0, registry="redis://127.0.0.1:1/0", settings=settings), folder
    )
    assert min(one.grace_s for one in spec.services) > 60
    for key, value in (("drain_s", "soon"), ("no_such", "1")):
        with pytest.raises(CliError, match=key.replace("_", ".")) as caught:
            drain_s((("timeouts", key, value),))
        assert caught.value.code == BAD_INPUT


def test_a_run_folder_that_cannot_be_made(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CliError, match=r"cannot be used \(Not a directory\): choose another --run-dir"):
        RunFolder(tmp_path / "file" / "run").prepare()


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2**40, 2**40, 3 * 2**20))
    with pytest.raises(CliError, match=r"only 3 MiB are free .*: free at least 64 MiB"):
        RunFolder(tmp_path / "run").prepare()


def test_already_up_prints_the_url_and_is_no_error(model: Path, folder: RunFolder):
    folder.write_state(make_state("ready"))
    screen = console()
    with RunLock(folder) as lock:
        assert lock.acquire()
        assert up(UpRequest(model, run_dir=folder.path), screen, detach=True) == 0
    assert "already up (ready): http://127.0.0.1:4711" in shown(screen)


def test_stopping_cluster_asks_for_patience(model: Path, folder: RunFolder):
    folder.write_state(make_state("stopping"))
    with RunLock(folder) as lock:
        assert lock.acquire()
        with pytest.raises(CliError, match="is stopping: try again"):
            up(UpRequest(model, run_dir=folder.path), console(), detach=True)


def test_a_stale_lock_and_state_stop_nobody(tmp_path: Path, folder: RunFolder):
    folder.write_state(make_state("ready"))
    (folder.path / "lock").write_text("1\n")
    screen = console()
    with pytest.raises(CliError, match="no model folder"):
        up(UpRequest(tmp_path / "nowhere", run_dir=folder.path), screen, detach=True)
    assert "died without cleaning up; starting a new one" in shown(screen)
    assert folder.read_state() is None


def test_down_with_nothing_running_is_fine_and_tidies_up(folder: RunFolder):
    folder.write_state(make_state("ready"))
    screen = console()
    assert down(folder.path, screen) == 0
    assert "nothing runs" in shown(screen)
    assert folder.read_state() is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"state": "ready"}', b'{"services": 3}'])
def test_a_damaged_state_file_is_no_state(folder: RunFolder, content: bytes):
    (folder.path / "state.json").write_bytes(content)
    assert folder.read_state() is None


def test_state_survives_the_file(folder: RunFolder):
    state = make_state("ready")
    folder.write_state(state)
    assert folder.read_state() == state
    assert prometheus_targets(state) == []


def test_a_log_that_grew_large_is_set_aside(folder: RunFolder):
    folder.log("x").write_bytes(b"a" * (16 * 2**20 + 1))
    path, offset = folder.open_log("x")
    assert offset == 0
    assert not path.exists()
    assert folder.log("x").with_suffix(".log.1").exists()


def test_looking_at_a_lock_does_not_take_it(folder: RunFolder):
    first, second = RunLock(folder), RunLock(folder)
    assert not first.held_by_another()
    assert second.acquire()
    assert first.held_by_another()
    assert not first.acquire()
    second.release()
    assert not first.held_by_another()
