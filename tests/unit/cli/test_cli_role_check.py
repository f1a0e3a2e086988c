"""A change of roles that leaves nobody with one is seen, and no other is."""

from __future__ import annotations

import pytest

from common.base.comma_list import split_list
from pando.cli.role_check import lost_roles

PD = {"p0": ["prefill"], "p1": ["prefill"], "d0": ["decode"]}


@pytest.mark.parametrize(
    ("changed", "after", "lost"),
    [
        (["p0"], ["decode"], []),
        (["d0"], ["prefill"], ["decode"]),
        (["d0"], ["prefill", "decode"], []),
        (["p0", "p1"], ["decode"], ["prefill"]),
        (["p0", "p1", "d0"], ["prefill", "decode"], []),
        (["p0", "p1", "d0"], ["prefill"], ["decode"]),
        (["unknown"], ["decode"], []),
    ],
)
def test_what_is_lost(changed: list[str], after: list[str], lost: list[str]) -> None:
    assert lost_roles(PD, changed, after) == lost


def test_a_role_that_nobody_has_cannot_be_lost() -> None:
    assert lost_roles({"p0": ["prefill"]}, ["p0"], ["decode"]) == ["prefill"]
    assert lost_roles({}, ["p0"], ["decode"]) == []


def test_a_comma_list_has_names() -> None:
    assert split_list(" prefill, decode,") == ["prefill", "decode"]
    assert split_list("") == []
