"""Plugins of the whole suite."""

pytest_plugins = ["pytester", "tests.support.no_skips"]
