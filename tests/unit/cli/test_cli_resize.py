"""Which workers come and go when a number changes: like their siblings, under free numbers, the highest leave first."""

from __future__ import annotations

import pytest

from pando.cli.cluster_spec import ClusterOptions, build_spec
from pando.cli.errors import CliError
from pando.cli.resize import Change, leaving, parse_counts, resized

SPECS = {
    one.name: one for one in build_spec(ClusterOptions("python", "/models/m", "redis://r", decode_workers=2)).services
}


def test_a_new_worker_is_as_its_sibling_but_for_its_name_and_share() -> None:
    change = resized(SPECS, SPECS, {"prefill": 2})
    (added,) = change.added
    assert (added.name, change.removed) == ("prefill-1", ())
    sibling = list(SPECS["prefill-0"].argv)
    sibling[sibling.index("--worker-id") + 1] = "prefill-1"
    sibling[sibling.index("--workers-on-host") + 1] = "4"
    assert list(added.argv) == sibling
    assert (added.layer, added.probe) == (SPECS["prefill-0"].layer, SPECS["prefill-0"].probe)


def test_the_highest_numbers_leave_and_other_kinds_stay() -> None:
    specs = SPECS | {f"decode-{n}": SPECS["decode-0"] for n in (2, 10)}
    assert resized(specs, specs, {"decode": 2}) == Change(removed=("decode-2", "decode-10"))
    assert resized(specs, specs, {"decode": 4}) == Change()


def test_a_name_in_use_is_not_given_again() -> None:
    change = resized(SPECS, [*SPECS, "decode-2"], {"decode": 4})
    assert [one.name for one in change.added] == ["decode-3", "decode-4"]
    gap = {name: spec for name, spec in SPECS.items() if name != "decode-0"}
    assert [one.name for one in resized(gap, gap, {"decode": 2}).added] == ["decode-0"]


def test_a_kind_that_is_not_there_cannot_grow() -> None:
    with pytest.raises(CliError, match="no worker workers") as refused:
        leaving(SPECS, {"worker": 2})
    assert "prefill, decode" in str(refused.value)


def test_counts_are_parsed() -> None:
    assert parse_counts(["prefill=2", "decode=256"]) == {"prefill": 2, "decode": 256}


@pytest.mark.parametrize(
    "argument",
    [
        "prefill",
        "prefill=",
        "prefill=0",
        "prefill=-1",
        "router=2",
        "decode=many",
        "=2",
        "decode=²",
        "decode=257",
        "decode=" + "9" * 5000,
    ],
)
def test_what_is_no_count_is_refused(argument: str) -> None:
    with pytest.raises(CliError, match="KIND=COUNT"):
        parse_counts([argument])
