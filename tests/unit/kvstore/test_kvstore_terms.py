"""Terms only rise, and survive."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.base.errors import InvalidRequest, StepAborted, Unavailable
from services.kvstore.leadership import MAX_TERM
from services.kvstore.terms import MAX_STEP, STALE_TERM, Terms


def test_lower_terms_and_second_leaders_are_refused(tmp_path: Path) -> None:
    terms = Terms(tmp_path)
    terms.accept(5, "a")
    terms.accept(5, "a")
    for term, leader in ((4, "a"), (5, "b"), (0, "")):
        with pytest.raises(StepAborted) as caught:
            terms.accept(term, leader)
        assert caught.value.reason == STALE_TERM and caught.value.param == "5"
    terms.accept(6, "b")
    assert (terms.term, terms.leader_id) == (6, "b")


def test_a_term_is_there_after_a_restart(tmp_path: Path) -> None:
    Terms(tmp_path).accept(7, "a")
    again = Terms(tmp_path)
    assert (again.term, again.leader_id) == (7, "a")
    with pytest.raises(StepAborted):
        again.accept(6, "b")
    assert Terms(None).term == 0


@pytest.mark.parametrize(
    ("term", "leader"), [(5 + MAX_STEP + 1, "a"), (MAX_TERM + 1, "a"), (2**64 - 1, "a"), (6, "a" * 10_000)]
)
def test_nobody_can_use_up_the_terms(tmp_path: Path, term: int, leader: str) -> None:
    terms = Terms(tmp_path)
    terms.accept(5, "a")
    with pytest.raises(InvalidRequest):
        terms.accept(term, leader)
    terms.accept(6, "b")
    assert Terms(tmp_path).term == 6


WRONG_TERMS = [
    b'{"term": 18446744073709551615, "leader_id": "a"}',
    b'{"term": 1e400, "leader_id": "a"}',
    b'{"term": -1}',
]


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"term": "x", "leader_id": 1}', *WRONG_TERMS])
def test_a_damaged_file_is_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "term.json").write_bytes(content)
    terms = Terms(tmp_path)
    assert terms.term == 0
    terms.accept(1, "a")
    assert Terms(tmp_path).term == 1


def test_a_term_that_cannot_be_persisted_is_not_accepted(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    terms = Terms(folder)
    with pytest.raises(Unavailable):
        terms.accept(3, "a")
    assert terms.term == 0
