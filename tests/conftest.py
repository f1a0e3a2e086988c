"""Plugins of the whole suite."""

pytest_plugins = ["pytester", "tests.support.cluster_fixtures", "tests.support.no_skips"]
