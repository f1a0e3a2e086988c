"""A store process that is born with many small objects: `python -m tests.support.seeded_store --seeded COUNT FIRST`.

Everything in it is real but the way in which its first objects came: they are staged and committed before it serves.
Their pages are never touched, so they take address space and names, hardly memory; a read brings `PAYLOAD`.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from typing import Any

from common.cache import kvstore_wire as wire
from common.cache.l3 import HEADER_BYTES, BlockKey
from common.transport.checksum import checksum
from services.kvstore import __main__ as program
from services.kvstore import process
from services.kvstore.holdings import Holdings
from services.kvstore.memory import Object

PAYLOAD = bytes(64)
HEADER = b"h" * HEADER_BYTES
PAGE_BYTES = 4096
SPACE = b"s" * 32


def seeded_key(number: int) -> BlockKey:
    """The key of an object."""
    return BlockKey(SPACE, hashlib.sha256(number.to_bytes(4, "little")).digest())


def flags_for(count: int, first: int) -> tuple[str, ...]:
    """Arguments for a process with the objects `first` to `first + count - 1`."""
    return (
        "--seeded",
        str(count),
        str(first),
        "--page-size",
        str(PAGE_BYTES),
        "--segment-size",
        str(2 * count * PAGE_BYTES),
    )


def seed(holdings: Holdings, count: int, first: int) -> None:
    """Make the objects visible."""
    value = checksum(PAYLOAD)
    for number in range(first, first + count):
        new = Object(wire.name_of(seeded_key(number)), len(PAYLOAD), HEADER, value)
        assert holdings.objects.stage(new) is None, f"no room for object {number}"
        holdings.objects.commit(new)
    holdings.settle()


def main(argv: list[str]) -> int:
    """Run the service with a node that has the objects."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeded", type=int, nargs=2, metavar=("COUNT", "FIRST"), required=True)
    arguments, flags = parser.parse_known_args(argv)
    make_node = process.make_node

    def make_seeded(*parts: Any) -> Any:
        node = make_node(*parts)
        seed(node.holdings, *arguments.seeded)
        return node

    process.make_node = make_seeded
    return program.main(flags)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
