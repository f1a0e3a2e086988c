"""With `CI=true` a skipped test is a failed one: what does not run on the CI image proves nothing there."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest


def _forbidden() -> bool:
    return os.environ.get("CI") == "true"


def _fail(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail") and _forbidden():
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped where nothing may be skipped (CI=true): {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skips inside tests and fixtures, and by mark."""
    report = yield
    _fail(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skips of whole modules."""
    report = yield
    _fail(report)
    return report
