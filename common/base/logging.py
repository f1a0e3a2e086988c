"""Structured logs: JSON lines, or a readable form on a terminal; the service and its id are in every line.

Info is rare, Warning may heal by itself, Error cost somebody a request. Prompts and outputs are never logged.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import TextIO, cast

import structlog

from common.base.config import LogConfig

Logger = structlog.stdlib.BoundLogger


def configure_logging(config: LogConfig, **context: str) -> Logger:
    """Set up the process's logs once, in `__main__`; returns a logger bound to `context` (service, worker id)."""
    level = logging.getLevelNamesMapping()[config.level.upper()]
    pretty = config.format == "console" or (config.format == "auto" and sys.stderr.isatty())
    renderer: structlog.typing.Processor
    renderer = structlog.dev.ConsoleRenderer() if pretty else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(_stderr()),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(**context)
    logger: Logger = structlog.get_logger(**context)
    return logger


def log_ready(**facts: object) -> None:
    """Log the event `ready` whatever the level: who started this process waits for it and reads the facts."""
    always = structlog.make_filtering_bound_logger(logging.INFO)
    structlog.wrap_logger(structlog.WriteLogger(_stderr()), wrapper_class=always).info("ready", **facts)


class _Unbreakable:
    """A text stream on which a line that cannot be written is lost, and nothing else.

    Loggers give it whole lines, one write each, so that those of several threads do not mix.

    Whoever read the log may be gone (a closed pipe) or its disk full; that must not stop the service.
    """

    def __init__(self, inner: TextIO) -> None:
        self._inner = inner

    def write(self, text: str) -> int:
        """Write if possible."""
        with suppress(OSError, ValueError):
            self._inner.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush if possible."""
        with suppress(OSError, ValueError):
            self._inner.flush()


def _stderr() -> TextIO:
    return cast(TextIO, _Unbreakable(sys.stderr))


def get_logger() -> Logger:
    """A logger for modules that are not handed one."""
    logger: Logger = structlog.get_logger()
    return logger
