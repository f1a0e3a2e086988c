"""Small words for tests of the SSD log."""

from __future__ import annotations

from pathlib import Path

from common.cache.l3 import HEADER_BYTES, BlockKey, PutState
from services.kvstore.ssd_log import SsdLog


def key_of(number: int, namespace: bytes = b"space") -> BlockKey:
    """A key by number."""
    return BlockKey(namespace, number.to_bytes(32, "little"))


def payload_of(number: int, num_bytes: int = 3000) -> bytes:
    """The bytes that belong to it."""
    return (number.to_bytes(4, "little") * (num_bytes // 4 + 1))[:num_bytes]


def put(log: SsdLog, number: int, num_bytes: int = 3000, namespace: bytes = b"space") -> PutState:
    """Append an object by number."""
    header = bytes([number % 256]) * HEADER_BYTES
    return log.append(key_of(number, namespace), header, memoryview(payload_of(number, num_bytes)))


def get(log: SsdLog, number: int, num_bytes: int = 3000, namespace: bytes = b"space") -> bool:
    """Read an object by number; whether it is there. Bytes must be right."""
    header, payload = bytearray(HEADER_BYTES), bytearray(num_bytes)
    if not log.read(key_of(number, namespace), memoryview(header), memoryview(payload)):
        return False
    assert payload == payload_of(number, num_bytes), "a wrong byte"
    assert header == bytes([number % 256]) * HEADER_BYTES, "a wrong byte in the header"
    return True


def numbers_in(log: SsdLog) -> set[int]:
    """Numbers of all objects."""
    return {int.from_bytes(key.prefix_hash, "little") for key in dict(log.keys())}


def log_paths(folder: Path) -> list[Path]:
    """The log files, oldest first."""
    return sorted(folder.glob("*.log"))
