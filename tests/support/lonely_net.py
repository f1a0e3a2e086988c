"""Runs a command where nobody else is, as `[*LONELY, "command", ...]`.

For programs that listen on every interface. A new network namespace has only a loopback device, which is down.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys

_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1
LONELY = (
    *("unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child"),
    *(sys.executable, "-m", "tests.support.lonely_net"),
)
"""Put it before a command, and run that in the root of the repository. All that it started ends with it."""


def main() -> None:
    """Bring the loopback device up, then become the command."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
