"""Reading readiness out of a log that is being written."""

from __future__ import annotations

from pathlib import Path

import pytest

from pando.cli.cluster_spec import Probe
from pando.cli.ports import free_port
from pando.cli.probes import ReadyProbe, answers_http, answers_ping, parse_event

READY = b'{"event": "ready", "address": "127.0.0.1:5"}\n'


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "service.log"
    path.write_bytes(b"")
    return path


def append(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)


def test_ready_once_the_line_is_complete(log: Path):
    probe = ReadyProbe(Probe("log"), log, 0)
    append(log, b"loading\n" + READY[:10])
    assert not probe.ask()
    append(log, READY[10:])
    assert probe.ask()
    assert probe.facts["address"] == "127.0.0.1:5"
    assert probe.ask()


def test_lines_of_an_earlier_life_do_not_count(log: Path):
    append(log, READY)
    assert not ReadyProbe(Probe("log"), log, log.stat().st_size).ask()


def test_other_lines_do_not_count(log: Path):
    append(log, b'{"event": "already ready"}\nready\n{"event": "ready"\n[1]\n\xff\xfe\n')
    assert not ReadyProbe(Probe("log"), log, 0).ask()


def test_a_missing_log_is_not_ready(tmp_path: Path):
    assert not ReadyProbe(Probe("log"), tmp_path / "none", 0).ask()


def test_a_line_without_end_is_read_over(log: Path):
    append(log, b"x" * (2 << 20) + b"\n" + READY)
    probe = ReadyProbe(Probe("log"), log, 0)
    assert any(probe.ask() for _ in range(5))


@pytest.mark.parametrize("line", [b"", b"plain", b"{broken", b"[]", b"\xff"])
def test_parse_event_of_no_event(line: bytes):
    assert parse_event(line) == {}


def test_nobody_answers_on_a_free_port():
    port = free_port()
    assert not answers_ping(f"127.0.0.1:{port}")
    assert not answers_http(f"http://127.0.0.1:{port}/ready")
