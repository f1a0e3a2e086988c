"""Which node holds which object, as a leader knows it: soft state, learnt from the nodes. Pure.

A wrong entry costs its reader one miss. The directory is complete when it has the whole inventory of every node that
is expected; only then is a miss here a miss everywhere. A node that is lost takes all its entries with it at once; the
memory they took is given back in small portions (`sweep`), so that nobody waits for that.

It does not know addresses, sizes or time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Inventory:
    names: set[bytes] = field(default_factory=set)
    complete: bool = False


class Directory:
    """Names by node."""

    def __init__(self) -> None:
        self._inventories: dict[str, _Inventory] = {}
        self._expected: frozenset[str] | None = None
        self._rubbish: list[set[bytes]] = []

    def __len__(self) -> int:
        return sum(len(inventory.names) for inventory in list(self._inventories.values()))  # read by other threads

    @property
    def num_nodes(self) -> int:
        """Nodes with an inventory here."""
        return len(self._inventories)

    @property
    def complete(self) -> bool:
        """Whether a miss here is a miss everywhere."""
        return self._expected is not None and all(
            (inventory := self._inventories.get(node)) is not None and inventory.complete for node in self._expected
        )

    def expect(self, nodes: Iterable[str] | None) -> None:
        """Which nodes there are, None: nobody knows. The entries of others stay until they are dropped."""
        self._expected = None if nodes is None else frozenset(nodes)

    def begin(self, node: str) -> None:
        """A snapshot of a node begins: what was known of it is forgotten."""
        self.drop(node)
        self._inventories[node] = _Inventory()

    def end_snapshot(self, node: str) -> None:
        """All names that the node had have come."""
        self._inventories[node].complete = True

    def add(self, node: str, names: Iterable[bytes]) -> None:
        """A node that has begun holds these now."""
        self._inventories[node].names.update(names)

    def remove(self, node: str, names: Iterable[bytes]) -> None:
        """It no longer does."""
        self._inventories[node].names.difference_update(names)

    def drop(self, node: str) -> None:
        """Forget a node; unknown ones are fine."""
        gone = self._inventories.pop(node, None)
        if gone is not None and gone.names:
            self._rubbish.append(gone.names)

    def sweep(self, limit: int) -> bool:
        """Free the memory of up to `limit` forgotten entries; whether there are more."""
        while self._rubbish and limit > 0:
            names = self._rubbish[-1]
            for _ in range(min(limit, len(names))):
                names.pop()
                limit -= 1
            if not names:
                self._rubbish.pop()
        return bool(self._rubbish)

    def holders(self, name: bytes) -> list[str]:
        """The nodes that hold an object."""
        return [node for node, inventory in self._inventories.items() if name in inventory.names]
