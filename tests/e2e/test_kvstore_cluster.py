"""The KV store of a local cluster: written behind the replies, there again the next day, shared by all workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.cluster import UNHURRIED, Cluster
from tests.support.workers import wait_until

pytestmark = pytest.mark.e2e
WORDS = " ".join(f"word{number}" for number in range(60))
STORE = "kvstore-0"
BLOCK = 16


def ask(cluster: Cluster) -> dict[str, Any]:
    body = {"model": cluster.model, "prompt": WORDS, "max_tokens": 4, "temperature": 0}
    answer = httpx.post(f"{cluster.url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def from_store(cluster: Cluster) -> float:
    """Prompt tokens that were found in L3, by the router's count."""
    return cluster.metric("router", "pando_router_cached_tokens_total", tier="l3")


def wait_for_disk(cluster: Cluster, num_objects: int) -> None:
    """Wait until the store has so many objects or more, all of them on disk."""

    def done() -> bool:
        objects, on_disk = (cluster.metric(STORE, f"pando_kvstore_{name}") for name in ("objects", "disk_objects"))
        return objects == on_disk >= num_objects

    wait_until(done, 120, lambda: f"fewer than {num_objects} blocks came to the store's disk")


def test_yesterdays_prefixes_are_served_from_disk(tmp_path: Path) -> None:
    flags = (*UNHURRIED, "--store", "on", "--worker.hicache-storage-prefetch-policy", "wait_complete")
    with Cluster(tmp_path / "run", *flags) as cluster:
        first = ask(cluster)
        assert from_store(cluster) == 0
        wait_for_disk(cluster, first["usage"]["prompt_tokens"] // BLOCK)
        cluster.down()
        cluster.up()
        second = ask(cluster)
        assert second["choices"][0]["text"] == first["choices"][0]["text"]
        assert from_store(cluster) >= 0.8 * first["usage"]["prompt_tokens"], "the prompt was computed again"
        assert cluster.metric(STORE, "pando_kvstore_load_objects_total", outcome="loaded") > 0
