"""What both sides of the `tcp` driver do with a blocking stream."""

from __future__ import annotations

import socket
import struct

from common.transport.checksum import CHUNK_BYTES, Running

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


def receive_hashed(connection: socket.socket, target: memoryview) -> int:
    """As `receive_into`; returns the checksum, taken of each chunk while it is in the cache."""
    found = Running()
    for start in range(0, len(target), CHUNK_BYTES):
        chunk = target[start : start + CHUNK_BYTES]
        receive_into(connection, chunk)
        found.add(chunk)
    return found.value
