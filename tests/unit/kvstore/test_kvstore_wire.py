"""Names and records: every key there and back, and nothing else is taken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.base.errors import InvalidRequest
from common.cache import kvstore_wire as wire
from common.cache.l3 import BlockKey
from common.transport.base import Endpoint, Extent
from pando.v1 import kvstore_pb2

FIELDS = st.binary(min_size=1, max_size=64)
KEYS = st.builds(BlockKey, FIELDS, FIELDS, st.integers(0, 2**32 - 1))


@given(st.lists(KEYS, max_size=30))
def test_keys_travel_in_order(keys: list[BlockKey]) -> None:
    names = wire.unpack_names(wire.pack_keys(keys))
    assert [wire.key_of(name) for name in names] == keys
    assert wire.unpack_names(wire.pack_names(names)) == names
    assert [wire.namespace_of(name) for name in names] == [key.namespace for key in keys]


@given(KEYS, KEYS)
def test_different_keys_have_different_names(one: BlockKey, other: BlockKey) -> None:
    assert (wire.name_of(one) == wire.name_of(other)) == (one == other)
    assert wire.name_of(one).startswith(wire.prefix_of(other.namespace)) == (one.namespace == other.namespace)


def test_keys_of_one_namespace_are_one_run() -> None:
    keys = [BlockKey(b"n" * 32, bytes([number]) * 32) for number in range(200)]
    assert len(wire.pack_keys(keys)) == 1
    assert len(wire.pack_keys([*keys, BlockKey(b"m" * 32, b"h" * 32), keys[0]])) == 3


@pytest.mark.parametrize(
    "run",
    [
        kvstore_pb2.KeyRun(namespace=b"", hash_bytes=4, hashes=b"1234"),
        kvstore_pb2.KeyRun(namespace=b"n" * 65, hash_bytes=4, hashes=b"1234"),
        kvstore_pb2.KeyRun(namespace=b"n", hash_bytes=0, hashes=b"1234"),
        kvstore_pb2.KeyRun(namespace=b"n", hash_bytes=65, hashes=b"1" * 65),
        kvstore_pb2.KeyRun(namespace=b"n", hash_bytes=4, hashes=b"12345"),
        kvstore_pb2.KeyRun(namespace=b"n", hash_bytes=1, hashes=b"1" * (wire.MAX_KEYS + 1)),
    ],
)
def test_what_is_no_run_is_refused(run: kvstore_pb2.KeyRun) -> None:
    with pytest.raises(InvalidRequest):
        wire.unpack_names([run])


def test_an_empty_namespace_has_no_prefix() -> None:
    with pytest.raises(InvalidRequest):
        wire.prefix_of(b"")


def test_offers_travel_and_are_counted() -> None:
    extents = [Extent(7, 2, 4096 * place, 100 + place, place, 2**64 - 1 - place) for place in range(3)]
    packed = wire.pack_offers(extents)
    assert wire.unpack_offers(packed, 7, 3) == extents
    for count in (2, 4):
        with pytest.raises(InvalidRequest):
            wire.unpack_offers(packed, 7, count)


def test_headers_are_counted() -> None:
    assert wire.split_headers(b"a" * 64 + b"b" * 64, 2) == [b"a" * 64, b"b" * 64]
    with pytest.raises(InvalidRequest):
        wire.split_headers(b"a" * 63, 1)


def test_endpoints_travel() -> None:
    endpoints = [Endpoint("shm", "host", 2**63, b"\0x"), Endpoint("tcp", "", 1, b"")]
    assert wire.unpack_endpoints(wire.pack_endpoints(endpoints)) == endpoints


def test_codes_are_those_of_the_contract() -> None:
    for ours, theirs, prefix in (
        (wire.Lookup, kvstore_pb2.LookupState, "LOOKUP_STATE_"),
        (wire.Put, kvstore_pb2.PutState, "PUT_STATE_"),
    ):
        assert {prefix + one.name: one.value for one in ours} | {f"{prefix}UNSPECIFIED": 0} == dict(theirs.items())
