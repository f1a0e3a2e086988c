"""Build the C++ that copies and hashes in one pass, once: `python -m common.transport.build`."""

from __future__ import annotations

import sys
from pathlib import Path

from common.base.native import NativeLibrary

COPYING = NativeLibrary(
    "copying",
    sources=(Path(__file__).parent / "copying.cpp",),
    headers=(),
    flags=("-std=c++17", "-O3", "-march=native", "-fPIC", "-shared", "-fvisibility=hidden"),
)

if __name__ == "__main__":
    sys.exit(COPYING.build_and_say())
