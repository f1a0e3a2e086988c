"""Charges: every path gives back what it took, once; what others gave a worker is known by its word."""

from __future__ import annotations

from services.router.load import LoadBook

KEYS = [("a", 1), ("a", 2), ("b", 1)]


def test_a_charge_shrinks_and_ends() -> None:
    book = LoadBook()
    charge = book.charge(KEYS[0], 0.0, prompt_tokens=7, output_tokens=10, context_tokens=17)
    charge.progress(4)
    assert (book.outstanding_tokens(KEYS[0]), book.of(KEYS[0]).num_charges) == (13, 1)
    charge.computed(1.0)
    charge.computed(1.0)
    assert book.outstanding_tokens(KEYS[0]) == 6
    charge.progress(100)
    assert (book.outstanding_tokens(KEYS[0]), book.of(KEYS[0]).context_tokens) == (0, 17)
    charge.release()
    charge.release()
    charge.progress(1)
    load = book.of(KEYS[0])
    assert (load.num_charges, load.num_generating, load.context_tokens) == (0, 0, 0)


def test_last_used_orders_workers() -> None:
    book = LoadBook()
    assert book.of(KEYS[0]).last_used == 0
    book.charge(KEYS[0], 0.0)
    book.charge(KEYS[2], 0.0)
    assert 0 < book.of(KEYS[0]).last_used < book.of(KEYS[2]).last_used


def test_a_forgotten_worker_is_kept_until_its_last_charge() -> None:
    book = LoadBook()
    book.forget(KEYS[0])
    charge = book.charge(KEYS[0], 0.0, output_tokens=5)
    book.forget(KEYS[0])
    charge.progress(2)
    assert book.outstanding_tokens(KEYS[0]) == 3
    charge.release()
    charge.release()
    assert book.of(KEYS[0]).last_used == 0


def test_what_a_worker_has_beyond_our_charges_is_foreign() -> None:
    book = LoadBook()
    charge = book.charge(KEYS[0], 0.0, prompt_tokens=100, output_tokens=5)
    book.observe(KEYS[0], waiting_tokens=350, num_requests=3)
    load = book.of(KEYS[0])
    assert (load.foreign_tokens, load.queued_tokens, load.num_requests) == (250, 350, 3)
    charge.release()
    assert (load.queued_tokens, load.num_requests) == (250, 2)
    book.observe(KEYS[0], waiting_tokens=0, num_requests=0)
    assert (load.queued_tokens, load.num_requests) == (0, 0), "nothing is latched"


def test_the_queue_shrinks_with_time_and_grows_when_it_is_late() -> None:
    book = LoadBook()
    first = book.charge(KEYS[0], 10.0, prompt_tokens=20)
    second = book.charge(KEYS[0], 11.0, prompt_tokens=5)
    load = book.of(KEYS[0])
    assert load.queue_s(0.5, 10.0) == 12.5
    assert load.queue_s(0.5, 17.0) == 5.5
    assert load.queue_s(0.5, 26.0) == 2.5 + 6, "6 s late: 6 s more are to be expected"
    first.computed(30.0)
    assert load.queue_s(0.5, 31.0) == 1.5
    first.release()
    second.release()
    assert load.queue_s(0.5, 99.0) == 0
