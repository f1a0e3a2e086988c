"""Local TCP ports: is one free, who has it, and which one may be used."""

from __future__ import annotations

import socket

import psutil

from pando.cli.errors import CliError


def free_port() -> int:
    """A port that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def claim(port: int, host: str, flag: str) -> int:
    """`port` when it can be bound, a free one for 0.

    Raises:
        CliError: it is taken; names who has it, where the system tells, and the flag that chooses another.
    """
    if port == 0:
        return free_port()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except PermissionError as error:
            raise CliError(f"port {port} needs more rights", fix=f"choose one above 1023 with {flag}") from error
        except OSError as error:
            owner = describe_owner(port)
            reason = f"port {port} on {host} is taken{owner}" if owner else f"port {port} on {host}: {error.strerror}"
            raise CliError(reason, fix=f"choose another with {flag}, or stop that process") from error
    return port


def describe_owner(port: int) -> str:
    """` by NAME (pid N)` for the process that listens on the port; empty when the system does not tell."""
    try:
        for connection in psutil.net_connections(kind="tcp"):
            listens = connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
            if listens and connection.pid:
                command = " ".join(psutil.Process(connection.pid).cmdline()[:4])
                return f" by {command!r} (pid {connection.pid})"
    except (psutil.Error, OSError):
        return ""
    return ""
