"""`Runtime`: a private cluster that serves, stops, and does not outlive its owner however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from common.base.errors import NotReady
from pando.lang import Runtime, function, gen
from tests.support.cluster import ROOT, processes_with
from tests.support.tiny_model import tiny_model_dir
from tests.support.workers import wait_until

SETTINGS = {"worker": {"max_total_tokens": 8192, "num_threads": 1}}
OWNER = """
import sys, time
from pando.lang import Runtime
runtime = Runtime(sys.argv[1], settings={settings!r})
print(runtime.router, runtime.url, flush=True)
time.sleep(600)
"""


@function
def program(s: Any) -> None:
    s += "Once upon a time" + gen("x", max_tokens=5, temperature=0.0)


class Unlucky(Runtime):
    """Somebody else takes its port at the first start."""

    num_starts = 0

    def _start(self, order: dict[str, Any]) -> subprocess.Popen[bytes]:
        self.num_starts += 1
        if self.num_starts > 1:
            return super()._start(order)
        (self._folder / "keeper.log").write_text("gateway: 127.0.0.1:1: Address already in use; stop what holds it")
        return subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"], stdin=subprocess.PIPE)


def test_it_serves_and_stops() -> None:
    with Unlucky(tiny_model_dir(), settings=SETTINGS) as runtime:
        assert runtime.num_starts == 2
        state = program.run(backend=runtime)
        assert state.get_meta_info("x")["completion_tokens"] == 5
        marks = [runtime.router, runtime.url]
        assert processes_with(marks)
    assert not processes_with(marks)
    runtime.shutdown()


def test_it_ends_with_a_killed_owner(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER.format(settings=SETTINGS), str(tiny_model_dir())],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    try:
        assert owner.stdout is not None
        with owner.stdout as lines:
            marks = lines.readline().split()
        assert len(marks) == 2 and processes_with(marks)
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    wait_until(lambda: not processes_with(marks), 120.0, lambda: f"still running: {processes_with(marks)}")
    wait_until(lambda: not list(tmp_path.iterdir()), 120.0, lambda: f"left: {list(tmp_path.iterdir())}")


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotReady, match="no model folder"):
        Runtime(tmp_path / "nothing")
