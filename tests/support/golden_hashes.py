"""The names of KV blocks, computed as the documents say and without the code that computes them in earnest.

`golden_hashes.json` holds what came of it for inputs of every kind. As a program: prints that file's content; whoever
changes a format on purpose writes it anew, and knows then that all caches start empty.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import xxhash
from blake3 import blake3

GOLDEN = Path(__file__).with_name("golden_hashes.json")
TENANTS = (("", ""), ("a", ""), ("", "a"), ("a", "bc"), ("ab", "c"), ("abc", ""), ("", "abc"), ("ä🙂", "x\0y"))
"""Salt and adapter. Several have the same letters in a row."""

_IDS = [1, 0, 2**32 - 1, 7, 258, 65_536, *range(300, 366)]
_NAMESPACES = (
    ("model", "", "numerics", "bfloat16", "layout"),
    ("model", "", "numerics", "int8", "layout"),
    ("model", "1", "numerics", "bfloat16", "layout"),
    ("modelnumerics", "", "", "bfloat16", "layout"),
    ("mode", "l", "numerics", "bfloat16", "layout"),
)
_KEYS = ("", "k" * 32, "k" * 33)
_PAYLOADS = ("", "00", "01", "00" * 64, bytes(range(256)).hex())


def compute() -> dict[str, Any]:
    """Everything that the file holds; bytes are in hex."""
    return {
        "prefix_roots": [
            {"block_size": size, "salt": salt, "adapter": adapter, "root": root(size, salt, adapter).hex()}
            for size in (1, 16, 64)
            for salt, adapter in TENANTS
        ],
        "block_hashes": [
            {
                "block_size": size,
                "salt": salt,
                "ids": _IDS,
                "hashes": [h.hex() for h in chain(root(size, salt, ""), _IDS, size)],
            }
            for size in (1, 16, 64)
            for salt in ("", "a")
        ],
        "partial_names": [
            {"parent": root(16, "", "").hex(), "ids": _IDS[:num], "name": partial(root(16, "", ""), _IDS[:num]).hex()}
            for num in (0, 1, 2, 15)
        ],
        "namespaces": [{"fields": fields, "namespace": namespace(fields).hex()} for fields in _NAMESPACES],
        "stored_spaces": [
            {"key": key, "namespace": space.hex(), "stored": stored(key.encode(), space).hex()}
            for key in _KEYS
            for space in (namespace(_NAMESPACES[0]), b"x")
        ],
        "tags": [
            {"key": key, "name": name, "part": part, "payload": payload, "tag": tag(key, name, part, payload).hex()}
            for key in _KEYS[1:]
            for name, part in (("ab" * 32, 0), ("ab" * 32, 1), ("abcd", 0))
            for payload in _PAYLOADS
        ],
        "headers": [
            {"key": key, "name": name, "part": part, "payload": payload, "header": header(key, name, part, payload)}
            for key in _KEYS[:2]
            for name, part in (("ab" * 32, 0), ("ab" * 32, 1), ("abcd", 0))
            for payload in _PAYLOADS[1:]
        ],
    }


def fields_digest(domain: str, *fields: bytes) -> bytes:
    """SHA-256 over a domain and fields, each after its length in 4 bytes."""
    parts = [domain.encode(), *fields]
    return hashlib.sha256(b"".join(len(part).to_bytes(4, "little") + part for part in parts)).digest()


def root(block_size: int, salt: str, adapter: str) -> bytes:
    """What stands before the first block."""
    version = (1).to_bytes(4, "little")
    size = block_size.to_bytes(4, "little")
    return fields_digest("pando-prefix", version, size, salt.encode(), adapter.encode())


def chain(before: bytes, ids: Sequence[int], block_size: int) -> list[bytes]:
    """Hashes of the full blocks."""
    hashes = []
    for end in range(block_size, len(ids) + 1, block_size):
        packed = b"".join(number.to_bytes(4, "little") for number in ids[end - block_size : end])
        before = hashlib.sha256(before + packed).digest()
        hashes.append(before)
    return hashes


def partial(parent: bytes, ids: Sequence[int]) -> bytes:
    """Name of a block that is not full."""
    return fields_digest("pando-partial", parent, b"".join(number.to_bytes(4, "little") for number in ids))


def namespace(fields: Sequence[str]) -> bytes:
    """Model digest, weight version, numerics, KV dtype, layout digest."""
    return fields_digest("pando-namespace", *(field.encode() for field in fields))


def stored(key: bytes, space: bytes) -> bytes:
    """Namespace under which a store keeps what is sealed with a key."""
    key_id = hashlib.sha256(b"pando-tag-key-id" + key).digest()[:16] if key else bytes(16)
    return hashlib.sha256(b"pando-l3-space-1" + key_id + struct.pack("<I", len(space)) + space).digest()


def tag(key: str, name: str, part: int, payload: str) -> bytes:
    """Keyed tag of a payload in the first of the namespaces; `name` and `payload` in hex."""
    space, short, data = namespace(_NAMESPACES[0]), bytes.fromhex(name), bytes.fromhex(payload)
    text = b"pando-block-tag-1"
    lengths = struct.pack("<IIIQ", len(space), len(short), part, len(data))
    own_key = hashlib.sha256(text + key.encode()).digest()
    return blake3(text + lengths + space + short + data, key=own_key).digest(length=16)


def header(key: str, name: str, part: int, payload: str) -> str:
    """What stands before a payload in a store, in hex."""
    space, short, data = namespace(_NAMESPACES[0]), bytes.fromhex(name), bytes.fromhex(payload)
    key_fields = struct.pack("<III", len(space), len(short), part) + space + short
    digest = hashlib.blake2b(key_fields, digest_size=16, person=b"pando-block-key").digest()
    numbers = struct.pack("<HHIIQQ", 1, bool(key), part, 0, len(data), xxhash.xxh3_64_intdigest(data))
    return (b"PKVB" + numbers + digest + (tag(key, name, part, payload) if key else bytes(16))).hex()


if __name__ == "__main__":
    for table, rows in compute().items():
        print("{" if table == "prefix_roots" else ",", json.dumps(table), ": [")
        print(",\n".join(json.dumps(row) for row in rows))
        print("]")
    print("}")
