"""What both sides of the `tcp` driver do with a blocking stream."""

from __future__ import annotations

import socket
import struct

STATUS = struct.Struct("<I")
"""One `wire.Status`, as sent before and after each payload."""


def receive_exactly(connection: socket.socket, num_bytes: int) -> bytes:
    """Raises OSError when the stream ends early."""
    data = bytearray(num_bytes)
    receive_into(connection, memoryview(data))
    return bytes(data)


def receive_into(connection: socket.socket, target: memoryview) -> None:
    """Fill a view of bytes. Raises OSError when the stream ends early."""
    received = 0
    while received < len(target):
        count = connection.recv_into(target[received:], flags=socket.MSG_WAITALL)
        if count == 0:
            raise ConnectionResetError("the peer hung up")
        received += count
