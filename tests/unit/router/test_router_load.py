"""Charges: every path gives back what it took, once."""

from __future__ import annotations

from services.router.load import LoadBook

KEYS = [("a", 1), ("a", 2), ("b", 1)]


def test_a_charge_shrinks_and_ends() -> None:
    book = LoadBook()
    charge = book.charge(KEYS[0], 10)
    charge.progress(4)
    assert book.outstanding_tokens(KEYS[0]) == 6 and book.num_charges(KEYS[0]) == 1
    charge.progress(100)
    assert book.outstanding_tokens(KEYS[0]) == 0
    charge.release()
    charge.release()
    assert book.num_charges(KEYS[0]) == 0


def test_last_used_orders_workers() -> None:
    book = LoadBook()
    assert book.last_used(KEYS[0]) == 0
    book.charge(KEYS[0], 1)
    book.charge(KEYS[2], 1)
    assert 0 < book.last_used(KEYS[0]) < book.last_used(KEYS[2])


def test_a_forgotten_worker_is_kept_until_its_last_charge() -> None:
    book = LoadBook()
    book.forget(KEYS[0])
    charge = book.charge(KEYS[0], 5)
    book.forget(KEYS[0])
    charge.progress(2)
    charge.release()
    charge.release()
    assert book.last_used(KEYS[0]) == 0
