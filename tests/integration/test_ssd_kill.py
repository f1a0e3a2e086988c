"""Writers of an SSD log killed at hundreds of random points (tests/support/ssd_kills.py has the how)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

LIVES = 400
ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where possible: what SIGKILL leaves is in the page cache, and the device would only cost time."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else str(tmp_path)
    with tempfile.TemporaryDirectory(dir=memory) as name:
        yield Path(name)


def start(folder: Path, lives: int, seed: int, sabotage: str = "none") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.support.ssd_kills", str(folder), "--lives", str(lives)]
    command += ["--seed", str(seed), "--sabotage", sabotage]
    return subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE)


def tally_of(process: subprocess.Popen[str]) -> dict[str, int]:
    output, _ = process.communicate(timeout=280)
    assert process.returncode == 0
    tally: dict[str, int] = json.loads(output)
    return tally


def test_no_committed_object_is_lost_or_wrong_in_hundreds_of_kills(folder: Path) -> None:
    processes = [start(folder / str(seed), LIVES // 2, seed) for seed in (1, 2)]
    tallies = [tally_of(process) for process in processes]
    print(tallies)
    for tally in tallies:
        faults = {name: tally[name] for name in ("wrong", "lost", "returned", "crashes")}
        assert faults == dict.fromkeys(faults, 0), f"{tally}"
        assert tally["lives"] == LIVES // 2 + 1 and tally["checks"] > 0.9 * LIVES // 2
        assert tally["torn"] > LIVES // 2 * 0.02, "hardly a kill tore anything: are the points random?"


@pytest.mark.parametrize(
    ("sabotage", "seen"), [("forget-writes", "lost"), ("rot", "wrong"), ("forget-removals", "returned")]
)
def test_control_a_broken_log_is_found_out(folder: Path, sabotage: str, seen: str) -> None:
    tally = tally_of(start(folder / "log", 40, 3, sabotage))
    assert tally[seen] > 0, f"{tally}"
