"""Which store processes there are, as a client sees it: what the registry lists, and who failed to answer. Pure.

A process that did not answer is left alone for a while, even if it is listed: it is asked again after that, or when it
comes back under another address. So one dead node costs one call now and then, not one per lookup.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

NODE, MASTER, LEADER = "node", "master", "leader"
"""Roles in the registry."""


@dataclass(slots=True, frozen=True)
class StoreProcess:
    """One process of the store.

    Attributes:
        node_id: its name; unique in the store.
        address: host:port.
        roles: what it is now.
    """

    node_id: str
    address: str
    roles: frozenset[str] = field(default_factory=lambda: frozenset({NODE}))


class StoreView:
    """The processes that a client may ask."""

    def __init__(self, back_off_s: float = 1.0) -> None:
        self._back_off_s = back_off_s
        self._processes: list[StoreProcess] = []
        self._gone_until_s: dict[str, float] = {}

    def listed(self, processes: Iterable[StoreProcess]) -> set[str]:
        """The registry answered; returns addresses that are no longer in use."""
        before = {one.address for one in self._processes}
        self._processes = sorted(processes, key=lambda one: one.node_id)
        unused = before - {one.address for one in self._processes}
        for address in unused:
            self._gone_until_s.pop(address, None)
        return unused

    def failed(self, address: str, now_s: float) -> None:
        """A process did not answer."""
        self._gone_until_s[address] = now_s + self._back_off_s

    def answered(self, address: str) -> None:
        """A process answered."""
        self._gone_until_s.pop(address, None)

    def nodes(self, now_s: float) -> list[StoreProcess]:
        """Who holds objects and may be asked."""
        return [one for one in self._processes if NODE in one.roles and self.usable(one.address, now_s)]

    def leader(self, now_s: float) -> StoreProcess | None:
        """Who knows where objects are; None when nobody does, or when asking the only node is as good."""
        if len(self._processes) < 2:
            return None
        for one in self._processes:
            if LEADER in one.roles and self.usable(one.address, now_s):
                return one
        return None

    def usable(self, address: str, now_s: float) -> bool:
        """Whether an address may be asked now."""
        return self._gone_until_s.get(address, 0.0) <= now_s
