"""The arithmetic of replay reports, the flags, and how Dynamo's figures are taken in."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import pytest

from bench.replay import __main__ as command
from bench.replay.compare import losses, rows
from bench.replay.dynamo import DynamoRun, parse_rows
from bench.replay.job import WorkerShape
from bench.replay.options import NEVER, add_fleet_options, fleet_shape, planner_config
from bench.replay.report import spread, summarise
from bench.replay.simulation import Record
from bench.replay.times import ServiceTimes


def record(worker: int, tokens: tuple[int, int, int], ttft_s: float, e2e_s: float) -> Record:
    """`tokens`: input, cached, output."""
    num_input, num_cached, num_output = tokens
    return Record(1.0, num_input, num_output, num_cached, worker, 1.0 + ttft_s, 1.0 + e2e_s)


def test_a_spread_of_times() -> None:
    assert spread([0.002, 0.001]) == {"p50": 1.0, "p90": 2.0, "p99": 2.0, "mean": 1.5}
    assert spread([])["mean"] == 0.0


def test_a_summary() -> None:
    records = [
        record(0, (100, 40, 3), 1.0, 2.0),
        record(1, (50, 20, 1), 2.0, 2.0),
        Record(1.0, 10**6, 5),
    ]
    summary = summarise(records, [0, 1])
    assert (summary.num_requests, summary.num_rejected) == (3, 1)
    assert summary.reuse_ratio == 60 / 150
    assert summary.load_ratio == 60 / 30
    assert summary.tpot_ms["p99"] == 500
    assert summary.ttft_ms["mean"] == 1500
    assert summary.output_tokens_per_s == 4 / 2
    assert summarise(records, [0, 1, 2]).load_ratio == math.inf
    assert summarise(records, [1]).load_ratio == 1


def test_times_of_a_step_are_those_of_the_mock_engine() -> None:
    times = ServiceTimes()
    assert times.prefill_s(0) == 0
    # One prompt of 10,000 tokens in steps of 8,192 and 1,808 had its first token after 214.466186 ms there,
    # the token after it 6.252789 ms later in a cache of 16,384 blocks of 64 tokens.
    assert 1000 * (times.prefill_s(8192) + times.prefill_s(1808)) == pytest.approx(214.466186, abs=1e-6)
    assert 1000 * times.decode_s(10_001 / (16_384 * 64)) == pytest.approx(6.252789, abs=1e-6)
    assert ServiceTimes(speedup=2).prefill_s(8192) == times.prefill_s(8192) / 2
    assert times.transfer_s(0) == 0


def test_rows_of_dynamo_become_records() -> None:
    row = {
        "arrival_time_ms": 10.0,
        "first_token_ms": 30.0,
        "terminal_time_ms": 50.0,
        "input_length": 100,
        "output_length": 3,
        "reused_input_tokens": 64,
        "decode_worker_idx": 2,
        "terminal_status": "completed",
    }
    done, refused = parse_rows([row, {**row, "terminal_status": "rejected", "first_token_ms": None}])
    assert done == Record(0.01, 100, 3, 64, 2, 0.03, 0.05)
    assert (refused.worker, refused.end_s) == (-1, None)


def test_dynamo_gets_our_bounds() -> None:
    ask = DynamoRun(Path("x"), 4, "kv_router", WorkerShape(num_blocks=7, max_num_seqs=3, max_step_tokens=5))
    assert ask.engine() == {
        "num_gpu_blocks": 7,
        "block_size": 64,
        "max_num_seqs": 3,
        "max_num_batched_tokens": 5,
        "speedup_ratio": 1.0,
    }


def test_losses_name_what_is_worse() -> None:
    good = summarise([record(0, (100, 50, 2), 1.0, 2.0)], [0])
    bad = summarise([record(0, (100, 40, 2), 1.5, 2.0)], [0])
    assert losses((good, bad)) == losses((good, good)) == []
    assert losses((bad, good)) == ["reuse", "TTFT p50", "TTFT p99"]
    assert [row[1:3] for row in rows("x", (good, bad))] == [("Pando", "0.5000"), ("Dynamo", "0.4000")]


def parsed(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_fleet_options(parser)
    return parser.parse_args(flags)


def test_flags_describe_the_fleet() -> None:
    shape = fleet_shape(parsed("--prefill", "2", "--decode", "3", "--blocks", "99", "--prefill-base-ms", "7"))
    assert (shape.num_unified, shape.num_prefill, shape.num_decode) == (0, 2, 3)
    assert (shape.worker.num_blocks, shape.worker.times.prefill_base_ms) == (99, 7.0)
    assert fleet_shape(parsed("--workers", "9")).num_unified == 9


def test_flags_set_the_policy() -> None:
    config = planner_config(parsed("--set", "tie_ratio=0.25", "--set", "max_sessions=5"), "prefix")
    assert (config.tie_ratio, config.max_sessions, config.max_sources) == (0.25, 5, 0)
    assert config.remote_prefill_min_tokens == NEVER
    assert planner_config(parsed("--decode", "1"), "random").remote_prefill_min_tokens < NEVER
    with pytest.raises(ValueError, match="no nonsense"):
        planner_config(parsed("--set", "nonsense=1"), "prefix")


def test_the_command_replays_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        {"timestamp": 100 * n, "input_length": 1100, "output_length": 4, "hash_ids": [0, n % 3 + 1, n + 10]}
        for n in range(30)
    ]
    trace, out = tmp_path / "trace.jsonl", tmp_path / "out.json"
    trace.write_text("\n".join(json.dumps(line) for line in lines))
    command.main([str(trace), "--workers", "2", "--policy", "all", "--json", str(out)])
    figures = json.loads(out.read_text())
    assert figures["prefix"]["num_requests"] == 30
    assert 0.4 < figures["prefix"]["reuse_ratio"] <= figures["highest_reuse_ratio"] < 1
    assert "round_robin" in capsys.readouterr().out
    with pytest.raises(ValueError, match="unknown policy x"):
        command.main([str(trace), "--policy", "x"])
