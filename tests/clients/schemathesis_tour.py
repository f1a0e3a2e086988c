"""schemathesis, on our own description: no server error, no status and no content type that it does not name.

First all doors, with long deadlines: one that a request sets too short ends in the 504 that it asked for. (The cluster
bounds outputs, or a request without `max_tokens` would generate until its deadline.) Then responses alone, made by
simple requests, with links that say that an id comes from the answer that made it, so that the doors that take one are
tried with ids that exist.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import urllib.request
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.clients.tour import Tour, begin

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance"
LIMIT_S = 600.0
STORED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "input": {"type": "string", "minLength": 1, "maxLength": 20},
        "max_output_tokens": {"type": "integer", "minimum": 1, "maximum": 3},
    },
    "required": ["input", "max_output_tokens"],
    "additionalProperties": False,
}


def described(url: str) -> dict[str, Any]:
    """The gateway's description with long deadlines."""
    with urllib.request.urlopen(f"{url}/openapi.json", timeout=30) as answer:
        document: dict[str, Any] = json.load(answer)
    for schema in document["components"]["schemas"].values():
        if "timeout_s" in schema.get("properties", {}):
            schema["properties"]["timeout_s"] = {"type": "number", "minimum": 300, "maximum": 600}
    return document


def linked(document: dict[str, Any]) -> dict[str, Any]:
    """Of a description the stored responses: how one is made, and what can be done with its id."""
    path = "/v1/responses"
    paths = {
        name: methods for name, methods in document["paths"].items() if name == path or name.startswith(f"{path}/{{")
    }
    post = paths[path]["post"]
    post["requestBody"] = {"required": True, "content": {"application/json": {"schema": STORED}}}
    links = post["responses"]["200"].setdefault("links", {})
    for name, methods in paths.items():
        for operation in methods.values() if name != path else ():
            link = {"operationId": operation["operationId"], "parameters": {"response_id": "$response.body#/id"}}
            links[operation["operationId"]] = link
    return document | {"paths": paths}


def run(tour: Tour, document: dict[str, Any], phases: str) -> str:
    """All requests made from a description; returns what was told."""
    command = [sys.executable, "-m", "schemathesis.cli", "run", "openapi.json", "--url", tour.url, "--checks", CHECKS]
    limits = ["--phases", phases, "--max-examples", "6", "--request-timeout", "300"]
    quiet = ["--no-color", "--generation-database", "none"]
    with tempfile.TemporaryDirectory(prefix="pando-schemathesis-") as folder:
        (Path(folder) / "openapi.json").write_text(json.dumps(document), "utf-8")
        done = subprocess.run(
            [*command, *limits, *quiet], text=True, capture_output=True, check=False, timeout=LIMIT_S, cwd=folder
        )
    tour.check(f"{phases}: nothing undocumented", done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:])
    cases = next(line.strip() for line in done.stdout.splitlines() if " generated, " in line)
    tour.check(f"{phases}: test cases: {cases}", not cases.startswith("0 "))
    return done.stdout


def main() -> None:
    """Go."""
    tour = begin(f"schemathesis {version('schemathesis')}")
    document = described(tour.url)
    run(tour, document, "examples,coverage,fuzzing")
    told = run(tour, linked(document), "stateful")
    covered = next(line.strip() for line in told.splitlines() if "API Links:" in line)
    tour.check(covered, "0 covered" not in covered)
    tour.done()


if __name__ == "__main__":
    main()
