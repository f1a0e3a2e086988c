"""Background tasks: failures are logged, ended ones forgotten, all end together."""

from __future__ import annotations

import asyncio
from typing import Any

from common.base.tasks import Tasks


class Log:
    """Keeps what is logged as an error."""

    def __init__(self) -> None:
        self.errors: list[tuple[str, BaseException]] = []

    def error(self, event: str, *, exc_info: BaseException) -> None:
        """Keep it."""
        self.errors.append((event, exc_info))


async def test_a_failure_is_logged_and_a_cancellation_is_none() -> None:
    log: Any = Log()
    tasks = Tasks(log, "it failed")

    async def fail() -> None:
        raise ZeroDivisionError

    hanging = tasks.spawn(asyncio.sleep(60))
    await asyncio.wait((tasks.spawn(fail()),))
    await tasks.cancel()
    assert hanging.cancelled()
    assert [(event, type(error)) for event, error in log.errors] == [("it failed", ZeroDivisionError)]


async def test_others_end_with_them_and_nothing_stays() -> None:
    log: Any = Log()
    tasks = Tasks(log, "it failed")
    other = asyncio.create_task(asyncio.sleep(60))
    mine = tasks.spawn(asyncio.sleep(60))
    await tasks.cancel(other)
    assert other.cancelled() and mine.cancelled()
    await tasks.cancel()
    assert not log.errors
