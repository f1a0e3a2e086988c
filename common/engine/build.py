"""Build the C++ kernels once: `python -m common.engine.build`.

The shared object is named by a digest of the sources and flags and one of the CPU's features, and lies in a cache
folder (`PANDO_KERNEL_CACHE`, else `~/.cache/pando/kernels`), so a second call finds it and a changed source never meets
an old build. It is compiled for this machine's CPU and uses the OpenMP runtime that torch has loaded. A compiler is
needed to build, not to find.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from common.base.errors import Unsupported

_ENGINE = Path(__file__).parent
SOURCES = (
    _ENGINE / "kernels" / "linear.cpp",
    _ENGINE / "kernels" / "rows.cpp",
    _ENGINE / "attention" / "cpu_attention.cpp",
)
HEADERS = (_ENGINE / "kernels" / "vec.h", _ENGINE / "kernels" / "gemm.h")
# No contraction: the kernels spell out every fused multiply-add, so that no compiler choice changes a bit.
FLAGS = (
    "-std=c++17", "-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fopenmp", "-fPIC", "-shared",
    "-fvisibility=hidden",
)  # fmt: skip
BUILD_TIMEOUT_S = 300


def library_path() -> Path:
    """Where the kernels of this source tree for this machine are, built or not."""
    root = os.environ.get("PANDO_KERNEL_CACHE") or Path.home() / ".cache" / "pando" / "kernels"
    cpu = hashlib.sha256(_cpu_features().encode()).hexdigest()[:8]
    return Path(root) / f"pando-kernels-{source_digest()}-{cpu}.so"


def source_digest() -> str:
    """16 hex digits over the sources and flags: what the arithmetic depends on, beside the vector width."""
    digest = hashlib.sha256(repr(FLAGS).encode())
    for file in (*SOURCES, *HEADERS):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def build() -> Path:
    """Compile the kernels unless they are there already; returns the shared object.

    Raises:
        Unsupported: there is no C++ compiler, or it fails; the message has its output.
    """
    path = library_path()
    if path.exists():
        return path
    compiler = _compiler()
    if compiler is None:
        raise Unsupported("no C++ compiler found (set CXX or install g++): only the slow torch_ref backend will work")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        target = Path(folder) / "kernels.so"
        command = [compiler, *FLAGS, *map(str, SOURCES), "-o", str(target)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False)
        if done.returncode != 0:
            raise Unsupported(f"building the kernels failed: {' '.join(command)}\n{done.stderr}")
        target.replace(path)
    return path


def _compiler() -> str | None:
    return shutil.which(os.environ.get("CXX") or "g++") or shutil.which("c++")


def _cpu_features() -> str:
    """The instruction sets of this CPU, since the kernels are compiled for exactly them."""
    try:
        lines = Path("/proc/cpuinfo").read_text("ascii", "replace").splitlines()
    except OSError:
        return platform.machine()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())


def main() -> int:
    """Build and say where; exit status 1 with the reason on failure."""
    try:
        print(build())
    except Unsupported as error:
        print(error.message, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
