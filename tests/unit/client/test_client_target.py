"""Where a client connects when it is told nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pando.client.channel import channel_target
from pando.client.target import DEFAULT_TARGET, DEFAULT_URL, grpc_target, http_url


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PANDO_TARGET", raising=False)
    monkeypatch.delenv("PANDO_URL", raising=False)


def test_the_environment_wins_then_the_run_folder_then_the_usual_ports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (grpc_target(), http_url()) == (DEFAULT_TARGET, DEFAULT_URL)
    (tmp_path / "run").mkdir()
    state = {"router": "127.0.0.1:7", "url": "http://127.0.0.1:8"}
    (tmp_path / "run" / "state.json").write_text(json.dumps(state))
    assert (grpc_target(), http_url()) == ("127.0.0.1:7", "http://127.0.0.1:8")
    monkeypatch.setenv("PANDO_TARGET", "far:1")
    monkeypatch.setenv("PANDO_URL", "http://far")
    assert (grpc_target(), http_url()) == ("far:1", "http://far")


@pytest.mark.parametrize("content", ["", "[]", '{"router": 5}', "\x00"])
def test_a_damaged_state_file_is_no_cluster(tmp_path: Path, content: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "state.json").write_text(content)
    assert grpc_target() == DEFAULT_TARGET


def test_several_routers_are_one_target() -> None:
    assert channel_target("far:1") == "far:1"
    assert channel_target("10.0.0.1:1, localhost:2") == "ipv4:10.0.0.1:1,127.0.0.1:2"
