"""`pando admin explain` in words and tables; what it asks is tested with a router in tests/integration."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from typer.testing import CliRunner

from pando.cli.errors import FAILED, CliError
from pando.cli.explain import costs, summary
from pando.cli.main import app
from pando.v1 import inference_pb2, types_pb2


def test_without_a_cluster_there_is_nobody_to_ask(tmp_path: Path) -> None:
    error = CliRunner().invoke(app, ["admin", "--run-dir", str(tmp_path), "explain", "r"]).exception
    assert isinstance(error, CliError) and error.code == FAILED and "nothing runs in" in str(error)


def test_a_router_that_does_not_answer() -> None:
    result = CliRunner().invoke(app, ["admin", "explain", "r", "--router", "127.0.0.1:1"])
    assert isinstance(result.exception, CliError) and "no router remembers" in str(result.exception)


def test_a_decision_in_words_and_its_costs_cheapest_first() -> None:
    decision = inference_pb2.Decision(
        age_s=2.5,
        num_tokens=1000,
        decode_worker="d1",
        prefill_worker="p2",
        reason="remote",
        sources=["p1"],
        outcome="finished",
        expected_ttft_s=0.1,
        ttft_s=0.125,
        reused=types_pb2.CachedTokens(l1=640),
    )
    for name, role, total_s, chosen in (("p1", "prefill", 0.3, False), ("p2", "prefill", 0.2, True)):
        decision.candidates.add(worker_id=name, role=role, total_s=total_s, chosen=chosen, cached_tokens=640)
    words = "\n".join(summary(decision))
    for part in (
        "2.5 s ago: finished",
        "decode d1, prompt on p2 (remote), may fetch from p1",
        "125 ms",
        "640 tokens in l1",
    ):
        assert part in words
    console = Console(width=200)
    with console.capture() as captured:
        console.print(costs(decision))
    first, second = captured.get().splitlines()[1:3]
    assert first.split()[:4] == ["*", "p2", "prefill", "640"] and "200.0" in first and "p1" in second
    assert "unknown" in "\n".join(summary(inference_pb2.Decision(outcome="running")))
