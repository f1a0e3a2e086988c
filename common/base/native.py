"""Shared objects that are compiled from C++ on the machine that uses them, and found again afterwards.

One is named by a digest of its sources and flags and one of the CPU's features, and lies in a cache folder
(`PANDO_KERNEL_CACHE`, else `~/.cache/pando/kernels`), so a second build finds it and a changed source never meets an
old build. A compiler is needed to build, not to find. It does not know what the functions do.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from common.base.errors import Unsupported

BUILD_TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class NativeLibrary:
    """What a shared object is made of.

    Attributes:
        name: what its file is called by.
        sources, headers: the former are compiled, the latter included.
        flags: of the compiler.
    """

    name: str
    sources: tuple[Path, ...]
    headers: tuple[Path, ...]
    flags: tuple[str, ...]

    def digest(self) -> str:
        """16 hex digits over the sources and flags."""
        digest = hashlib.sha256(repr(self.flags).encode())
        for file in (*self.sources, *self.headers):
            digest.update(file.read_bytes())
        return digest.hexdigest()[:16]

    def path(self) -> Path:
        """Where it is for this machine, built or not."""
        root = os.environ.get("PANDO_KERNEL_CACHE") or Path.home() / ".cache" / "pando" / "kernels"
        cpu = hashlib.sha256(_cpu_features().encode()).hexdigest()[:8]
        return Path(root) / f"pando-{self.name}-{self.digest()}-{cpu}.so"

    def build(self) -> Path:
        """Compile it unless it is there already; returns the shared object.

        Raises:
            Unsupported: there is no C++ compiler, or it fails; the message has its output.
        """
        path = self.path()
        if path.exists():
            return path
        compiler = shutil.which(os.environ.get("CXX") or "g++") or shutil.which("c++")
        if compiler is None:
            raise Unsupported(f"no C++ compiler found (set CXX or install g++): no {self.name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            target = Path(folder) / "built.so"
            command = [compiler, *self.flags, *map(str, self.sources), "-o", str(target)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False)
            if done.returncode != 0:
                raise Unsupported(f"building the {self.name} failed: {' '.join(command)}\n{done.stderr}")
            target.replace(path)
        return path

    def build_and_say(self) -> int:
        """As `build`, for a command: print where it is, or why not; returns the exit status."""
        try:
            print(self.build())
        except Unsupported as error:
            print(error.message, file=sys.stderr)
            return 1
        return 0


def _cpu_features() -> str:
    """The instruction sets of this CPU, since sources are compiled for exactly them."""
    try:
        lines = Path("/proc/cpuinfo").read_text("ascii", "replace").splitlines()
    except OSError:
        return platform.machine()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())
