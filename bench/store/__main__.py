"""See `bench.store`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.store import traces
from bench.store.report import print_table, ratios
from bench.store.rounds import measure
from bench.store.shapes import MOONCAKE, OURS
from tests.support.lonely_net import LONELY

_INSIDE = "PANDO_BENCH_INSIDE"


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="bench.store", description="our KV store beside a real Mooncake Store")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds (default 7)")
    parser.add_argument(
        "--only", action="append", default=[], help="cells whose title has this in it, such as 'get 32'"
    )
    parser.add_argument("--contender", action="append", default=[], choices=(*OURS, *MOONCAKE), help="repeatable")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    replay = parser.add_subparsers(dest="what").add_parser("traces", help="hit rates on recorded traffic")
    replay.add_argument("folder", type=Path, help="where conversation_trace.jsonl and synthetic_trace.jsonl lie")
    replay.add_argument("--json", type=Path, help="write the figures to this file", default=argparse.SUPPRESS)
    arguments = parser.parse_args()
    report = {"rows": traces.table(arguments.folder)} if arguments.what == "traces" else _compare(arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


def _compare(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure, in a network namespace of its own: Mooncake listens on every interface."""
    if not os.environ.get(_INSIDE):
        os.environ[_INSIDE] = "1"
        command = (*LONELY[:1], "--mount-proc", *LONELY[1:], sys.executable, "-m", "bench.store", *sys.argv[1:])
        os.execvp(command[0], command)
    with tempfile.TemporaryDirectory(prefix="bench-store-") as folder:
        rows = measure(Path(folder), arguments.rounds, arguments.only, arguments.contender)
    print_table(rows)
    return {"rounds": arguments.rounds, "rows": rows, "ratios": ratios(rows)}


if __name__ == "__main__":
    main()
