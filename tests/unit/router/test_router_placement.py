"""A placement charges whoever computes, shrinks as tokens come, and gives all back once."""

from __future__ import annotations

import pytest

from services.router.load import LoadBook
from services.router.placement import Placement
from services.router.policy import Candidate, Plan

DECODE = Candidate(("d", 1), "h:1", True, False)
PREFILL = Candidate(("p", 1), "h:2", False, True)


@pytest.mark.parametrize("prefill", [PREFILL, None])
def test_a_placement_from_first_to_last(prefill: Candidate | None) -> None:
    book = LoadBook()
    placement = Placement(book, Plan(DECODE, prefill, (), prompt_tokens=1000, output_tokens=100, reason="x"))

    def outstanding() -> tuple[int, int]:
        return book.outstanding_tokens(DECODE.key), book.outstanding_tokens(PREFILL.key)

    assert outstanding() == ((100, 1000) if prefill else (1100, 0))
    placement.progress(1)
    assert outstanding() == (99, 0)
    placement.progress(500)
    assert outstanding() == (0, 0)
    placement.release()
    placement.release()
    assert book.num_charges(DECODE.key) == book.num_charges(PREFILL.key) == 0
    assert book.last_used(DECODE.key) > 0
