"""Where a client connects when it is told nothing: PANDO_TARGET or PANDO_URL, the cluster of ./run, the usual port."""

from __future__ import annotations

import json
import os
from pathlib import Path

TARGET_VARIABLE, URL_VARIABLE = "PANDO_TARGET", "PANDO_URL"
DEFAULT_TARGET, DEFAULT_URL = "localhost:50051", "http://localhost:30000"
_STATE = Path("run") / "state.json"


def grpc_target() -> str:
    """host:port of a router."""
    return os.environ.get(TARGET_VARIABLE) or _local("router") or DEFAULT_TARGET


def http_url() -> str:
    """Base URL of a gateway."""
    return os.environ.get(URL_VARIABLE) or _local("url") or DEFAULT_URL


def _local(key: str) -> str:
    """What `pando up` wrote into the run folder here; "" when there is nothing that can be read."""
    try:
        value = json.loads(_STATE.read_text("utf-8")).get(key)
    except (OSError, ValueError, AttributeError):
        return ""
    return value if isinstance(value, str) else ""
