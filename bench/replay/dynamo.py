"""NVIDIA Dynamo's offline replay (`run_mocker_trace_replay` of `ai-dynamo-runtime` 1.6), run in its own interpreter.

Its package is not a dependency of ours: the caller names a Python that has it. What comes back are times and cached
tokens of every request, so that both sides are summed up by the same code.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.replay.job import WorkerShape
from bench.replay.report import Summary, summarise
from bench.replay.simulation import Record

TIMEOUT_S = 1800

SCRIPT = """
import json, sys
from dynamo import _core
ask = json.loads(sys.argv[1])
engine = _core._normalize_mocker_config({"engine": ask["engine"]})
result = _core.run_mocker_trace_replay(
    [ask["trace"]], extra_engine_args=engine, num_workers=ask["num_workers"], router_mode=ask["router_mode"],
    kv_event_lag_ms=ask["event_lag_ms"], capture_per_request=True,
)
json.dump(list(result.per_request), open(ask["out"], "w"))
"""


@dataclass(slots=True, frozen=True)
class DynamoRun:
    """What to ask of it; `router_mode` is kv_router or round_robin."""

    trace: Path
    num_workers: int
    router_mode: str
    shape: WorkerShape
    event_lag_ms: float | None = None

    def engine(self) -> dict[str, object]:
        """Its mock engine with our worker's bounds."""
        shape = self.shape
        return {
            "num_gpu_blocks": shape.num_blocks,
            "block_size": shape.block_size,
            "max_num_seqs": shape.max_num_seqs,
            "max_num_batched_tokens": shape.max_step_tokens,
            "speedup_ratio": shape.times.speedup,
        }


def run_dynamo(python: Path, ask: DynamoRun, folder: Path) -> Summary:
    """Run it, its files in `folder`; blocks until it is done.

    Raises:
        subprocess.CalledProcessError: it failed; its output says why.
    """
    out = folder / "dynamo.json"
    fields = {
        "trace": str(ask.trace),
        "engine": ask.engine(),
        "num_workers": ask.num_workers,
        "router_mode": ask.router_mode,
        "event_lag_ms": ask.event_lag_ms,
        "out": str(out),
    }
    command = [str(python), "-c", SCRIPT, json.dumps(fields)]
    quiet = {**os.environ, "DYN_LOG": "error"}
    subprocess.run(command, check=True, timeout=TIMEOUT_S, env=quiet, stdout=subprocess.DEVNULL)
    return summarise(parse_rows(json.loads(out.read_text())), range(ask.num_workers))


def parse_rows(rows: list[dict[str, Any]]) -> list[Record]:
    """Its requests as records; one that did not complete counts as rejected."""
    return [_record(row, row["terminal_status"] == "completed") for row in rows]


def _record(row: dict[str, Any], ended: bool) -> Record:
    return Record(
        arrival_s=row["arrival_time_ms"] / 1000,
        num_input_tokens=row["input_length"],
        num_output_tokens=row["output_length"],
        num_cached=row["reused_input_tokens"] if ended else 0,
        worker=row["decode_worker_idx"] if ended else -1,
        first_token_s=row["first_token_ms"] / 1000 if ended else None,
        end_s=row["terminal_time_ms"] / 1000 if ended else None,
    )
