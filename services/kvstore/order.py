"""Who of the objects of one kind leaves memory first: a segmented LRU. Pure.

::

    new ──> fresh ──used──> proven          leaves first: the least recently used of fresh, then of proven
              ^               │
              └── oldest, beyond half ──┘      (only as room is made: lookups shall cost little)

What was only ever written makes room before what was used again, so a stream of prompts that nobody repeats does not
flush those that come back (measured on recorded traffic: docs/kvstore.md). What was evicted lately and comes again is
proven at once: `Ghosts` remembers names.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain
from typing import Generic, Protocol, TypeVar


class Ranked(Protocol):
    """What an order notes on an object, and asks of it. Objects are told apart by identity."""

    proven: bool
    pins: int


_T = TypeVar("_T", bound=Ranked)
_DEMOTED_AT_ONCE = 8
"""For each object that leaves, so that nobody waits for half a million of them."""


class Order(Generic[_T]):
    """Objects, least recently used first; `proven` of an object says in which half it is."""

    def __init__(self) -> None:
        self._fresh: OrderedDict[_T, None] = OrderedDict()
        self._proven: OrderedDict[_T, None] = OrderedDict()

    def __iter__(self) -> Iterator[_T]:
        """The first to leave first."""
        return chain(self._fresh, self._proven)

    def add(self, one: _T) -> None:
        """Append an object to the half that `proven` says."""
        (self._proven if one.proven else self._fresh)[one] = None

    def discard(self, one: _T) -> None:
        """Take an object out; fine when it is not there."""
        (self._proven if one.proven else self._fresh).pop(one, None)

    def refresh(self, one: _T) -> None:
        """It was named just now, which proves nothing: the second of two writers names it as well."""
        (self._proven if one.proven else self._fresh).move_to_end(one)

    def use(self, one: _T) -> None:
        """It was used just now."""
        if one.proven:
            self._proven.move_to_end(one)
            return
        del self._fresh[one]
        one.proven = True
        self._proven[one] = None

    def victim(self) -> _T | None:
        """Who leaves first: whoever is found pinned counts as just used. None when all are pinned."""
        self._demote()
        for half in (self._fresh, self._proven):
            for _ in range(len(half)):
                one = next(iter(half))
                if not one.pins:
                    return one
                half.move_to_end(one)
        return None

    def _demote(self) -> None:
        for _ in range(_DEMOTED_AT_ONCE):
            if len(self._proven) <= len(self._fresh) + 1:
                return
            one = self._proven.popitem(last=False)[0]
            one.proven = False
            self._fresh[one] = None


class Ghosts:
    """Names of objects that were evicted and are nowhere else, the latest of them."""

    def __init__(self) -> None:
        self._names: OrderedDict[bytes, None] = OrderedDict()

    def add(self, name: bytes, limit: int) -> None:
        """Remember a name, and no more than `limit` of them."""
        self._names[name] = None
        while len(self._names) > limit:
            self._names.popitem(last=False)

    def recall(self, name: bytes) -> bool:
        """Whether it is remembered; it no longer is after that."""
        return self._names.pop(name, self) is None
