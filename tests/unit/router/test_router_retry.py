"""Blame and retry: which worker is left out next, and when an error is final."""

from __future__ import annotations

import pytest

from common.base.errors import (
    BlockCorrupt,
    Cancelled,
    DeadlineExceeded,
    Draining,
    HandoffAborted,
    Internal,
    InvalidRequest,
    LayoutMismatch,
    Leg,
    NotReady,
    Overloaded,
    PandoError,
    PeerLost,
    Unsupported,
    WrongRole,
)
from services.router.policy import Exclusions
from services.router.retry import Retries, blames

D, P = ("d", 1), ("p", 1)


@pytest.mark.parametrize("leg", [Leg.PREFILL, Leg.TRANSFER, Leg.STORE])
def test_the_prefill_side_is_blamed_for_its_legs(leg: Leg) -> None:
    retries = Retries(3)
    assert retries.failed(HandoffAborted("x", leg=leg), D, P) is leg
    assert retries.exclusions == Exclusions(set(), {P}, D)


@pytest.mark.parametrize("leg", [Leg.DECODE, Leg.NONE])
def test_decode_is_blamed_otherwise(leg: Leg) -> None:
    retries = Retries(3)
    assert retries.failed(PeerLost("x", leg=leg), D, P) is Leg.DECODE
    assert retries.exclusions == Exclusions({D}, set(), None)


def test_without_a_prefill_worker_every_leg_is_decodes() -> None:
    retries = Retries(3)
    assert retries.failed(BlockCorrupt("x", leg=Leg.TRANSFER), D, None) is Leg.DECODE
    assert retries.exclusions.decode == {D}


@pytest.mark.parametrize("error", [Overloaded, Draining, NotReady, PeerLost, HandoffAborted, BlockCorrupt, Cancelled])
def test_what_another_worker_heals_is_tried_again(error: type[PandoError]) -> None:
    retries = Retries(2)
    retries.failed(error("x"), D, P)
    assert retries.attempt == 1
    with pytest.raises(error):
        retries.failed(error("x"), D, P)


@pytest.mark.parametrize("error", [InvalidRequest, Unsupported, LayoutMismatch, DeadlineExceeded, Internal])
def test_what_nobody_heals_is_final(error: type[PandoError]) -> None:
    with pytest.raises(error):
        Retries(9).failed(error("x"), D, P)


def test_the_last_word_when_nobody_is_left() -> None:
    retries = Retries(9)
    assert isinstance(retries.nobody_left(), NotReady)
    retries.failed(Overloaded("x", retry_after_s=4), D, P)
    retries.failed(Overloaded("x", retry_after_s=2), D, P)
    assert retries.nobody_left().retry_after_s == 2
    lost = PeerLost("x")
    retries.failed(lost, D, P)
    assert retries.nobody_left() is lost


def test_attempts_are_counted_in_a_row_without_a_token() -> None:
    retries = Retries(2)
    for number in range(1, 9):
        retries.failed(PeerLost("x"), D, P, progressed=True)
        assert retries.attempt == number and retries.exclusions.decode == {D}
    with pytest.raises(PeerLost):
        retries.failed(PeerLost("x"), D, P)


def test_progress_forgives_who_failed_before() -> None:
    retries = Retries(9)
    retries.failed(PeerLost("x"), ("other", 1), P)
    retries.failed(HandoffAborted("x", leg=Leg.PREFILL), D, P, progressed=True)
    assert retries.exclusions == Exclusions(set(), {P}, D)


@pytest.mark.parametrize(
    ("error", "blamed"),
    [
        (PeerLost, True),
        (HandoffAborted, True),
        (Internal, True),
        (BlockCorrupt, True),
        (Overloaded, False),
        (Draining, False),
        (Cancelled, False),
        (InvalidRequest, False),
        (DeadlineExceeded, False),
    ],
)
def test_only_what_a_worker_did_wrong_is_held_against_it(error: type[PandoError], blamed: bool) -> None:
    assert blames(error("x")) is blamed


def test_a_wrong_role_blames_nobody_and_says_that_news_is_due() -> None:
    retries = Retries(4)
    assert not retries.is_misled and not blames(WrongRole("x"))
    retries.failed(WrongRole("x", leg=Leg.DECODE), D, None)
    assert retries.is_misled
    retries.failed(PeerLost("x", leg=Leg.DECODE), P, None)
    assert not retries.is_misled


def test_the_forgiven_may_serve_again() -> None:
    retries = Retries(9)
    retries.failed(PeerLost("x"), D, P)
    retries.forgive()
    assert not retries.exclusions.decode and retries.attempt == 1
