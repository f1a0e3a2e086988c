"""The command line starts quickly, imports nothing heavy, and ends with one line when something is wrong."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from pando.cli import main
from pando.cli.errors import CliError

HEAVY = ("torch", "transformers", "starlette", "uvicorn", "grpc", "numpy", "httpx", "pydantic_settings")
COMMANDS = ("up", "down", "status", "chat", "generate", "launch", "doctor", "model")


def test_starting_imports_nothing_heavy():
    code = "import sys, pando.cli.main; print([name for name in sys.argv[1:] if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code, *HEAVY, "typer"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['typer']"  # typer: the probe does see what is imported


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str):
    result = CliRunner().invoke(main.app, [command, "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.output


def test_an_operating_error_is_one_line_and_its_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def fail() -> None:
        raise CliError("port 1 is taken", fix="choose another", code=2)

    monkeypatch.setattr(main, "app", fail)
    with pytest.raises(SystemExit) as caught:
        main.main()
    assert caught.value.code == 2
    assert capsys.readouterr().err == "pando: port 1 is taken: choose another\n"
