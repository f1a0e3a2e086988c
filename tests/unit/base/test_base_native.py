"""Building C++: found again, rebuilt when a source changes, clear when there is no compiler."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.base.errors import Unsupported
from common.base.native import NativeLibrary


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NativeLibrary:
    """A one-line source, and an empty cache."""
    source = tmp_path / "tiny.cpp"
    source.write_text('extern "C" int answer() { return 42; }\n')
    monkeypatch.setenv("PANDO_KERNEL_CACHE", str(tmp_path / "cache"))
    return NativeLibrary("tiny", (source,), (), ("-shared", "-fPIC"))


def test_build_once_then_find_it(tiny: NativeLibrary) -> None:
    built = tiny.build()
    assert built == tiny.path()
    stamp = built.stat().st_mtime_ns
    assert tiny.build().stat().st_mtime_ns == stamp
    assert [path.name for path in built.parent.iterdir()] == [built.name], "no temporary files are left"


def test_a_changed_source_is_another_library(tiny: NativeLibrary) -> None:
    before = tiny.path()
    tiny.sources[0].write_text("// changed\n")
    assert tiny.path() != before


def test_a_broken_source_is_one_clear_error(tiny: NativeLibrary) -> None:
    tiny.sources[0].write_text("this is no C++\n")
    with pytest.raises(Unsupported, match="building the tiny failed"):
        tiny.build()
    assert not tiny.path().exists()


def test_no_compiler(tiny: NativeLibrary, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "")
    assert tiny.build_and_say() == 1
    assert "no C++ compiler" in capsys.readouterr().err
