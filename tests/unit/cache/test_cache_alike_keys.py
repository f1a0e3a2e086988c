"""Keys that differ in their hash only are the same keys in another form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.cache.l3 import AlikeKeys, BlockKey

_HASHES = st.lists(st.binary(min_size=4, max_size=4), min_size=1, max_size=20)


@given(_HASHES, st.integers(0, 2**32 - 1))
def test_alike_keys_are_the_keys(hashes: list[bytes], part: int) -> None:
    keys = [BlockKey(b"n", one, part) for one in hashes]
    alike = AlikeKeys.of(keys)
    assert alike is not None
    assert AlikeKeys.of(alike) is alike
    assert len(alike) == len(keys)
    assert list(alike) == keys
    assert [alike[place] for place in range(len(keys))] == keys
    assert list(alike[1:]) == keys[1:]


@pytest.mark.parametrize("other", [BlockKey(b"m", b"1234", 1), BlockKey(b"n", b"12345", 1), BlockKey(b"n", b"1234", 2)])
def test_others_are_not_alike(other: BlockKey) -> None:
    assert AlikeKeys.of([BlockKey(b"n", b"1234", 1), other]) is None
    assert AlikeKeys.of([]) is None
