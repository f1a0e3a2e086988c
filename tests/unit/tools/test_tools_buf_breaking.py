"""`buf breaking` against the released contracts: what is there passes, and a break is seen."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
INFERENCE = "protos/pando/v1/inference.proto"


def breaking(folder: Path) -> subprocess.CompletedProcess[str]:
    buf = Path(sys.executable).with_name("buf")
    return subprocess.run(
        [buf, "breaking", "--against", "protos/released.binpb"], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "protos", tmp_path / "protos")
    shutil.copy(ROOT / "buf.yaml", tmp_path)
    return tmp_path


def test_the_contracts_break_nothing_that_was_released(copy: Path) -> None:
    done = breaking(copy)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("string request_id = 1;\n  // Empty: the served model.", "// Empty: the served model."),
        ("repeated uint32 output_token_ids = 6;", "repeated string output_token_ids = 6;"),
        ("rpc Abort(AbortRequest) returns (AbortResponse);", ""),
    ],
)
def test_a_break_is_seen(copy: Path, before: str, after: str) -> None:
    file = copy / INFERENCE
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))
    done = breaking(copy)
    assert done.returncode != 0 and "inference.proto" in done.stdout
