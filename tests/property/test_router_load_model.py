"""Charges against a plain list: outstanding tokens are the sum of the open ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.router.load import Charge, LoadBook

KEYS = [("a", 1), ("a", 2), ("b", 1)]

OPS = st.lists(
    st.tuples(st.sampled_from(["charge", "progress", "release", "forget"]), st.integers(0, 2), st.integers(0, 50)),
    max_size=60,
)


@given(OPS)
def test_outstanding_is_the_sum_of_open_charges(ops: list[tuple[str, int, int]]) -> None:
    book = LoadBook()
    model: list[tuple[Charge, int, list[int]]] = []  # charge, worker, [tokens left] or []
    for op, worker, number in ops:
        if op == "charge":
            model.append((book.charge(KEYS[worker], number), worker, [number]))
        elif op == "forget":
            book.forget(KEYS[worker])
        elif model:
            charge, _, left = model[number % len(model)]
            if op == "release":
                charge.release()
                left.clear()
            else:
                charge.progress(number)
                left[:] = [max(0, tokens - number) for tokens in left]
        for index, key in enumerate(KEYS):
            mine = [left for _, owner, left in model if owner == index and left]
            assert book.outstanding_tokens(key) == sum(left[0] for left in mine)
            assert book.num_charges(key) == len(mine)
    for charge, _, _ in model:
        charge.release()
    assert all(book.outstanding_tokens(key) == book.num_charges(key) == 0 for key in KEYS)
