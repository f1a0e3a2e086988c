"""Plugins of the whole suite."""

import gc

from hypothesis import settings

settings.register_profile("pando", deadline=None)  # a busy machine is no counter-example
settings.load_profile("pando")

pytest_plugins = ["pytester", "tests.support.cluster_fixtures", "tests.support.left_as_found", "tests.support.no_skips"]


def pytest_collection_finish() -> None:
    """Keep the collector from what was imported and collected: it stays, and looking through it stops every thread."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Who forked workers for this session ends with it."""
    from tests.support import nursery  # noqa: PLC0415 - pytest wants to import its plugins there first

    nursery.close()
