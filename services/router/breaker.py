"""Workers that answer pings but fail what they are asked to do get nothing for a while: a breaker per worker and leg.

::

    closed --`failures` in a row--> open --pause over--> half open --its one trial answers--> closed
                                      ^                     |
                                      '---- trial fails ----'   (the pause doubles, up to its longest)

The legs are apart: a worker that fails as prefill still decodes, and a failing prefill says nothing about the decode
worker that asked it. Invariants: the state follows from counts and time alone, nothing is latched; a half-open breaker
lets one use through at a time; a use that ends without a verdict (client gone, refused for load) changes no count; one
that began before the breaker opened cannot open it again. Pure: time is an argument.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter

from services.router.prefix_view import WorkerKey

_failures = attrgetter("failures")


class Role(StrEnum):
    """What a worker is used for."""

    DECODE = "decode"
    PREFILL = "prefill"


class BreakerState(StrEnum):
    """Whether a worker gets work of a role."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(slots=True, frozen=True)
class BreakerLimits:
    """When a breaker opens and for how long.

    Attributes:
        failures: in a row that open it.
        first_pause_s, longest_pause_s: it stays open; doubled with every trial that fails.
    """

    failures: int = 3
    first_pause_s: float = 1.0
    longest_pause_s: float = 30.0


@dataclass(slots=True)
class _Account:
    failures: int = 0
    opened_s: float = 0.0
    pause_s: float = 0.0
    on_trial: bool = False


class Use:
    """One attempt's use of a worker in a role. The owner calls `release` at the end, whatever came before."""

    __slots__ = ("_account", "_began_s", "_judged", "_limits", "_trial")

    def __init__(self, account: _Account, limits: BreakerLimits, now_s: float) -> None:
        self._account = account
        self._limits = limits
        self._began_s = now_s
        self._judged = False
        self._trial = account.failures >= limits.failures and not account.on_trial
        account.on_trial = account.on_trial or self._trial

    def answered(self) -> None:
        """The first token came: a trial is passed, but one more failure would open the breaker again."""
        account = self._account
        if self._trial:
            self._trial = account.on_trial = False
            account.failures = min(account.failures, self._limits.failures - 1)

    def succeeded(self) -> None:
        """The role's part is done: its worker is as good as new."""
        if not self._judged:
            self._judged = True
            self.release()
            self._account.failures = 0
            self._account.pause_s = 0.0

    def failed(self, now_s: float) -> None:
        """The worker is to blame for the attempt's failure."""
        account, limits = self._account, self._limits
        if self._judged:
            return
        self._judged = True
        was_open = account.failures >= limits.failures
        if was_open and self._began_s < account.opened_s:
            return
        self.release()
        account.failures += 1
        if account.failures >= limits.failures:
            account.pause_s = min(max(limits.first_pause_s, account.pause_s * 2), limits.longest_pause_s)
            account.opened_s = now_s

    def release(self) -> None:
        """The attempt is over; a trial without a verdict leaves its place to another. A second call does nothing."""
        if self._trial:
            self._trial = self._account.on_trial = False


class Breakers:
    """The breakers of all workers that failed lately, or are in use."""

    def __init__(self, limits: BreakerLimits) -> None:
        self._limits = limits
        self._accounts: dict[tuple[WorkerKey, Role], _Account] = {}

    def state(self, key: WorkerKey, role: Role, now_s: float) -> BreakerState:
        """Where a worker's breaker stands."""
        account = self._accounts.get((key, role))
        if account is None or account.failures < self._limits.failures:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now_s < account.opened_s + account.pause_s else BreakerState.HALF_OPEN

    def allows(self, key: WorkerKey, role: Role, now_s: float) -> bool:
        """Whether a worker may be used in a role now: it is closed, or half open with nobody on trial."""
        state = self.state(key, role, now_s)
        if state is BreakerState.HALF_OPEN:
            return not self._accounts[key, role].on_trial
        return state is BreakerState.CLOSED

    @property
    def all_closed(self) -> bool:
        """Whether every worker may be used in every role."""
        return max(map(_failures, self._accounts.values()), default=0) < self._limits.failures

    def use(self, key: WorkerKey, role: Role, now_s: float) -> Use:
        """A worker is used in a role, allowed or because nobody else is there."""
        account = self._accounts.setdefault((key, role), _Account())
        return Use(account, self._limits, now_s)

    def forget(self, key: WorkerKey) -> None:
        """The worker is gone."""
        for role in Role:
            self._accounts.pop((key, role), None)

    def num_open(self, now_s: float) -> Counter[Role]:
        """Breakers that are not closed, by role."""
        return Counter(role for key, role in self._accounts if self.state(key, role, now_s) is not BreakerState.CLOSED)
