"""Text that the model wrote -> text for the user and tool calls, piece by piece. Pure.

A call's name is told as soon as it is known, its arguments as they come. What is no call stays text; blanks around
calls are dropped. A call that was cut off before its name was known is dropped too: the choice ends with `length` then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from services.gateway.tools import BEGIN, END, Syntax

_NAME = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\]{1,128})"')
_ARGUMENTS = re.compile(r'\s*,\s*"arguments"\s*:\s*(?=\S)')
_MARK = re.compile(r'["\\{}\[\],\s]')
_BETWEEN = " \t\r\n,[]"
_MAX_HEAD_CHARS = 512


@dataclass(frozen=True, slots=True)
class TextPart:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins; calls of an answer are numbered from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of a call's arguments, which are JSON text."""

    index: int
    piece: str


Part = TextPart | CallStart | CallArguments


class _At(Enum):
    OUTSIDE = auto()
    NAME = auto()
    COLON = auto()
    ARGUMENTS = auto()
    CLOSING = auto()
    TEXT = auto()


class ToolParser:
    """Reads one choice. Every character that is fed is either told at once or kept until it is clear what it is.

    Args:
        syntax: how calls are told from text.
    """

    def __init__(self, syntax: Syntax) -> None:
        self._syntax = syntax
        self._buffer = ""
        self._at = _At.OUTSIDE
        self._in_calls = False
        self._value = _ValueEnd()
        self.num_calls = 0

    def feed(self, text: str) -> list[Part]:
        """What became clear with this text."""
        self._buffer += text
        return list(self._parts())

    def finish(self) -> list[Part]:
        """What is left when the choice has ended."""
        rest, self._buffer = self._buffer, ""
        told = self._at in (_At.OUTSIDE, _At.TEXT) and self._syntax is not Syntax.CALLS
        if not told or (self.num_calls and not rest.strip()):
            return []
        return [TextPart(rest)] if rest else []

    def _parts(self) -> Iterator[Part]:
        progress = True
        while progress:
            before = (self._at, len(self._buffer))
            yield from self._step()
            progress = bool(self._buffer) and before != (self._at, len(self._buffer))

    def _step(self) -> Iterator[Part]:
        if self._at is _At.OUTSIDE and self._syntax is Syntax.TAGGED:
            yield from self._outside_tags()
        elif self._at is _At.OUTSIDE:
            self._outside_json()
        elif self._at is _At.NAME:
            yield from self._name()
        elif self._at is _At.COLON:
            yield from self._colon()
        elif self._at is _At.ARGUMENTS:
            yield from self._arguments()
        elif self._at is _At.CLOSING:
            self._close()
        elif self._buffer:
            yield TextPart(self._take(len(self._buffer)))

    def _outside_tags(self) -> Iterator[Part]:
        position = self._buffer.find(BEGIN)
        if position < 0:
            clear = len(self._buffer) - _held(self._buffer)
            if clear:
                yield TextPart(self._take(clear))
            return
        before = self._take(position).rstrip()
        if before:
            yield TextPart(before)
        self._take(len(BEGIN))
        self._at = _At.NAME

    def _outside_json(self) -> None:
        rest = self._buffer.lstrip()
        if not rest:
            return
        if not self._in_calls and self._syntax is Syntax.CALLS_OR_JSON and not rest.startswith("["):
            self._at = _At.TEXT
            return
        self._in_calls = True
        self._buffer = rest.lstrip(_BETWEEN)
        if self._buffer:
            self._at = _At.NAME

    def _name(self) -> Iterator[Part]:
        match = _NAME.match(self._buffer)
        if match:
            self._take(match.end())
            self._at = _At.COLON
            yield CallStart(self.num_calls, match[1])
            self.num_calls += 1
        elif len(self._buffer) > _MAX_HEAD_CHARS:
            yield from self._no_call()

    def _colon(self) -> Iterator[Part]:
        match = _ARGUMENTS.match(self._buffer)
        if match:
            self._take(match.end())
            self._value = _ValueEnd()
            self._at = _At.ARGUMENTS
        elif len(self._buffer) > _MAX_HEAD_CHARS:
            yield from self._no_call()

    def _arguments(self) -> Iterator[Part]:
        end = self._value.find(self._buffer)
        if end is not None:
            self._at = _At.CLOSING
        piece = self._take(len(self._buffer) if end is None else end)
        if piece:
            yield CallArguments(self.num_calls - 1, piece)

    def _close(self) -> None:
        rest = self._buffer.lstrip().removeprefix("}").lstrip()
        if not self._buffer.strip():
            return
        if self._syntax is not Syntax.TAGGED:
            self._at, self._buffer = _At.OUTSIDE, rest
        elif rest.startswith(END):
            self._at, self._buffer = _At.OUTSIDE, rest.removeprefix(END)
        elif not END.startswith(rest):
            self._at = _At.OUTSIDE

    def _no_call(self) -> Iterator[Part]:
        """Not what the grammar promises: show it as it is."""
        self._at = _At.TEXT
        yield TextPart((BEGIN if self._syntax is Syntax.TAGGED else "") + self._take(len(self._buffer)))

    def _take(self, count: int) -> str:
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken


def _held(text: str) -> int:
    """Characters at the end that may belong to a tag, or be blanks before one."""
    tag = next((size for size in range(min(len(text), len(BEGIN) - 1), 0, -1) if BEGIN.startswith(text[-size:])), 0)
    rest = text[: len(text) - tag]
    return tag + len(rest) - len(rest.rstrip())


class _ValueEnd:
    """Finds the end of a JSON value that comes in pieces and begins with the first one."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def find(self, piece: str) -> int | None:
        """Where the value ends in this piece, exclusive; None: not yet. A number or word ends before what follows."""
        skip = 1 if self._escaped and piece else 0
        if skip:
            self._escaped = False
        for match in _MARK.finditer(piece, skip):
            if match.start() < skip:
                continue
            mark = match[0]
            if self._in_string:
                if mark == "\\":
                    skip = match.end() + 1
                    self._escaped = skip > len(piece)
                self._in_string = mark != '"'
            elif mark == '"':
                self._in_string = True
            elif mark in "{[":
                self._depth += 1
            elif self._depth == 0:
                return match.start()
            elif mark in "}]":
                self._depth -= 1
            if mark in '"}]' and not self._in_string and self._depth == 0:
                return match.end()
        return None
