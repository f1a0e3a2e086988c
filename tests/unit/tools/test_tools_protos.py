"""The drift check names every generated file that is not what it should be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import generate_protos

NAME = Path("pando/v1/types_pb2.py")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A repository and a folder of fresh output, equal."""
    root, fresh = tmp_path / "root", tmp_path / "fresh"
    for folder in (root, fresh):
        (folder / NAME).parent.mkdir(parents=True)
        (folder / NAME).write_text("generated")
    monkeypatch.setattr(generate_protos, "ROOT", root)
    return root, fresh


def test_equal_files_are_no_drift(tree: tuple[Path, Path]):
    assert generate_protos.drift(tree[1], [NAME]) == []


def test_a_changed_a_missing_and_a_left_over_file(tree: tuple[Path, Path]):
    root, fresh = tree
    (root / NAME).write_text("edited")
    assert generate_protos.drift(fresh, [NAME]) == [f"{NAME}: differs"]
    (root / NAME).unlink()
    assert generate_protos.drift(fresh, [NAME]) == [f"{NAME}: missing"]
    (root / "pando/v1/old_pb2.pyi").write_text("x")
    assert generate_protos.drift(fresh, []) == ["pando/v1/old_pb2.pyi: has no .proto any more"]


def test_other_tools_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(generate_protos, "version", lambda name: "1.99.0")
    with pytest.raises(SystemExit, match=r"grpcio-tools 1\.99\.0 is installed"):
        generate_protos.generate(tmp_path)
