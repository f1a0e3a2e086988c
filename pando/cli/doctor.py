"""`pando doctor`: what this machine offers, one line per finding. Changes nothing and stops at nothing.

Questions that need torch or the engine are asked in a process of their own, so that a broken package is a finding.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from pando.cli.errors import FAILED, CliError
from pando.cli.ports import claim
from pando.cli.up import check_model

OK, WARN, BAD = "ok", "warn", "bad"
Finding = tuple[str, str]
_ISA = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_int8", "neon", "asimd")
_PACKAGES = ("pando", "grpcio", "tokenizers", "starlette", "redis")
_TIMEOUT_S = 60
_KERNEL_PROBE = "from common.engine.build import KERNELS as k; print(k.path() if k.path().exists() else '')"
_COPYING_PROBE = "from common.transport.build import COPYING as c; print(c.path() if c.path().exists() else '')"
_TRANSPORT_PROBE = """
import asyncio
from common.transport.base import DRIVER_NAMES
from common.transport.select import TransportConfig, TransportSet, make_drivers
async def main():
    drivers = TransportSet(make_drivers(TransportConfig(drivers=DRIVER_NAMES), "127.0.0.1", 1))
    await drivers.start()
    print(", ".join(drivers.names), *(f"; {name} not: {reason}" for name, reason in drivers.missing.items()))
    await drivers.close()
asyncio.run(main())
"""


def doctor(model_path: Path) -> int:
    """Print all findings; returns `FAILED` when one of them keeps a cluster from starting."""
    worst = OK
    for level, text in findings(model_path):
        print(f"{level:<5} {text}")
        worst = BAD if level == BAD else worst
    return FAILED if worst == BAD else 0


def findings(model_path: Path) -> Iterator[Finding]:
    """Everything that is looked at, in a fixed order."""
    yield OK, f"Python {platform.python_version()} on {platform.platform()}"
    yield from map(_package, _PACKAGES)
    yield _machine()
    compiler = shutil.which("g++") or shutil.which("c++")
    yield (OK, f"compiler {compiler}") if compiler else (WARN, "no C++ compiler: install g++, then make setup")
    yield _asked("torch", "import torch; print(torch.__version__)", "make setup installs it")
    yield _asked("C++ kernels", _KERNEL_PROBE, "python -m common.engine.build (else torch_ref serves, slowly)", WARN)
    yield _asked("C++ copying", _COPYING_PROBE, "python -m common.transport.build (else it takes twice the time)", WARN)
    yield _asked("transports", _TRANSPORT_PROBE, "at least tcp should run everywhere")
    yield _model(model_path)
    yield _port(30000, "--port")
    yield _port(50051, "--router-port")


def _package(name: str) -> Finding:
    try:
        return OK, f"{name} {version(name)}"
    except PackageNotFoundError:
        return BAD, f"{name} is not installed: make setup"


def _machine() -> Finding:
    isa = ", ".join(found) if (found := cpu_features()) else "none of the known extensions"
    memory = psutil.virtual_memory()
    text = f"{psutil.cpu_count()} cores ({isa}), {memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB free"
    return (WARN if memory.available < 2**30 else OK), text


def cpu_features() -> list[str]:
    """The instruction set extensions that matter here and that this CPU has."""
    try:
        lines = Path("/proc/cpuinfo").read_text("ascii", "replace").splitlines()
    except OSError:
        return []
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))), [])
    return [name for name in _ISA if name in flags]


def _asked(what: str, code: str, fix: str, level: str = BAD) -> Finding:
    """The answer that a Python process prints; no answer is a finding of this level."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return level, f"{what}: no answer within {_TIMEOUT_S} s"
    answer = done.stdout.strip()
    if done.returncode == 0 and answer:
        return OK, f"{what}: {answer}"
    reason = done.stderr.strip().splitlines()[-1:] or ["not there"]
    return level, f"{what}: {reason[0]}: {fix}"


def _model(path: Path) -> Finding:
    try:
        check_model(path)
    except CliError as error:
        return BAD, str(error)
    return OK, f"model {path}"


def _port(port: int, flag: str) -> Finding:
    try:
        claim(port, "127.0.0.1", flag)
    except CliError as error:
        return WARN, str(error)
    return OK, f"port {port} is free"
