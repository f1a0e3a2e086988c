"""Questions to a starting service: are you ready? Each answers quickly and never raises.

The address that a service listens on comes from its own `ready` log line, so ports that it picked itself are known.
"""

from __future__ import annotations

import http.client
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from pando.cli.cluster_spec import Probe

_TIMEOUT_S = 0.5
_LONGEST_LINE_BYTES = 1 << 20


class ReadyProbe:
    """Asks one life of one service.

    Attributes:
        facts: fields of the `ready` log line, once it was seen.
    """

    def __init__(self, probe: Probe, log: Path, offset: int) -> None:
        """`offset`: size of the log when this life began."""
        self._probe = probe
        self._log = log
        self._offset = offset
        self._logged_ready = False
        self.facts: dict[str, Any] = {}

    def ask(self) -> bool:
        """Whether the service is ready now."""
        match self._probe.kind:
            case "log":
                return self._read_log()
            case "resp":
                return answers_ping(self._probe.target)
            case "http":
                self._read_log()
                return answers_http(self._probe.target)

    def _read_log(self) -> bool:
        """Read what was logged since the last call and look for the event `ready`."""
        if self._logged_ready:
            return True
        try:
            with self._log.open("rb") as file:
                file.seek(self._offset)
                text = file.read(_LONGEST_LINE_BYTES)
        except OSError:
            return False
        complete = text.rfind(b"\n") + 1 or (len(text) if len(text) == _LONGEST_LINE_BYTES else 0)
        self._offset += complete
        for line in text[:complete].splitlines():
            facts = parse_event(line)
            if facts.get("event") == "ready":
                self.facts = facts
                self._logged_ready = True
        return self._logged_ready


def parse_event(line: bytes) -> dict[str, Any]:
    """The fields of a JSON log line; empty for any other line."""
    if not line.startswith(b"{"):
        return {}
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError:
        return {}
    return fields if isinstance(fields, dict) else {}


def answers_ping(address: str) -> bool:
    """Whether a Redis-protocol server at host:port answers a PING."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=_TIMEOUT_S) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False


def answers_http(url: str) -> bool:
    """Whether a GET on the URL gives status 200."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", parts.path or "/")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
