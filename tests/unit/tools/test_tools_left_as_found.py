"""tests/support/left_as_found.py: who disturbs later tests fails itself."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DISTURBS = """
import os, signal
import structlog
from common.base.config import LogConfig
from common.base.logging import configure_logging

def test_level():
    configure_logging(LogConfig(level="error", format="json"))

def test_place(tmp_path):
    os.chdir(tmp_path)

def test_environment():
    os.environ["LEFT"] = "1"

def test_signal():
    signal.signal(signal.SIGHUP, lambda *_: None)

def test_none(monkeypatch, tmp_path):
    monkeypatch.setenv("GOES", "1")
    monkeypatch.chdir(tmp_path)
    with structlog.testing.capture_logs():
        structlog.get_logger().info("heard")
"""


def test_what_is_left_changed_fails_the_test(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeconftest('pytest_plugins = ["tests.support.left_as_found"]')
    pytester.makepyfile(DISTURBS)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=5, errors=4)
    result.stdout.fnmatch_lines([f"*changed: {what}*" for what in ("structlog", "the work", "the env", "signal")])
