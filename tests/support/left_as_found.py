"""A test that changes what the whole process shares, and leaves it so, fails: otherwise one far away would."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

OF_LIBRARIES = ("PYTEST_", "UCX_")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP, signal.SIGUSR1)


@pytest.fixture(autouse=True)
def left_as_found() -> Iterator[None]:
    """Compares what is shared before and after each test."""
    before = _shared()
    yield
    changed = [name for name, found in _shared().items() if found != before[name]]
    if changed:
        structlog.reset_defaults()
        pytest.fail(f"the test leaves these of the process changed: {', '.join(changed)}")


def _shared() -> dict[str, object]:
    return {
        "structlog's configuration": structlog.get_config(),
        "the root logger's level": logging.getLogger().level,
        "the environment": {name: value for name, value in os.environ.items() if not name.startswith(OF_LIBRARIES)},
        "the working directory": Path.cwd(),
        "signal handlers": [signal.getsignal(one) for one in SIGNALS],
    }
