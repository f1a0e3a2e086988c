"""Listing and checking a node's objects, page by page.

The first page takes a list of the names there are; later pages go through it. An object that has gone meanwhile is left
out, one that came since is not in it. A list that nobody goes on with is forgotten after a while.
"""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass

from common.base.errors import InvalidRequest, Leg
from common.cache.kvstore_wire import prefix_of
from common.transport.checksum import checksum
from services.kvstore.holdings import Holdings
from services.kvstore.memory import Object

LIST_PAGE = 1000
VERIFY_PAGE = 64
_TOKEN = struct.Struct("<IQ")
_MAX_LISTS = 8
_LIST_LIFE_S = 60.0


@dataclass(slots=True)
class _List:
    names: list[bytes]
    used_s: float


class Catalog:
    """Pages over the objects of a node; lives on its loop."""

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self._lists: dict[int, _List] = {}
        self._next_number = 1

    def page(self, token: bytes, namespace: bytes, size: int) -> tuple[list[Object], bytes]:
        """Objects of a page and the token of the next; an empty one after the last.

        Raises:
            InvalidRequest: the token is none of ours, or too old.
        """
        number, start = self._start(token, namespace)
        names = self._lists[number].names
        objects = self._holdings.objects
        found = [one for name in names[start : start + size] if (one := objects.get(name)) is not None]
        if start + size < len(names):
            return found, _TOKEN.pack(number, start + size)
        del self._lists[number]
        return found, b""

    async def verify(self, token: bytes, namespace: bytes) -> tuple[int, list[bytes], bytes]:
        """Check a page: (objects checked, names of damaged ones, which are removed, token of the next page)."""
        page, following = self.page(token, namespace, VERIFY_PAGE)
        damaged: list[bytes] = []
        for one in page:
            self._holdings.objects.pin(one)
            try:
                if not await self._is_whole(one) and one.visible:
                    damaged.append(one.name)
                    self._holdings.metrics.damaged.inc()
                    self._holdings.remove([one.name])
            finally:
                self._holdings.objects.unpin(one)
        self._holdings.settle()
        return len(page), damaged, following

    async def _is_whole(self, one: Object) -> bool:
        if one.run is not None and one.header:
            return await asyncio.to_thread(checksum, self._holdings.arena.view(one.run)) == one.checksum
        return self._holdings.log is None or await self._holdings.log.check(one)

    def _start(self, token: bytes, namespace: bytes) -> tuple[int, int]:
        now_s = self._holdings.clock()
        self._forget_old(now_s)
        if not token:
            prefix = prefix_of(namespace) if namespace else b""
            number, self._next_number = self._next_number, self._next_number + 1
            names = [name for name in self._holdings.objects if name.startswith(prefix)]
            self._lists[number] = _List(names, now_s)
            return number, 0
        if len(token) == _TOKEN.size:
            number, start = _TOKEN.unpack(token)
            if number in self._lists:
                self._lists[number].used_s = now_s
                return number, start
        raise InvalidRequest("this page token is too old: begin again", reason="bad_page_token", leg=Leg.STORE)

    def _forget_old(self, now_s: float) -> None:
        by_age = sorted(self._lists, key=lambda number: self._lists[number].used_s)
        old = [number for number in by_age if now_s - self._lists[number].used_s > _LIST_LIFE_S]
        for number in {*old, *by_age[: max(0, len(by_age) + 1 - _MAX_LISTS)]}:
            del self._lists[number]
