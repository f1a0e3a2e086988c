"""Generate pando/v1 from protos/, or check that what is committed is what would be generated.

It uses the oldest supported grpcio-tools: generated code refuses an older grpcio, so newer tools would raise what users
must install. They need an older protobuf than the rest, so the Makefile gives them an environment of their own.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from importlib import import_module
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PINNED_TOOLS = "1.74.0"


def generate(out: Path) -> list[Path]:
    """Write the modules and stubs of all .proto files under `out`; returns their paths relative to it.

    Raises:
        SystemExit: protoc refused a file (its message is on stderr), or the tools are not the pinned ones.
    """
    installed = version("grpcio-tools")
    if installed != PINNED_TOOLS:
        raise SystemExit(f"grpcio-tools {installed} is installed, generated code is made with {PINNED_TOOLS}")
    protos = sorted((ROOT / "protos").rglob("*.proto"))
    arguments = ["protoc", f"-I{ROOT / 'protos'}", f"-I{files('grpc_tools') / '_proto'}"]
    arguments += [f"--{kind}_out={out}" for kind in ("python", "pyi", "grpc_python")]
    if import_module("grpc_tools.protoc").main([*arguments, *map(str, protos)]) != 0:
        raise SystemExit("protoc failed")
    return sorted(path.relative_to(out) for path in out.rglob("*_pb2*.py*"))


def drift(fresh: Path, names: list[Path]) -> list[str]:
    """One line per file that is missing, differs or is left over in the tree."""
    lines = []
    for name in names:
        committed = ROOT / name
        if not committed.is_file():
            lines.append(f"{name}: missing")
        elif committed.read_bytes() != (fresh / name).read_bytes():
            lines.append(f"{name}: differs")
    known = set(names)
    left_over = {path.relative_to(ROOT) for path in (ROOT / "pando" / "v1").glob("*_pb2*.py*")} - known
    return lines + [f"{name}: has no .proto any more" for name in sorted(left_over)]


def main() -> int:
    """Generate into the tree, or with --check compare only; exit status 1 on drift."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare with what is committed")
    if not parser.parse_args().check:
        print("\n".join(map(str, generate(ROOT))))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        lines = drift(Path(folder), generate(Path(folder)))
    for line in lines:
        print(f"{line} (run make protos)")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
