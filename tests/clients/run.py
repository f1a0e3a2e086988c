"""Drive every client through its tour: `python -m tests.clients.run [--url URL] [NAME ...]`.

Makes the environments that are missing, starts a cluster over SmolLM2 in fp32 unless a URL is given, and runs one tour
after the other, so that a failure can be read. With a cluster of its own it also checks that nothing is held and no
error was logged when the clients are gone. Exit status 1 when a tour failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx

from tests.clients import environments
from tests.clients.environments import HERE, HOME, ROOT
from tests.support.cluster import SMOLLM2, Cluster

LIMIT_S = 900.0
CLUSTER = ("--profile", "unified", "--worker.dtype", "fp32", "--limits.max-output-tokens", "200")
MODULES = {
    "openai-2": "tests.support.openai_tour",
    "openai-3": "tests.support.openai_tour",
    "langchain": "tests.clients.langchain_tour",
    "litellm": "tests.clients.litellm_tour",
    "llama-index": "tests.clients.llama_index_tour",
    "instructor": "tests.clients.instructor_tour",
    "pydantic-ai": "tests.clients.pydantic_ai_tour",
    "guidellm": "tests.clients.guidellm_tour",
    "lm-eval": "tests.clients.lm_eval_tour",
}
NAMES = (*MODULES, "openai-node", "schemathesis")
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "TQDM_DISABLE": "1",
    "LANGSMITH_TRACING": "false",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
}


def command(name: str, url: str, model: str, folder: Path) -> list[str]:
    """How the tour of a client is started, its environment made."""
    if name == "schemathesis":
        return [sys.executable, "-m", "tests.clients.schemathesis_tour", url, model, str(folder)]
    python = environments.make(name)
    if name == "openai-node":
        return [str(HOME / name / "bin" / "node"), str(HERE / "openai_node" / "tour.cjs"), url, model, str(HOME / name)]
    if name.startswith("openai-"):
        return [str(python), "-m", MODULES[name], url, model, "--structured"]
    return [str(python), "-m", MODULES[name], url, model, str(folder)]


def run_tour(name: str, url: str, model: str, folder: Path) -> bool:
    """Run one tour to its end; what it prints is shown. False when it failed."""
    environment = {**os.environ, **OFFLINE, "PYTHONPATH": str(ROOT), "OPENAI_API_KEY": "none"}
    environment["PANDO_CLIENTS_PYTHON"] = sys.executable
    began = time.monotonic()
    try:
        line = command(name, url, model, folder)
        code = subprocess.run(line, cwd=ROOT, env=environment, check=False, timeout=LIMIT_S).returncode
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        print(error, flush=True)
        code = -1
    print(f"== {name}: {'passed' if code == 0 else 'FAILED'} in {time.monotonic() - began:.0f} s", flush=True)
    return code == 0


@contextlib.contextmanager
def serving(url: str | None, folder: Path) -> Iterator[tuple[str, str]]:
    """URL and model name of the given cluster, or of one that lives as long as the context."""
    if url is not None:
        listed = httpx.get(f"{url}/v1/models", timeout=10).raise_for_status().json()
        yield url.rstrip("/"), listed["data"][0]["id"]
        return
    with (
        tempfile.TemporaryDirectory(prefix="pando-clients-") as run_dir,
        Cluster(Path(run_dir) / "run", *CLUSTER, model=folder) as cluster,
    ):
        yield cluster.url, cluster.model


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and go."""
    parser = argparse.ArgumentParser(description="Drive every client through its tour.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; none: all")
    parser.add_argument("--url", help="of a running gateway; without it a cluster is started")
    parser.add_argument("--folder", type=Path, default=SMOLLM2, help="model directory that is served")
    parser.add_argument("--make", action="store_true", help="only make the environments")
    args = parser.parse_args(arguments)
    names = args.names or list(NAMES)
    if unknown := set(names) - set(NAMES):
        parser.error(f"no such client: {', '.join(sorted(unknown))}")
    for name in names:
        if name != "schemathesis":
            environments.make(name)
    if args.make:
        return 0
    with serving(args.url, args.folder) as (url, model):
        failed = [name for name in names if not run_tour(name, url, model, args.folder)]
    print(f"{len(names) - len(failed)} passed, {len(failed)} failed {' '.join(failed)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
