"""Which router gets the next call: the least busy of those that work. Pure.

A router that failed a call is *down* until a probe finds it serving. Invariants: a router that works goes before one
that is down; a router that is down is still tried when nobody else is left, since a probe may be late; each is tried
once before any is tried again. Knows no time and makes no calls.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class _Router:
    down: bool = False
    num_calls: int = 0
    last_used: int = 0


class Routers:
    """All routers of one gateway.

    Args:
        addresses: host:port of each, at least one.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        assert addresses, "a gateway without a router"
        self._routers = {address: _Router() for address in addresses}
        self._uses = 0

    @property
    def addresses(self) -> list[str]:
        """Of all routers."""
        return list(self._routers)

    @property
    def any_up(self) -> bool:
        """Whether a router works, as far as is known."""
        return any(not router.down for router in self._routers.values())

    def pick(self, tried: Collection[str]) -> str | None:
        """The router for a call that failed on `tried` already; None when it failed on all."""
        left = [address for address in self._routers if address not in tried]
        return min(left, key=self._order, default=None)

    def _order(self, address: str) -> tuple[bool, int, int]:
        router = self._routers[address]
        return router.down, router.num_calls, router.last_used

    def began(self, address: str) -> None:
        """A call goes to a router."""
        self._uses += 1
        self._routers[address].num_calls += 1
        self._routers[address].last_used = self._uses

    def ended(self, address: str) -> None:
        """The call is over, however it ended."""
        self._routers[address].num_calls -= 1

    def failed(self, address: str) -> bool:
        """A router did not serve a call; True when it was thought to work."""
        was_up = not self._routers[address].down
        self._routers[address].down = True
        return was_up

    def serves(self, address: str) -> None:
        """A probe found a router serving."""
        self._routers[address].down = False
