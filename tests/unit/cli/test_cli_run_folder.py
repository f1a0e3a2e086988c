"""What a run folder in any state does to the commands that look into it: an answer or one line, never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from pando.cli.errors import CliError
from pando.cli.run_folder import RunFolder
from pando.cli.up import down, last_lines

DAMAGED = ["", "{", "null", "5", '"x"', "[]", "{}", '{"services": [1], "supervisor": {}}', '{"services": 1}']
GONE = """{"state": "ready", "url": "", "router": "", "registry": "", "services": [],
 "supervisor": {"pid": 1, "started": 1}}"""


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_state_is_no_state(tmp_path: Path, content: str) -> None:
    (tmp_path / "state.json").write_text(content)
    assert RunFolder(tmp_path).read_state() is None
    assert down(tmp_path, Console()) == 0


def test_a_stale_state_is_forgotten_whatever_else_is_missing(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(GONE)
    assert RunFolder(tmp_path).read_state() is not None
    assert down(tmp_path, Console()) == 0
    assert not (tmp_path / "state.json").exists()


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(GONE)
    (tmp_path / "prometheus" / "targets.json.new").mkdir(parents=True)
    with pytest.raises(CliError, match="cannot be written"):
        down(tmp_path, Console())


def test_last_lines_leaves_out_what_was_there_before(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.prepare()
    log = folder.log("router")
    log.write_text("old one\nold two\n")
    earlier = folder.log_sizes()
    assert last_lines(log, 5, earlier[log]) == []
    with log.open("a") as more:
        more.write("new one\nnew two\n")
    assert last_lines(log, 5, earlier[log]) == ["new one", "new two"]
    assert last_lines(log, 1, earlier[log]) == ["new two"]
    log.write_text("set aside\n")
    assert last_lines(log, 5, earlier[log]) == ["set aside"]
    assert last_lines(tmp_path / "none", 5) == []
