"""Who waits, and whose turn it is: fair shares of tokens for tenants, priorities with ageing within each.

Deficit round robin (Shreedhar and Varghese 1995), in tokens::

    ring of tenants that wait:   A ---> B ---> C ---> (A)      a visit gives quantum x weight tokens of credit;
                                 |                             requests leave while the credit covers their cost
                                 '- its requests, by rank      what is left of it waits for the next visit

A request's rank is its arrival, moved forward by its priority, each point counting as some seconds of waiting: higher
goes first, and nobody starves, because whoever arrives late enough ranks behind. Output tokens are charged when they
come, while another tenant waits: credit may become debt. Invariants: a tenant alone never waits for credit; credit and
debt end when nobody waits; a tenant is known exactly while it has open requests. Pure; knows nothing about workers,
limits or time (a rank is a number).
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from common.base.limits import MAX_TENANT_WEIGHT

QUANTUM_TOKENS = 256
MAX_PRIORITY = 100
"""Either way: beyond it a priority counts as this much."""


@dataclass(slots=True, eq=False)
class Entry:
    """A request in the queue, or served from it and still open.

    Attributes:
        tenant: whose it is.
        cost_tokens: what its turn costs, at least 1.
        priority: higher goes first.
        rank: lower goes first.
        order: breaks ties; given by the queue.
        waits: it is in the queue.
    """

    tenant: str
    cost_tokens: int
    priority: int = 0
    rank: float = 0.0
    order: int = 0
    waits: bool = False

    @property
    def key(self) -> tuple[float, int]:
        """Sort key within its tenant."""
        return self.rank, self.order


@dataclass(slots=True, eq=False)
class _Tenant:
    weight: int = 1
    waiting: list[Entry] = field(default_factory=list)
    queued_tokens: int = 0
    num_open: int = 0
    credit_tokens: int = 0
    contest: int = 0
    visited: bool = False

    @property
    def grant_tokens(self) -> int:
        """Credit of one visit."""
        return QUANTUM_TOKENS * self.weight

    @property
    def fill(self) -> float:
        """Tokens that wait, by weight."""
        return self.queued_tokens / self.weight


class FairQueue:
    """Waiting requests of all tenants."""

    def __init__(self) -> None:
        """Start empty."""
        self._tenants: dict[str, _Tenant] = {}
        self._ring: deque[_Tenant] = deque()
        self._contest = 0
        self._num_entries = 0
        self.queued_tokens = 0
        self.num_waiting = 0

    def __len__(self) -> int:
        """Requests that wait."""
        return self.num_waiting

    @property
    def num_tenants(self) -> int:
        """Tenants with requests that wait."""
        return len(self._ring)

    @property
    def num_known(self) -> int:
        """Tenants with open requests."""
        return len(self._tenants)

    def open(self, entry: Entry, weight: int) -> None:
        """Let a new request wait; it stays open until `close`. The tenant's weight is the one given last."""
        tenant = self._tenants.get(entry.tenant)
        if tenant is None:
            tenant = self._tenants[entry.tenant] = _Tenant(contest=self._contest)
        tenant.weight = weight
        tenant.num_open += 1
        self._num_entries += 1
        entry.order = self._num_entries
        self._insert(tenant, entry)

    def close(self, entry: Entry) -> None:
        """End an open request, wherever it is."""
        tenant = self._tenants[entry.tenant]
        if entry.waits:
            self._remove(tenant, entry)
        tenant.num_open -= 1
        if not tenant.num_open:
            del self._tenants[entry.tenant]

    def pop(self) -> Entry | None:
        """Serve the request whose turn it is; None when nobody waits. It stays open."""
        if not self._ring:
            return None
        tenant = self._whose_turn() if len(self._ring) > 1 else self._alone()
        entry = tenant.waiting[0]
        tenant.credit_tokens -= entry.cost_tokens
        self._remove(tenant, entry)
        return entry

    def put_back(self, entry: Entry) -> None:
        """Undo a `pop`: the request waits again, in its old place, and its turn costs nothing."""
        tenant = self._tenants[entry.tenant]
        self._insert(tenant, entry)
        tenant.credit_tokens += entry.cost_tokens

    def charge(self, name: str, num_tokens: int) -> None:
        """An open request of a tenant has given output: it costs credit while another tenant waits."""
        tenant = self._tenants[name]
        if len(self._ring) > 1 or (self._ring and self._ring[0] is not tenant):
            self._settle(tenant)
            tenant.credit_tokens -= num_tokens

    def tokens_before(self, name: str, weight: int, rank: float) -> float:
        """Tokens that are served before a new request of this rank, about: those of its tenant that rank before it,
        each with its share of the others', and never more than all."""
        tenant = self._tenants.get(name)
        if tenant is None:
            return 0.0
        own = sum(entry.cost_tokens for entry in tenant.waiting if entry.rank <= rank)
        others = sum(other.weight for other in self._ring if other is not tenant)
        return min(own * (1 + others / weight), self.queued_tokens)

    def victims(self, new: Entry, weight: int, num_requests: int, num_tokens: int) -> list[Entry] | None:
        """Who gives way to a new request so that so many requests and tokens less wait; None: it does not get in.

        The last of the tenant that fills the queue most for its weight goes first, as long as the new one's tenant
        would fill it less; when it is that one itself, only a request of lower priority goes.
        """
        own = self._tenants.get(new.tenant)
        mine = (new.cost_tokens + (own.queued_tokens if own else 0)) / weight
        fill = {id(tenant): tenant.fill for tenant in self._ring}
        left = {id(tenant): list(tenant.waiting) for tenant in self._ring}
        going: list[Entry] = []
        while len(going) < num_requests or sum(entry.cost_tokens for entry in going) < num_tokens:
            fullest = max(self._ring, key=lambda tenant: fill[id(tenant)])
            last = left[id(fullest)].pop() if left[id(fullest)] else None
            if last is None or not (last.priority < new.priority if fullest is own else mine < fill[id(fullest)]):
                return None
            going.append(last)
            fill[id(fullest)] -= last.cost_tokens / fullest.weight
        return going

    def __iter__(self) -> Iterator[Entry]:
        """All that wait; no order among tenants."""
        for tenant in self._ring:
            yield from tenant.waiting

    def _alone(self) -> _Tenant:
        """The only tenant that waits: its visit lasts, and gives what credit it needs."""
        tenant = self._ring[0]
        tenant.visited = True
        tenant.credit_tokens = max(tenant.credit_tokens, tenant.waiting[0].cost_tokens)
        return tenant

    def _whose_turn(self) -> _Tenant:
        tenant = self._visit()
        if tenant is None:
            self._skip_rounds()
            tenant = self._visit()
        assert tenant is not None, "credit for a request, and nobody has it"
        return tenant

    def _visit(self) -> _Tenant | None:
        """One round at most: the tenant whose first request its credit covers."""
        for _ in range(len(self._ring)):
            tenant = self._ring[0]
            if not tenant.visited:
                tenant.visited = True
                tenant.credit_tokens += tenant.grant_tokens
            if tenant.credit_tokens >= tenant.waiting[0].cost_tokens:
                return tenant
            tenant.visited = False
            self._ring.rotate(-1)
        return None

    def _skip_rounds(self) -> None:
        """Give everybody the credit of the rounds after which the next one serves somebody."""
        rounds = min(-(-_missing(tenant) // tenant.grant_tokens) for tenant in self._ring) - 1
        for tenant in self._ring:
            tenant.credit_tokens += rounds * tenant.grant_tokens

    def _insert(self, tenant: _Tenant, entry: Entry) -> None:
        if not tenant.waiting:
            self._settle(tenant)
            tenant.credit_tokens = min(tenant.credit_tokens, 0)
            tenant.visited = False
            self._ring.append(tenant)
        insort(tenant.waiting, entry, key=lambda one: one.key)
        entry.waits = True
        tenant.queued_tokens += entry.cost_tokens
        self.queued_tokens += entry.cost_tokens
        self.num_waiting += 1

    def _remove(self, tenant: _Tenant, entry: Entry) -> None:
        tenant.waiting.remove(entry)
        entry.waits = False
        tenant.queued_tokens -= entry.cost_tokens
        self.queued_tokens -= entry.cost_tokens
        self.num_waiting -= 1
        if not tenant.waiting:
            self._ring.remove(tenant)
            if not self._ring:
                self._contest += 1

    def _settle(self, tenant: _Tenant) -> None:
        """Credit and debt from before the last time that nobody waited are void."""
        if tenant.contest != self._contest:
            tenant.contest = self._contest
            tenant.credit_tokens = 0


def _missing(tenant: _Tenant) -> int:
    return tenant.waiting[0].cost_tokens - tenant.credit_tokens


def rank(arrival_s: float, priority: int, ageing_s: float) -> float:
    """The rank of a request: each point of priority counts as `ageing_s` of waiting."""
    return arrival_s - max(-MAX_PRIORITY, min(MAX_PRIORITY, priority)) * ageing_s


def weight_of(asked: int) -> int:
    """A tenant's weight in bounds; 0 is the usual one."""
    return max(1, min(MAX_TENANT_WEIGHT, asked))
