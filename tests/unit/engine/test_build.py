"""Building the kernels: found again, rebuilt when a source changes, clear when there is no compiler."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.base.errors import Unsupported
from common.engine import build as build_module


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty kernel cache, and a one-line source instead of the real ones."""
    source = tmp_path / "tiny.cpp"
    source.write_text('extern "C" int answer() { return 42; }\n')
    monkeypatch.setenv("PANDO_KERNEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build_module, "SOURCES", (source,))
    return tmp_path


def test_build_once_then_find_it(cache: Path) -> None:
    built = build_module.build()
    assert built == build_module.library_path()
    stamp = built.stat().st_mtime_ns
    assert build_module.build().stat().st_mtime_ns == stamp
    assert [path.name for path in built.parent.iterdir()] == [built.name], "no temporary files are left"


def test_a_changed_source_is_another_library(cache: Path) -> None:
    before = build_module.library_path()
    (cache / "tiny.cpp").write_text("// changed\n")
    assert build_module.library_path() != before


def test_a_broken_source_is_one_clear_error(cache: Path) -> None:
    (cache / "tiny.cpp").write_text("this is no C++\n")
    with pytest.raises(Unsupported, match="building the kernels failed"):
        build_module.build()
    assert not build_module.library_path().exists()


def test_no_compiler(cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "")
    assert build_module.main() == 1
    assert "no C++ compiler" in capsys.readouterr().err
