"""What all tours share: the command line, what is asked, and how a check is told. Needs nothing but Python.

A tour is a script that drives one client, unchanged, through what its users do with it, against a running cluster:

    PYTHONPATH=. .venv-clients/litellm/bin/python -m tests.clients.litellm_tour URL MODEL MODEL_FOLDER

It prints one line per check and ends with a traceback at the first that fails. `tests.clients.run` runs them all.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from typing import Any

QUESTION = "Name the capital of France."
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Berlin", "Paris"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather of a city", "parameters": WEATHER},
}
ASK_WEATHER = "What will the weather be in Paris for the next 3 days?"


@dataclass(slots=True)
class Tour:
    """One run of a client.

    Attributes:
        client: its name and version, for the lines that are printed.
        url: of the gateway, without /v1.
        model: name of the served model.
        folder: the model directory, for clients that tokenise.
    """

    client: str
    url: str
    model: str
    folder: str
    num_checks: int = 0

    @property
    def base_url(self) -> str:
        """What clients of OpenAI call the base URL."""
        return f"{self.url}/v1"

    def check(self, what: str, holds: object, seen: object = None) -> None:
        """Tell that something holds; `seen` is shown when it does not.

        Raises:
            AssertionError: it does not hold.
        """
        assert holds, f"{self.client}: {what}: {seen!r}"
        self.num_checks += 1
        print(f"{self.client}: {what}: ok", flush=True)

    def done(self) -> None:
        """Say that this was all."""
        print(f"{self.client}: {self.num_checks} checks passed", flush=True)


def begin(client: str) -> Tour:
    """The tour that the command line asks for."""
    parser = argparse.ArgumentParser(description=f"A tour with {client}.")
    parser.add_argument("url", help="of the gateway, without /v1")
    parser.add_argument("model", help="name of the served model")
    parser.add_argument("folder", help="its directory, with tokenizer.json")
    args = parser.parse_args()
    return Tour(client, args.url.rstrip("/"), args.model, args.folder)


def is_weather(arguments: Any) -> bool:
    """Whether the arguments of a call, parsed or as JSON text, fit `WEATHER`."""
    values = json.loads(arguments) if isinstance(arguments, str) else dict(arguments)
    return (
        values.keys() == {"city", "days"}
        and values["city"] in ("Berlin", "Paris")
        and isinstance(values["days"], int)
        and 1 <= values["days"] <= 9
    )
