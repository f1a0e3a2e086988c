"""With CI=true a skip is a failure, wherever it comes from; without, it stays a skip."""

from __future__ import annotations

import pytest

SKIPS = """
import pytest

@pytest.mark.skip(reason="by mark")
def test_mark(): pass

def test_inside(): pytest.skip("inside")

@pytest.fixture
def fixture(): pytest.skip("in a fixture")

def test_fixture(fixture): pass

@pytest.mark.xfail(strict=True)
def test_xfail(): raise AssertionError

def test_fine(): pass
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function")
    pytester.makeconftest('pytest_plugins = ["tests.support.no_skips"]')
    pytester.makepyfile(test_some=SKIPS)
    return pytester


def test_skips_fail_in_ci(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CI", "true")
    result = suite.runpytest_inprocess()
    outcomes = result.parseoutcomes()
    assert outcomes.get("passed") == 1
    assert outcomes.get("xfailed") == 1
    assert outcomes.get("failed", 0) + outcomes.get("errors", 0) == 3
    assert result.ret == 1


def test_a_skipped_module_fails_in_ci(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CI", "true")
    suite.makepyfile(test_module="import pytest\npytest.skip('all of it', allow_module_level=True)")
    assert suite.runpytest_inprocess("test_module.py").ret != 0


def test_skips_are_skips_elsewhere(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CI", raising=False)
    result = suite.runpytest_inprocess()
    assert result.parseoutcomes() == {"passed": 1, "skipped": 3, "xfailed": 1}
    assert result.ret == 0
