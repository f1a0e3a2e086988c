"""The examples, each run alone the way its first lines say, against a cluster with the real small model."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import ROOT, SMOLLM2, UNHURRIED, Cluster

EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which `make up` was run."""
    path = tmp_path_factory.mktemp("examples")
    with Cluster(path / "run", *UNHURRIED, "--profile", "unified", model=SMOLLM2):
        yield path


def output_of(name: str, folder: Path) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PANDO_")}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_example_is_run_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {
        "batch.py",
        "json_report.py",
        "multi_turn.py",
        "tree_of_thought.py",
    }


def test_multi_turn(folder: Path) -> None:
    said = output_of("multi_turn.py", folder)
    assert re.search(r"user: What is the capital of France\?\nassistant: \w", said)
    tokens = {name: (int(all_), int(cached)) for name, all_, cached in re.findall(r"(\w+): (\d+) .*, (\d+) of", said)}
    assert tokens["second"][1] >= tokens["first"][0] // 16 * 16 > 0


def test_tree_of_thought(folder: Path) -> None:
    said = output_of("tree_of_thought.py", folder)
    votes = ast.literal_eval(said.split("votes: ")[1].splitlines()[0])
    assert sum(votes.values()) == 4 and votes.keys() <= {"3", "5", "8", "15"}
    cached = ast.literal_eval(said.split("solutions: ")[1].splitlines()[0])
    assert len(cached) == 4 and min(cached) >= 64
    assert said.split("answer: ")[1].strip() == max(votes, key=lambda name: votes[name])


def test_json_report(folder: Path) -> None:
    report, form = (ast.literal_eval(line) for line in output_of("json_report.py", folder).splitlines())
    assert report.keys() == {"name", "country", "is_capital"} and isinstance(report["is_capital"], bool)
    assert form["city"] == "Rome" and 1000 <= form["inhabitants"] <= 9_999_999
    assert form["continent"] in ("Africa", "America", "Asia", "Europe") and json.dumps(form)


def test_batch(folder: Path) -> None:
    said = output_of("batch.py", folder)
    verdicts = re.findall(r"^(positive|negative) ", said, re.MULTILINE)
    cached = ast.literal_eval(said.split("cached tokens: ")[1])
    assert len(verdicts) == len(cached) == 6 and min(cached[1:]) >= 64
