"""What the gateway says of itself is true: requests made from its own description meet no server error, no status and
no content type that it does not name."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.api_cases import Target
from tests.support.fake_inference import MODEL
from tests.support.gateway_thread import GatewayThread

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance"


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayThread]:
    with GatewayThread() as running:
        yield running
        running.settle()


def schemathesis(description: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Requests made from a description, a file or a URL."""
    command = [sys.executable, "-m", "schemathesis.cli", "run", description, "--checks", CHECKS, "--no-color"]
    common = ["--phases", "fuzzing", "--request-timeout", "30", "--generation-database", "none", *options]
    return subprocess.run([*command, *common], capture_output=True, text=True, timeout=240, check=False)


def test_generated_requests_meet_nothing_undocumented(gateway: GatewayThread) -> None:
    found = schemathesis(f"{gateway.url}/openapi.json", "--max-examples", "8")
    assert found.returncode == 0, found.stdout[-4000:] + found.stderr[-2000:]
    assert " passed" in found.stdout and "\n  0 generated" not in found.stdout


def test_an_undocumented_status_is_seen(gateway: GatewayThread, tmp_path: Path) -> None:
    document = Target(gateway.url, MODEL).get("/openapi.json").json()
    post = document["paths"]["/tokenize"]["post"]
    document["paths"] = {"/tokenize": {"post": {**post, "responses": {"200": post["responses"]["200"]}}}}
    path = tmp_path / "openapi.json"
    path.write_text(json.dumps(document))
    found = schemathesis(str(path), "--url", gateway.url, "--max-examples", "20")
    assert found.returncode == 1 and "Undocumented status code" in found.stdout, found.stdout[-2000:]
