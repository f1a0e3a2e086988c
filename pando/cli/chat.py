"""`pando chat` and `pando generate`: talk to a cluster from the terminal, over the gateway's OpenAI API."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pando.cli.gateway_client import find_url, stream


@dataclass(slots=True, frozen=True)
class ChatOptions:
    """Whom to ask and how. An empty `url` means the cluster of `run_dir`."""

    url: str
    run_dir: Path
    max_tokens: int
    temperature: float


def generate(options: ChatOptions, prompt: str, *, raw: bool) -> int:
    """Print the answer to one prompt as it comes; returns the exit status."""
    url = find_url(options.url, options.run_dir)
    body: dict[str, Any] = {"max_tokens": options.max_tokens, "temperature": options.temperature}
    if raw:
        events = stream(url, "/v1/completions", {**body, "prompt": prompt})
        _print_all(choice.get("text", "") for choice in _choices(events))
    else:
        _print_all(_deltas(url, {**body, "messages": [{"role": "user", "content": prompt}]}))
    return 0


def chat(options: ChatOptions, system: str) -> int:
    """Read lines, stream answers, remember the conversation; ends at the end of input. Returns the exit status."""
    url = find_url(options.url, options.run_dir)
    start = [{"role": "system", "content": system}] if system else []
    messages = list(start)
    print(f"chatting with {url}; /new starts over, Ctrl-D leaves", file=sys.stderr)
    while (line := _read_line()) is not None:
        if line == "/new":
            messages = list(start)
        elif line:
            messages.append({"role": "user", "content": line})
            messages.append({"role": "assistant", "content": _answer(url, options, messages)})
    return 0


def _answer(url: str, options: ChatOptions, messages: list[dict[str, str]]) -> str:
    """Print one answer; Ctrl-C cuts it short and keeps what was said."""
    body = {"messages": messages, "max_tokens": options.max_tokens, "temperature": options.temperature}
    said: list[str] = []
    try:
        _print_all(_kept(_deltas(url, body), said))
    except KeyboardInterrupt:
        print(" [cut short]")
    return "".join(said)


def _kept(pieces: Iterator[str], said: list[str]) -> Iterator[str]:
    for piece in pieces:
        said.append(piece)
        yield piece


def _read_line() -> str | None:
    """A line from the user; None at the end of input."""
    try:
        return input("> ").strip()
    except (EOFError, KeyboardInterrupt):
        print()
        return None


def _deltas(url: str, body: dict[str, Any]) -> Iterator[str]:
    for choice in _choices(stream(url, "/v1/chat/completions", body)):
        yield choice.get("delta", {}).get("content") or ""


def _choices(events: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for event in events:
        yield from event.get("choices", ())


def _print_all(pieces: Iterator[str]) -> None:
    for piece in pieces:
        print(piece, end="", flush=True)
    print()
