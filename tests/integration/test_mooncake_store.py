"""Runs mooncake_*_cases.py: a real Mooncake Store in a network namespace, for it listens on all interfaces."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.lonely_net import LONELY

ROOT = Path(__file__).parents[2]


def _why_not() -> str:
    """Why the cases cannot run here; empty when they can."""
    if find_spec("mooncake") is None:
        return "the package is not installed: pip install -e '.[mooncake]'"
    loaded = subprocess.run(
        [sys.executable, "-c", "import mooncake.store"], capture_output=True, text=True, check=False
    )
    if loaded.returncode:
        return f"{loaded.stderr.strip().splitlines()[-1]}: install libibverbs1"
    lonely = subprocess.run([*LONELY, "true"], cwd=ROOT, capture_output=True, text=True, check=False)
    return f"no network namespace: {lonely.stderr.strip()}" if lonely.returncode else ""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("cases", "fewest"),
    [("contract", 54), pytest.param("fault", 6, marks=pytest.mark.chaos)],
)
def test_mooncake(cases: str, fewest: int) -> None:
    reason = _why_not()
    if reason:
        pytest.skip(f"Mooncake: {reason}")
    path = f"tests/integration/mooncake_{cases}_cases.py"
    command = [*LONELY, sys.executable, "-m", "pytest", path, "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=570, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    counts = re.search(r"(\d+) passed", done.stdout)
    assert counts and int(counts[1]) >= fewest, done.stdout[-500:]
