"""Arbitrary and damaged bytes in log files: the log opens, serves nothing wrong, and takes new objects."""

from __future__ import annotations

import random
import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st

from common.base.errors import BlockCorrupt
from common.cache.l3 import HEADER_BYTES, BlockKey, PutState
from common.transport.checksum import checksum
from services.kvstore import ssd_format as fmt
from services.kvstore.ssd_format import Entry, Head, Kind, Place
from services.kvstore.ssd_index import Index
from services.kvstore.ssd_log import SsdLog
from services.kvstore.ssd_options import SsdOptions, SyncPolicy
from services.kvstore.ssd_tail import file_name
from tests.support.ssd_disk import Inode, SimulatedDisk
from tests.support.ssd_objects import get, key_of, put

STORE_ID = 77
OPTIONS = SsdOptions(64 * 1024, SyncPolicy.NONE)
FAST = settings(max_examples=150, deadline=None)

pieces = st.one_of(
    st.binary(max_size=300),
    st.integers(0, 9000).map(bytes),
    st.sampled_from([b"PANDOREC", b"PANDOIDX", b"PANDOLOG"]),
    st.builds(
        lambda number, payload_bytes, kind: fmt.pack_head(
            Head(kind, key_of(number), number, bytes(HEADER_BYTES), payload_bytes, checksum(b"")),
            Place(STORE_ID, 1),
            fmt.BLOCK_BYTES,
        ),
        st.integers(1, 9),
        st.sampled_from([0, 160, 4000, fmt.MAX_PAYLOAD_BYTES]),
        st.sampled_from([Kind.OBJECT, Kind.REMOVALS]),
    ),
    st.just(fmt.pack_file_head(Place(STORE_ID, 1))),
    st.just(fmt.pack_trailer(fmt.pack_entries([Entry(Kind.OBJECT, key_of(1), 5, 4096, 100)]), Place(STORE_ID, 1))),
)


def check_serves(disk: SimulatedDisk) -> SsdLog:
    """Open; every object must be right, damaged or gone; new ones must work."""
    log = SsdLog(disk, STORE_ID, 1 << 30, OPTIONS)
    for key, payload_bytes in list(log.keys()):
        number = int.from_bytes(key.prefix_hash, "little")
        try:
            get(log, number, payload_bytes)
        except BlockCorrupt:
            continue
    assert put(log, 1000) in (PutState.STORED, PutState.PRESENT) and get(log, 1000)
    return log


@FAST
@given(st.lists(pieces, max_size=8), st.integers(1, 3))
def test_any_bytes_open(parts: list[bytes], number: int) -> None:
    disk = SimulatedDisk()
    disk.files[file_name(number)] = Inode(bytearray(b"".join(parts)))
    tracemalloc.start()
    check_serves(disk)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * 1024 * 1024, f"{peak} bytes for {sum(map(len, parts))}"


@FAST
@given(
    st.integers(0, 1 << 32),
    st.lists(
        st.tuples(st.sampled_from(["flip", "cut", "zero", "swap", "insert"]), st.integers(0, 1 << 30)), max_size=6
    ),
)
def test_damage_never_gives_a_wrong_byte(seed: int, damage: list[tuple[str, int]]) -> None:
    disk = SimulatedDisk()
    log = SsdLog(disk, STORE_ID, 1 << 30, OPTIONS)
    chance = random.Random(seed)
    for number in range(1, 40):
        put(log, number, chance.choice([0, 10, 4000, 9000]))
    log.remove([key_of(3)])
    files = sorted(disk.files)
    for kind, where in damage:
        data = disk.files[files[where % len(files)]].data
        at = where // 13 % max(1, len(data))
        if kind == "flip" and data:
            data[at] ^= 1 << where % 8
        elif kind == "cut":
            del data[at:]
        elif kind == "zero":
            data[at : at + 5000] = bytes(len(data[at : at + 5000]))
        elif kind == "swap":
            one, other = at // 4096 * 4096, where // 7 % max(1, len(data)) // 4096 * 4096
            data[one : one + 4096], data[other : other + 4096] = data[other : other + 4096], data[one : one + 4096]
        elif kind == "insert":
            data[at:at] = b"x" * (where % 5000)
    check_serves(disk)


def test_a_record_inside_a_payload_is_never_an_object() -> None:
    """Even when the record around it is damaged, and it lies on a block, and all but its place is right."""
    disk = SimulatedDisk()
    log = SsdLog(disk, STORE_ID, 1 << 30, OPTIONS)
    place = Place(STORE_ID, 1)
    head = Head(Kind.OBJECT, BlockKey(b"evil", b"x"), 1 << 40, bytes(HEADER_BYTES), 4, checksum(b"evil"))
    outer = fmt.BLOCK_BYTES - fmt.HEAD_BYTES
    for offset in (0, 4096, 12288):
        payload = bytes(outer) + fmt.pack_head(head, place, offset) + b"evil"
        log.append(key_of(offset), bytes(HEADER_BYTES), memoryview(payload))
    disk.files[file_name(1)].data[4096] ^= 1
    log = SsdLog(disk, STORE_ID, 1 << 30, OPTIONS)
    assert {key.namespace for key, _ in list(log.keys())} == {b"space"}


entry_lists = st.lists(
    st.tuples(
        st.integers(1, 3), st.sampled_from([Kind.OBJECT, Kind.REMOVED, Kind.REMOVED_NAMESPACE]), st.integers(0, 4)
    ),
    max_size=30,
)


@FAST
@given(entry_lists, st.randoms(use_true_random=False))
def test_the_index_does_not_depend_on_the_order_of_files(
    lines: list[tuple[int, Kind, int]], chance: random.Random
) -> None:
    files: dict[int, list[Entry]] = {1: [], 2: [], 3: []}
    expected: dict[BlockKey, int] = {}
    for sequence, (number, kind, name) in enumerate(lines, start=1):
        key = BlockKey(b"s%d" % (name % 2), b"" if kind is Kind.REMOVED_NAMESPACE else b"k%d" % name)
        files[number].append(Entry(kind, key, sequence, 4096 * sequence))
        if kind is Kind.OBJECT:
            expected[key] = sequence
        elif kind is Kind.REMOVED:
            expected.pop(key, None)
        else:
            expected = {one: at for one, at in expected.items() if one.namespace != key.namespace}
    order = list(files)
    chance.shuffle(order)
    index = Index()
    for number in order:
        chance.shuffle(files[number])
        index.load(number, 100, files[number])
    index.settle()
    assert {key: location.sequence for key, location in index.items()} == expected
    assert index.num_objects == len(expected) == sum(len(state.live) for state in index.files.values())
