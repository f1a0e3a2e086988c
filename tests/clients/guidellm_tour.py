"""guidellm: a short run over each door with synthetic prompts; all requests succeed with as many tokens as asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.clients.tour import Tour, begin

DOORS = ("/v1/completions", "/v1/chat/completions", "/v1/responses")
NUM_REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS = 6, 32, 8


def run(tour: Tour, door: str, folder: Path) -> Any:
    """One benchmark; returns its report."""
    report = folder / f"{door.rpartition('/')[2]}.json"
    backend = {"kind": "openai_http", "target": tour.url, "model": tour.model, "request_format": door}
    options = {
        "backend": backend,
        "profile": {"kind": "concurrent", "streams": [2]},
        "constraint": {"kind": "max_requests", "count": NUM_REQUESTS},
        "tokenizer": {"kind": "huggingface_auto", "model": tour.folder},
        "data": {"kind": "synthetic_text", "prompt_tokens": PROMPT_TOKENS, "output_tokens": OUTPUT_TOKENS},
        "output": {"kind": "json", "path": str(report)},
    }
    flags = [part for name, value in options.items() for part in (f"--{name}", json.dumps(value))]
    command = [sys.executable, "-m", "guidellm", "run", *flags, "--disable-console-interactive"]
    environment = {**os.environ, "GUIDELLM__MAX_WORKER_PROCESSES": "1"}
    done = subprocess.run(command, text=True, capture_output=True, check=False, env=environment, timeout=400)
    tour.check(f"{door}: the run ends well", done.returncode == 0, (done.stdout + done.stderr)[-4000:])
    return json.loads(report.read_text())


def main() -> None:
    """Go."""
    tour = begin(f"guidellm {version('guidellm')}")
    with tempfile.TemporaryDirectory(prefix="pando-guidellm-") as folder:
        for door in DOORS:
            (benchmark,) = run(tour, door, Path(folder))["benchmarks"]
            requests = benchmark["requests"]
            good = requests["successful"]
            tour.check(f"{door}: all succeed", len(good) == NUM_REQUESTS and not requests["errored"], requests)
            written = [one["output_metrics"]["text_tokens"] for one in good]
            tour.check(f"{door}: tokens as asked", written == [OUTPUT_TOKENS] * NUM_REQUESTS, written)
    tour.done()


if __name__ == "__main__":
    main()
