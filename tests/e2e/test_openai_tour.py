"""The tour of the official client through a whole cluster, grammars included."""

from __future__ import annotations

from tests.support.cluster import Cluster
from tests.support.openai_tour import tour


def test_the_official_client_finds_all_it_looks_for(tiny_cluster: Cluster) -> None:
    tour(tiny_cluster.url, tiny_cluster.model, with_structured=True, fake=False)
    tiny_cluster.check_idle()
