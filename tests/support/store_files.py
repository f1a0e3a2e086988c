"""The files of the `file` backend as somebody with access to the folder sees and spoils them."""

from __future__ import annotations

from pathlib import Path

from common.cache.header import refit_checksum
from common.cache.l3 import HEADER_BYTES


def block_file(store: Path, name: bytes) -> Path:
    """The one file that holds the block of this name, in whatever namespace."""
    found = list(store.glob(f"*/{name[:1].hex()}/{name.hex()}*"))
    assert len(found) == 1, f"{len(found)} files for {name.hex()}"
    return found[0]


def num_files(store: Path) -> int:
    """Blocks in the folder."""
    return sum(1 for _ in store.glob("*/??/*"))


def payload_of(store: Path, name: bytes) -> bytes:
    """The bytes of a block without its header."""
    return block_file(store, name).read_bytes()[HEADER_BYTES:]


def swap_payloads(store: Path, first: bytes, second: bytes) -> None:
    """Give two blocks each other's bytes, under checksums that fit."""
    files = [block_file(store, name) for name in (first, second)]
    contents = [bytearray(file.read_bytes()) for file in files]
    payloads = [content[HEADER_BYTES:] for content in contents]
    for file, content, payload in zip(files, contents, reversed(payloads), strict=True):
        content[HEADER_BYTES:] = payload
        refit_checksum(content, payload)
        file.write_bytes(content)
