"""A log that nobody can read any more must not stop whoever writes it."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator

import pytest
import structlog

from common.base.config import LogConfig
from common.base.logging import configure_logging, log_ready


class Broken(io.StringIO):
    """A stream whose reader is gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError

    def flush(self) -> None:
        raise BrokenPipeError


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """structlog's configuration is one per process."""
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def test_lines_are_json_with_their_context(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    log = configure_logging(LogConfig(format="json", level="warning"), service="decode", worker="w")
    log.info("not this")
    log.warning("this", count=1)
    log_ready(address="a:1")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["this", "ready"], "ready comes whatever the level"
    assert (lines[0]["service"], lines[0]["worker"], lines[0]["count"]) == ("decode", "w", 1)
    assert lines[1]["address"] == "a:1"


class Writes(io.StringIO):
    """Remembers every write by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def write(self, text: str) -> int:
        self.calls.append(text)
        return len(text)


def test_a_line_is_one_write_so_that_threads_do_not_mix_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Writes()
    monkeypatch.setattr(sys, "stderr", stream)
    configure_logging(LogConfig(format="json"), service="decode").warning("one")
    log_ready(address="a:1")
    assert len(stream.calls) == 2 and all(text.endswith("}\n") for text in stream.calls)


def test_a_reader_that_is_gone_costs_the_line_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Broken())
    log = configure_logging(LogConfig(format="json"), service="decode")
    log.error("lost")
    log_ready(address="a:1")
