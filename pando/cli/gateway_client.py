"""The HTTP API as the terminal commands use it: find the gateway, stream an answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from pando.cli.errors import CliError
from pando.cli.run_folder import RunFolder

DEFAULT_URL = "http://127.0.0.1:30000"
_TIMEOUT = httpx.Timeout(600.0, connect=5.0)


def find_url(url: str, run_dir: Path) -> str:
    """`url` when given, else the gateway of the run folder's cluster, else the default one."""
    if url:
        return url.rstrip("/")
    state = RunFolder(run_dir).read_state()
    return state.url if state else DEFAULT_URL


def stream(url: str, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The JSON events of a streaming completion.

    Raises:
        CliError: nobody answers, the request is refused, or the stream ends with an error event.
    """
    try:
        with (
            httpx.Client(timeout=_TIMEOUT, trust_env=False) as client,
            client.stream("POST", url + path, json={**body, "stream": True}) as response,
        ):
            if response.status_code != 200:
                response.read()
                raise CliError(f"the gateway refused the request ({response.status_code}): {_message(response.text)}")
            yield from _events(response.iter_lines())
    except httpx.ConnectError as error:
        raise CliError(f"no gateway at {url}", fix="start one with pando up, or give --url") from error
    except httpx.HTTPError as error:
        raise CliError(f"the connection to {url} broke ({type(error).__name__})", fix="see pando status") from error


def _events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Server-sent events with JSON data, until `[DONE]`."""
    for line in lines:
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            return
        event = json.loads(data)
        if "error" in event:
            raise CliError(f"the request failed: {event['error'].get('message', event['error'])}")
        yield event


def _message(text: str) -> str:
    """The message of an OpenAI error body, or the body itself."""
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text[:200]
