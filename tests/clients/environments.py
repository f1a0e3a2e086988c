"""Environments of the clients: one virtual environment each under .venv-clients, made once.

`requirements/NAME.txt` is installed with what it needs; `requirements/NAME.bare.txt`, where there is one, without: for
packages that would bring a torch of their own. Such an environment sees the packages of the Python that runs this,
after its own, so it finds the torch that is there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
HOME = ROOT / ".venv-clients"
PIP = ("install", "-q", "--disable-pip-version-check")


def python_of(name: str) -> Path:
    """The interpreter of a client's environment."""
    return HOME / name / "bin" / "python"


def make(name: str) -> Path:
    """Make the environment unless it is there and newer than its requirements; returns its interpreter.

    Raises:
        subprocess.CalledProcessError: pip or npm failed.
    """
    files = sorted(HERE.glob(f"requirements/{name}.*txt"))
    done = HOME / name / ".done"
    wanted = "".join(file.read_text() for file in files)
    if done.exists() and done.read_text() == wanted:
        return python_of(name)
    print(f"making {HOME / name}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--clear", str(HOME / name)], check=True)
    for file in files:
        bare = file.stem.endswith(".bare")
        pip = [sys.executable, "-m", "pip", "--python", str(python_of(name)), *PIP]
        subprocess.run([*pip, *(("--no-deps",) if bare else ()), "-r", str(file)], check=True)
        if bare:
            _see_ours(name)
    if name == "openai-node":
        _npm_install(HOME / name)
    done.write_text(wanted)
    return python_of(name)


def _see_ours(name: str) -> None:
    """Let the environment find, after its own packages, those of this interpreter."""
    where = subprocess.run(
        [str(python_of(name)), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    (Path(where) / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")


def _npm_install(folder: Path) -> None:
    """The packages of openai_node/package.json, by the node that the environment has."""
    shutil.copy(HERE / "openai_node" / "package.json", folder)
    npm = [str(folder / "bin" / "npm"), "install", "--no-audit", "--no-fund", "--prefix", str(folder)]
    subprocess.run(npm, check=True, env={**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"})
