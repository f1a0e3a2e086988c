"""`make bench`: engine ratios, then a serving run over a cluster of its own; JSON in bench/results/."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench import serve
from pando.cli.run_folder import RunFolder

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "models" / "SmolLM2-135M-Instruct"
RESULTS = ROOT / "bench" / "results"


def _pando(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pando.cli.main", *arguments], cwd=ROOT, check=True)


def main() -> int:
    """Run both; returns the exit status."""
    engine = subprocess.run([sys.executable, "-m", "bench.engine", str(MODEL)], cwd=ROOT, check=False)
    folder = RunFolder(RESULTS / "run")
    run_dir = ("--run-dir", str(folder.path))
    _pando("up", "--detach", *run_dir, "--model-path", str(MODEL), "--port", "0", "--router-port", "0")
    try:
        state = folder.read_state()
        assert state is not None, "the cluster wrote no state"
        shape = ("--requests", "24", "--input-length", "256", "--output-length", "32")
        serving = serve.main(["--url", state.url, "--out", str(RESULTS / "serve.json"), *shape])
    finally:
        _pando("down", *run_dir)
    return engine.returncode or serving


if __name__ == "__main__":
    sys.exit(main())
