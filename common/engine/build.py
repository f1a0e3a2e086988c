"""Build the C++ kernels once: `python -m common.engine.build`.

They are compiled for this machine's CPU and use the OpenMP runtime that torch has loaded (`common.base.native`).
"""

from __future__ import annotations

import sys
from pathlib import Path

from common.base.native import NativeLibrary

_ENGINE = Path(__file__).parent
# No contraction: the kernels spell out every fused multiply-add, so that no compiler choice changes a bit.
KERNELS = NativeLibrary(
    "kernels",
    sources=(
        _ENGINE / "kernels" / "linear.cpp",
        _ENGINE / "kernels" / "rows.cpp",
        _ENGINE / "attention" / "cpu_attention.cpp",
    ),
    headers=(_ENGINE / "kernels" / "vec.h", _ENGINE / "kernels" / "gemm.h"),
    flags=(
        "-std=c++17", "-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fopenmp", "-fPIC", "-shared",
        "-fvisibility=hidden",
    ),
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(KERNELS.build_and_say())
