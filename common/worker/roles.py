"""Which roles a worker has now, and what runs for each of them.

::

    had --set without it--> given up: what is new is refused, what runs may end --time is up--> what runs is failed
     ^                                                                                              (others take it)
     '----------------------------------- set with it ------------------------------------

Every worker serves the RPCs of both roles; this decides which of them take work. Index, tiers, id and incarnation do
not depend on roles, so nothing cached is lost by a change. Lives on the event loop; `names` may be read on any thread.
It knows requests by id only, and not whether others in the cluster have the role that is given up here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from math import isfinite

from common.base.clock import Clock, monotonic
from common.base.errors import InvalidRequest, Leg, PandoError, WrongRole
from common.base.roles import DECODE, PREFILL, ROLES

_LEGS = {PREFILL: Leg.PREFILL, DECODE: Leg.DECODE}

FailRequests = Callable[[Callable[[], PandoError], Collection[str]], None]
"""Ends the requests that have these ids and tells each why; those that have ended are fine."""


def in_order(names: Collection[str]) -> tuple[str, ...]:
    """Roles without repetition, in the usual order.

    Raises:
        InvalidRequest: param `roles`; none is named, or one is unknown.
    """
    if not names or not set(names) <= set(ROLES):
        raise InvalidRequest(f"roles are some of {', '.join(ROLES)}", param="roles")
    return tuple(role for role in ROLES if role in names)


class WorkerRoles:
    """The roles of one worker.

    Args:
        worker_id: for messages.
        names: at the start.
        fail: ends what still runs when a role's time is up.
        drain_s: seconds until then, unless `set` says otherwise.
        clock: monotonic seconds.
    """

    def __init__(
        self, worker_id: str, names: Sequence[str], fail: FailRequests, *, drain_s: float, clock: Clock = monotonic
    ) -> None:
        self.names = in_order(names)
        self.num_changes = 0
        self._worker_id = worker_id
        self._fail = fail
        self._drain_s = drain_s
        self._clock = clock
        self._changed_at_s: float | None = None
        self._running: dict[str, list[str]] = {role: [] for role in ROLES}
        self._expiries: dict[str, asyncio.TimerHandle] = {}

    @property
    def changed_s(self) -> float:
        """Seconds since the last change; 0 when there was none."""
        return 0.0 if self._changed_at_s is None else self._clock() - self._changed_at_s

    def num_running(self, role: str) -> int:
        """Requests that run for a role, whether the worker still has it or not."""
        return len(self._running[role])

    def check(self, role: str) -> None:
        """Raise WrongRole unless the worker has the role now."""
        if role not in self.names:
            raise self._refusal(role)

    @contextmanager
    def running(self, role: str, request_id: str) -> Iterator[None]:
        """Count a request for a role while the body runs. Raises WrongRole unless the worker has the role now."""
        self.check(role)
        self._running[role].append(request_id)
        try:
            yield
        finally:
            self._running[role].remove(request_id)

    def set(self, names: Collection[str], drain_s: float | None = None) -> tuple[str, ...]:
        """Have these roles from now on, and no others; returns those before.

        Args:
            names: one or both.
            drain_s: seconds that requests of a role given up have to end; None: as the worker was told.

        Raises:
            InvalidRequest: a wrong value; nothing has changed.
        """
        wanted, before = in_order(names), self.names
        drain_s = self._drain_s if drain_s is None else drain_s
        if not isfinite(drain_s) or drain_s < 0:
            raise InvalidRequest("drain_s is a number of seconds", param="drain_s")
        self.names = wanted
        if wanted != before:
            self.num_changes += 1
            self._changed_at_s = self._clock()
        for role in ROLES:
            self._cancel_expiry(role)
            if role not in wanted and self._running[role]:
                loop = asyncio.get_running_loop()
                self._expiries[role] = loop.call_later(drain_s, self._expire, role)
        return before

    def close(self) -> None:
        """Forget what was to expire."""
        for role in ROLES:
            self._cancel_expiry(role)

    def _cancel_expiry(self, role: str) -> None:
        expiry = self._expiries.pop(role, None)
        if expiry is not None:
            expiry.cancel()

    def _expire(self, role: str) -> None:
        del self._expiries[role]
        self._fail(lambda: self._refusal(role), frozenset(self._running[role]))

    def _refusal(self, role: str) -> WrongRole:
        return WrongRole(f"worker {self._worker_id} does not {role} now", leg=_LEGS[role])
