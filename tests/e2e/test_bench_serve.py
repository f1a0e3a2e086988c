"""bench/serve.py runs against a cluster and measures what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import serve
from tests.support.cluster import Cluster

SMALL = ["--requests", "6", "--clients", "3", "--input-length", "40", "--turns", "3", "--turn-length", "8"]


def test_every_workload_is_measured(tiny_cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "deep" / "serve.json"
    assert serve.main(["--url", tiny_cluster.url, "--out", str(out), "--output-length", "8", *SMALL]) == 0
    document = json.loads(out.read_text())
    assert document["model"] == tiny_cluster.model
    rows = {one["workload"]: one for one in document["workloads"]}
    assert list(rows) == ["cold", "shared-prefix", "multi-turn", "batch"]
    for name, one in rows.items():
        row = one["all"]
        assert (row["requests"], row["failed"], row["output_tokens"]) == (6, 0, 48), name
        assert 0 < row["ttft_ms"]["p50"] <= row["e2e_ms"]["p50"] and row["itl_ms"]["p99"] > 0
    assert rows["cold"]["all"]["cached_tokens"] < rows["shared-prefix"]["all"]["cached_tokens"]
    turns = rows["multi-turn"]["turns"]
    assert [turn["requests"] for turn in turns] == [2, 2, 2]
    assert all(turn["cached_tokens"] > 0 for turn in turns[1:]), "later turns reuse nothing"
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("TTFT p50", "ITL p99", "TPOT p90", "turn 3", "cached"))


def test_a_failed_request_fails_the_run(
    tiny_cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--url", tiny_cluster.url, "--out", str(tmp_path / "serve.json"), "--workload", "cold", *SMALL]
    assert serve.main([*flags, "--model", "no-such-model"]) == 1
    assert "no-such-model" in capsys.readouterr().err
    assert serve.main([*flags, "--workload", "warm"]) == 2
    assert serve.main(["--url", "http://127.0.0.1:1"]) == 2
