"""`pando admin` finds the workers of a running cluster by its run folder, and what it arms happens there."""

from __future__ import annotations

import json

import httpx

from tests.support.cluster import Cluster, pando

GENERATE = "rpc.DecodeService.Generate"


def test_a_game_day_in_small(fragile_cluster: Cluster) -> None:
    cluster = fragile_cluster

    def admin(*arguments: str) -> str:
        done = pando("admin", "--run-dir", str(cluster.folder.path), *arguments, timeout_s=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    listed = json.loads(admin("--json", "tiers"))
    assert sorted(listed) == sorted(cluster.workers) == ["decode-0", "prefill-0"]
    assert all(worker["tiers"][0]["blocks_total"] for worker in listed.values())
    admin("failpoint", "arm", GENERATE, "1*delay(0.5)", "--worker", "decode-0")
    body = {"model": cluster.model, "prompt": "once upon", "max_tokens": 4}
    answer = httpx.post(f"{cluster.url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200 and answer.elapsed.total_seconds() >= 0.5
    points = json.loads(admin("--json", "failpoint", "list", "--worker", "decode-0"))["decode-0"]["failpoints"]
    assert [point["fired"] for point in points if point["name"] == GENERATE] == ["1"]
    assert "decode-0: 1 disarmed" in admin("failpoint", "disarm", "--all")
