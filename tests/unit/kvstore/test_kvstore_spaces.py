"""A quota holds for each namespace by itself."""

from __future__ import annotations

import pytest

from services.kvstore.spaces import Spaces


def test_each_namespace_has_its_own_quota() -> None:
    spaces = Spaces(100)
    spaces.charge(b"a", 70)
    assert spaces.fits(b"a", 30) and not spaces.fits(b"a", 31) and spaces.fits(b"b", 100)
    spaces.charge(b"a", -70)
    assert spaces.fits(b"a", 100) and spaces._num_bytes == {}
    with pytest.raises(AssertionError):
        spaces.charge(b"a", -1)


def test_without_a_quota_all_fits() -> None:
    assert Spaces(0).fits(b"a", 10**15)
