"""What a user of the SDK pays for: no server's library is imported, and nothing at all before a name is used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pando

HEAVY = ("torch", "transformers", "fastapi", "starlette", "uvicorn", "redis", "pydantic", "tokenizers", "numpy")
HEAVY += ("structlog", "typer", "jinja2", "psutil", "openai")  # httpx itself brings rich
PROBE = """
import sys
{statement}
print([name for name in {heavy} if name in sys.modules])
"""


def loaded(statement: str, heavy: tuple[str, ...]) -> str:
    code = PROBE.format(statement=statement, heavy=heavy)
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True, env={**os.environ}
    )
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("import pando", (*HEAVY, "grpc", "httpx", "google.protobuf", "pando.client")),
        ("import pando; pando.Client; pando.AsyncClient", (*HEAVY, "httpx")),
        ("import pando; pando.HttpClient; pando.AsyncHttpClient", HEAVY),
        ("import pando.lang", HEAVY),
    ],
)
def test_importing_is_light(statement: str, heavy: tuple[str, ...]) -> None:
    assert loaded(statement, heavy) == "[]"


def test_the_probe_can_see() -> None:
    assert loaded("import numpy", HEAVY) == "['numpy']"


def test_every_public_name_is_there() -> None:
    for name in pando.__all__:
        assert getattr(pando, name).__name__ == name
    with pytest.raises(AttributeError, match="nothing"):
        getattr(pando, "nothing")  # noqa: B009
