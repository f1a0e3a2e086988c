"""The table of requests in flight: ids, bounds, aborts."""

from __future__ import annotations

import pytest

from common.base.errors import Cancelled, InvalidRequest, Overloaded
from services.router.running import RunningTable


def full() -> Overloaded:
    return Overloaded("full")


def test_an_id_is_taken_exactly_while_its_request_runs() -> None:
    table = RunningTable(5, full)
    with table.admit("a"):
        with pytest.raises(InvalidRequest) as caught:
            table.admit("a")
        assert caught.value.reason == "duplicate_request_id"
        assert len(table) == 1
    with table.admit("a"):
        pass
    assert len(table) == 0


def test_requests_are_bounded() -> None:
    table = RunningTable(2, full)
    with table.admit("a"), table.admit("b"), pytest.raises(Overloaded):
        table.admit("c")
    with table.admit("c"):
        pass


def test_abort_cancels_what_runs_and_what_starts_later() -> None:
    table = RunningTable(9, full)
    cancelled: list[str] = []
    first, second = lambda: cancelled.append("first"), lambda: cancelled.append("second")
    with table.admit("a") as ticket:
        ticket.on_abort(first)
        ticket.on_abort(second)
        ticket.forget(second)
        ticket.check()
        assert table.abort("a") and table.abort("a")
        assert set(cancelled) == {"first"}
        with pytest.raises(Cancelled) as caught:
            ticket.check()
        assert caught.value.reason == "aborted"
    assert not table.abort("a") and not table.abort("unknown")
