"""Moving block bytes and taking their checksum in one pass, outside the interpreter lock.

`NativeCopying` is C++ (copying.cpp, built by `python -m common.transport.build`): it reads memory once, and writes what
is too large for the caches past them. `PlainCopying` does the same with numpy, xxhash and sockets, where nothing is
built: the same sums, at about twice the time.

What is promised of both: the sum is that of the bytes that were stored. They do not know what is moved, or for whom.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Callable
from ctypes import c_int, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from common.base.logging import get_logger
from common.transport.build import COPYING
from common.transport.checksum import CHUNK_BYTES, Running
from common.transport.tcp_stream import receive_into

_PIECE_BYTES = 1024 * 1024
"""Copied between two questions whether it is still wanted; whole blocks of XXH3."""
_SHORTEST_BYTES = 4096
"""Shorter spans are not worth a call, and up to 240 bytes XXH3 is another function."""


@dataclass(slots=True, frozen=True)
class Source:
    """Contiguous bytes and where they lie, which takes as long to find out as a block takes to copy.

    Attributes:
        data: the bytes, kept alive by this.
        address: of the first.
    """

    data: memoryview
    address: int

    @classmethod
    def of(cls, data: memoryview) -> Source:
        """Find out where bytes lie, which may be read-only."""
        return cls(data, np.frombuffer(data, np.uint8).__array_interface__["data"][0])


class Copying(Protocol):
    """A way to move bytes."""

    def copy(self, target: memoryview, source: Source, offset: int, between: Callable[[], None]) -> int:
        """Fill contiguous bytes from those at an offset, which are within `source`, and return their XXH3-64.

        `between` is called before each piece; what it raises ends the copy.
        """

    def receive(self, connection: socket.socket, target: memoryview) -> int:
        """Fill contiguous bytes from a blocking stream and return their XXH3-64.

        Raises:
            OSError: the stream broke, timed out or ended early.
        """


class PlainCopying:
    """See `Copying`."""

    def copy(self, target: memoryview, source: Source, offset: int, between: Callable[[], None]) -> int:
        """See `Copying.copy`."""
        into, found = np.frombuffer(target, np.uint8), Running()
        lent = np.frombuffer(source.data[offset : offset + len(target)], np.uint8)
        for start in range(0, len(target), CHUNK_BYTES):
            between()
            piece = into[start : start + CHUNK_BYTES]
            np.copyto(piece, lent[start : start + CHUNK_BYTES])
            found.add(piece.data)
        return found.value

    def receive(self, connection: socket.socket, target: memoryview) -> int:
        """See `Copying.receive`."""
        found = Running()
        for start in range(0, len(target), CHUNK_BYTES):
            chunk = target[start : start + CHUNK_BYTES]
            receive_into(connection, chunk)
            found.add(chunk)
        return found.value


class NativeCopying:
    """See `Copying`."""

    def __init__(self, path: Path) -> None:
        """Load the shared object. Raises OSError."""
        library = ctypes.CDLL(str(path))
        self._copy, self._receive = library.pando_copy_hashed, library.pando_receive_hashed
        self._copy.argtypes = [c_void_p] * 3 + [c_uint64] * 3
        self._copy.restype = c_uint64
        self._receive.argtypes = [c_int, c_void_p, c_uint64, c_void_p]
        self._receive.restype = c_int
        self._plain = PlainCopying()

    def copy(self, target: memoryview, source: Source, offset: int, between: Callable[[], None]) -> int:
        """See `Copying.copy`."""
        length = len(target)
        if length < _SHORTEST_BYTES:
            return self._plain.copy(target, source, offset, between)
        assert 0 <= offset <= len(source.data) - length, (offset, length, len(source.data))
        state, into, lent = (c_uint64 * 8)(), address_of(target), source.address + offset
        found = 0
        for start in range(0, length, _PIECE_BYTES):
            between()
            found = self._copy(state, into, lent, start, min(start + _PIECE_BYTES, length), length)
        return found

    def receive(self, connection: socket.socket, target: memoryview) -> int:
        """See `Copying.receive`."""
        if len(target) < _SHORTEST_BYTES:
            return self._plain.receive(connection, target)
        found = c_uint64()
        failed = self._receive(connection.fileno(), address_of(target), len(target), ctypes.byref(found))
        if failed:
            raise OSError(failed, os.strerror(failed)) if failed > 0 else ConnectionResetError("the peer hung up")
        return found.value


def load_copying() -> Copying:
    """The best that there is here."""
    path = COPYING.path()
    try:
        return NativeCopying(path) if path.exists() else PlainCopying()
    except OSError as error:
        get_logger().warning("the compiled copying does not load: build it again", error=str(error))
        return PlainCopying()


def address_of(data: memoryview) -> int:
    """Where writable bytes lie."""
    return ctypes.addressof(ctypes.c_char.from_buffer(data))
