"""One stream out of several: a leader first, the others once it has shown its first item."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True, frozen=True)
class _End:
    """A stream is over; `error` when it failed."""

    error: Exception | None = None


@dataclass(slots=True, frozen=True)
class _Item(Generic[T]):
    value: T


async def merge(
    leader: AsyncGenerator[T, None], followers: Callable[[], Sequence[AsyncGenerator[T, None]]], bound: int
) -> AsyncGenerator[T, None]:
    """Yield the items of all streams as they come; each stream's own order is kept.

    Args:
        leader: the stream that starts first.
        followers: called when the leader's first item has come.
        bound: most items held for a slow reader.

    Raises:
        Exception: the first error of any stream; the others are cancelled. Leaving cancels all.
    """
    queue: asyncio.Queue[_Item[T] | _End] = asyncio.Queue(bound)
    tasks = [asyncio.create_task(_pump(leader, queue))]
    num_open = 1
    try:
        while num_open:
            item = await queue.get()
            if len(tasks) == 1:
                tasks += [asyncio.create_task(_pump(stream, queue)) for stream in followers()]
                num_open = len(tasks)
            if isinstance(item, _Item):
                yield item.value
            elif item.error is not None:
                raise item.error
            else:
                num_open -= 1
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(stream: AsyncGenerator[T, None], queue: asyncio.Queue[_Item[T] | _End]) -> None:
    try:
        async with aclosing(stream):
            async for value in stream:
                await queue.put(_Item(value))
    except Exception as error:  # noqa: BLE001 - carried to the reader, who raises it
        await queue.put(_End(error))
    else:
        await queue.put(_End())
