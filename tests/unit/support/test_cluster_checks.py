"""The checks that end every cluster test go red when they should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, processes_with
from tests.support.load import Reply

ERROR = '{"event": "engine step failed", "level": "error"}\n'


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """A cluster that was never started, with a log folder."""
    made = Cluster(tmp_path, model=tmp_path)
    made.folder.logs.mkdir()
    return made


@pytest.mark.parametrize(
    "line", [ERROR, "Traceback (most recent call last):\n", "Task exception was never retrieved\n"]
)
def test_trouble_in_a_log_is_found_once(cluster: Cluster, line: str) -> None:
    log = cluster.folder.log("decode-0")
    log.write_text('{"event": "ready", "level": "info"}\n')
    cluster.check_logs()
    with log.open("a") as more:
        more.write(line)
    with pytest.raises(AssertionError, match=r"decode-0\.log: "):
        cluster.check_logs()
    cluster.check_logs()


def test_expected_trouble_is_expected_until_the_next_check(cluster: Cluster) -> None:
    log = cluster.folder.log("router")
    log.write_text(ERROR)
    cluster.expect_errors("engine step")
    cluster.check_logs()
    log.write_text(ERROR * 2)
    with pytest.raises(AssertionError):
        cluster.check_logs()


def test_a_process_that_is_left_is_found(tmp_path: Path) -> None:
    mark = str(tmp_path / "mark")
    assert processes_with([mark]) == []
    command = [sys.executable, "-c", "print('up', flush=True); input()", mark]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        assert len(processes_with([mark])) == 1
    assert processes_with([mark]) == []


def test_replies_tell_whole_broken_and_silent_apart() -> None:
    whole = Reply("p", status=200, finish="length")
    refused = Reply("p", status=503, error="peer_lost")
    assert whole.is_whole and whole.has_typed_end and refused.has_typed_end and not refused.is_whole
    for bad in (Reply("p"), Reply("p", lost="reset"), Reply("p", status=200, finish="stop", error="peer_lost")):
        assert not bad.has_typed_end and not bad.is_whole
