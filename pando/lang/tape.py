"""The text of a state as it is written, for readers on other threads and event loops. The model's context bounds it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Piece:
    """Some text; `name` is the variable that it belongs to, or "". `ends`: the variable is whole now."""

    text: str
    name: str = ""
    ends: bool = False


class Tape:
    """Append-only pieces. Thread-safe; readers begin at the start whenever they come."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pieces: list[Piece] = []
        self._closed = False
        self._listeners: list[Callable[[], None]] = []

    def append(self, piece: Piece) -> None:
        """Write a piece and wake the readers."""
        with self._changed:
            self._pieces.append(piece)
            self._tell()

    def close(self) -> None:
        """Nothing comes any more. Idempotent."""
        with self._changed:
            self._closed = True
            self._tell()

    def __len__(self) -> int:
        return len(self._pieces)

    def text(self, start: int = 0) -> str:
        """All text from a piece on."""
        return "".join(piece.text for piece in self._pieces[start:])

    def read(self, name: str) -> Iterator[str]:
        """The text, or that of one variable, as it comes; blocks. Ends with the tape, or when the variable is whole."""
        at = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda at=at: len(self._pieces) > at or self._closed)  # type: ignore[misc]
                pieces = self._pieces[at:]
            at += len(pieces)
            if not pieces:
                return
            yield from _texts(pieces, name)
            if _is_whole(pieces, name):
                return

    async def read_async(self, name: str) -> AsyncIterator[str]:
        """`read` for an event loop; blocks nobody."""
        loop, news, at = asyncio.get_running_loop(), asyncio.Event(), 0

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody reads there
                loop.call_soon_threadsafe(news.set)

        with self._changed:
            self._listeners.append(wake)
        try:
            while True:
                news.clear()
                closed = self._closed  # looked at first: nothing is written after it
                pieces = self._pieces[at:]
                at += len(pieces)
                for text in _texts(pieces, name):
                    yield text
                if _is_whole(pieces, name) or (closed and not pieces):
                    return
                if not pieces:
                    await news.wait()
        finally:
            with self._changed:
                self._listeners.remove(wake)

    def _tell(self) -> None:
        self._changed.notify_all()
        for listener in self._listeners:
            listener()


def _texts(pieces: list[Piece], name: str) -> Iterator[str]:
    return (piece.text for piece in pieces if piece.text and name in ("", piece.name))


def _is_whole(pieces: list[Piece], name: str) -> bool:
    return bool(name) and any(piece.ends and piece.name == name for piece in pieces)
