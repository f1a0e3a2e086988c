"""Hostile and stray traffic for a transport owner, one kind per driver."""

from __future__ import annotations

import contextlib
import random
import socket
import time

import numpy as np

from common.transport.address import Address
from common.transport.base import Endpoint
from common.transport.shm_server import Address as ShmAddress
from common.transport.ucx_binding import UcxWorker


def throw_garbage(endpoint: Endpoint, count: int) -> None:
    """Send about `count` messages or connections that no owner asked for."""
    match endpoint.driver:
        case "shm":
            path = ShmAddress.unpack(endpoint.descriptor).path
            _connect_many(count, lambda: _dial(socket.AF_UNIX, socket.SOCK_SEQPACKET, path))
        case "tcp":
            address = Address.unpack(endpoint.descriptor)
            _connect_many(count, lambda: _dial(socket.AF_INET, socket.SOCK_STREAM, (address.host, address.port)))
        case _:
            address = Address.unpack(endpoint.descriptor)
            _connect_many(count // 10, lambda: _dial(socket.AF_INET, socket.SOCK_STREAM, (address.host, address.port)))
            _send_active_messages(address, count)


def _dial(family: int, kind: int, address: object) -> socket.socket:
    connection = socket.socket(family, kind)
    connection.settimeout(5)
    connection.connect(address)  # type: ignore[arg-type]
    return connection


def _connect_many(count: int, dial: object) -> None:
    noise = random.Random(count)
    for number in range(count):
        connection = dial()  # type: ignore[operator]
        with contextlib.suppress(OSError), connection:
            connection.send(noise.randbytes(1 + number % 200))
            if number % 50 == 0:
                connection.shutdown(socket.SHUT_WR)
                connection.recv(64)


def _send_active_messages(address: Address, count: int) -> None:
    """Unknown ids, nonsense headers, unwanted payloads, small and by rendezvous."""
    noise = random.Random(count)
    worker = UcxWorker({"NET_DEVICES": "lo"})
    payload = np.zeros(400_000, np.uint8)
    ended: list[int] = []
    lost: list[int] = []
    endpoint = worker.connect(address.host, address.port, lost.append)
    for number in range(count):
        size = 400_000 if number % 100 == 0 else number % 3000
        worker.send(endpoint, number % 12, noise.randbytes(number % 120), (payload.ctypes.data, size), ended.append)
        while number - len(ended) > 64 and not lost:
            worker.progress()
    ends_at = time.monotonic() + 10
    while len(ended) < count and time.monotonic() < ends_at and not lost:
        worker.progress()
    closed: list[int] = []
    worker.close(endpoint, closed.append)
    while not closed:
        worker.progress()
    worker.destroy()
