"""What both sides of the `tcp` driver do with a blocking stream."""

from __future__ import annotations

import socket
import struct

STATUS = struct.Struct("<I60x")
"""One `wire.Status`, as sent before and after each payload.

A cache line, so that payloads keep their alignment: where one begins a few bytes further into a page than it lies in
memory, some CPUs copy it into the socket at half the speed.
"""


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


def receive_statuses(connection: socket.socket, count: int) -> list[int]:
    """The next `count` statuses, or those before the end of the stream. Raises OSError when there is none."""
    data = memoryview(bytearray(count * STATUS.size))
    received = 0
    while received < len(data):
        arrived = connection.recv_into(data[received:], flags=socket.MSG_WAITALL)
        if arrived == 0:
            break
        received += arrived
    if received < STATUS.size:
        raise ConnectionResetError("the peer hung up")
    return [status for (status,) in STATUS.iter_unpack(data[: received - received % STATUS.size])]


def send_both(connection: socket.socket, head: bytes, chunk: memoryview) -> None:
    """Send a few bytes and a chunk in one call; more will follow. Raises OSError."""
    if not head:
        connection.sendall(chunk, socket.MSG_MORE)
        return
    sent = connection.sendmsg((head, chunk), (), socket.MSG_MORE)
    if sent < len(head):
        connection.sendall(head[sent:], socket.MSG_MORE)
    if sent < len(head) + len(chunk):
        connection.sendall(chunk[max(0, sent - len(head)) :], socket.MSG_MORE)
