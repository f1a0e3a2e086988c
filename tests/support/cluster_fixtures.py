"""Clusters that several test files share, started when the first test asks for them and checked when the session ends.

`tiny_cluster` is never harmed; `fragile_cluster` has its processes killed and frozen, and every test leaves it whole
and serving. A plugin of the whole suite, so it imports nothing heavy until a cluster is wanted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.cluster import Cluster

FRAGILE = ("--router.migration-wait-s", "60", "--gateway.router-wait-s", "60", "--worker.enable-failpoints")


@pytest.fixture(scope="session")
def _tiny_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    from tests.support.cluster import UNHURRIED, Cluster  # noqa: PLC0415

    with Cluster(tmp_path_factory.mktemp("tiny-cluster"), *UNHURRIED) as cluster:
        yield cluster


@pytest.fixture
def tiny_cluster(_tiny_cluster: Cluster) -> Iterator[Cluster]:
    """A prefill and a decode worker over the tiny model; nothing may be left of a test's requests after it."""
    yield _tiny_cluster
    _tiny_cluster.check_idle()
    _tiny_cluster.check_logs()


@pytest.fixture(scope="session")
def _fragile_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    from tests.support.cluster import Cluster  # noqa: PLC0415

    with Cluster(tmp_path_factory.mktemp("fragile-cluster"), *FRAGILE) as cluster:
        yield cluster


@pytest.fixture
def fragile_cluster(_fragile_cluster: Cluster) -> Iterator[Cluster]:
    """A prefill and a decode worker to be killed and frozen; whole, serving and idle again after every test."""
    _fragile_cluster.wait_serving()
    yield _fragile_cluster
    _fragile_cluster.wait_serving()
    _fragile_cluster.check_idle()
    _fragile_cluster.check_logs()
