"""Whether this process leads the store: a state machine over one lock and one number. Pure; time is an argument.

::

    following ──lock held──> gathering ──terms known──> leading(term)
        ^                        │                          │
        └── lock lost, not renewed in time, or a node refused our term ──┘

The lock (a registry key with a time to live) only keeps two processes from trying at once. What makes an old leader
harmless is the term: 1 + the highest that any reachable node has persisted; nodes refuse lower ones and, at the same
term, anybody but the first. So neither a frozen leader that wakes up nor a wiped registry lets two lead the same node.

A leader counts its lock from before it asked, by its own clock, and steps down before the lock can have ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

MAX_TERM = 1 << 62
"""Nodes that claim a higher one are mistaken: there would be no room for the leaders to come."""


class Phase(Enum):
    """See the picture."""

    FOLLOWING = "following"
    GATHERING = "gathering"
    LEADING = "leading"


@dataclass(slots=True, frozen=True)
class Ticked:
    """Time passed."""


@dataclass(slots=True, frozen=True)
class LockAnswered:
    """The registry said whether the lock is ours now; None: it did not answer.

    Attributes:
        asked_s: when the question was sent.
    """

    held: bool | None
    asked_s: float


@dataclass(slots=True, frozen=True)
class TermsGathered:
    """The highest term of all nodes that could be reached."""

    highest: int


@dataclass(slots=True, frozen=True)
class Refused:
    """A node knows a later leader, of this term."""

    term: int


Event = Ticked | LockAnswered | TermsGathered | Refused


@dataclass(slots=True, frozen=True)
class AskLock:
    """Take the lock or keep it."""


@dataclass(slots=True, frozen=True)
class FreeLock:
    """Let another have it."""


@dataclass(slots=True, frozen=True)
class GatherTerms:
    """Ask all nodes for their terms."""


@dataclass(slots=True, frozen=True)
class Lead:
    """Follow all nodes under this term."""

    term: int


@dataclass(slots=True, frozen=True)
class StepDown:
    """Lead no longer."""

    cause: str


Action = AskLock | FreeLock | GatherTerms | Lead | StepDown


@dataclass(slots=True, frozen=True)
class LockTimes:
    """Seconds: life of the lock, pause between two questions, and how long before its end a leader steps down."""

    ttl_s: float = 2.0
    interval_s: float = 0.5
    margin_s: float = 0.2


class Leadership:
    """Of one process.

    Attributes:
        phase: where it stands.
        term: while leading; the last one otherwise.
    """

    def __init__(self, times: LockTimes) -> None:
        self.phase = Phase.FOLLOWING
        self.term = 0
        self._times = times
        self._held_until_s = 0.0
        self._ask_at_s = 0.0
        self._asking = False
        self._highest_refused = 0

    def leads(self, now_s: float) -> bool:
        """Whether it leads and its lock cannot have ended."""
        return self.phase is Phase.LEADING and now_s < self._held_until_s

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """Fold in an event; returns what is to be done, in order."""
        actions = self._expire(now_s)
        match event:
            case LockAnswered():
                actions += self._lock_answered(event, now_s)
            case TermsGathered():
                actions += self._gathered(event.highest)
            case Refused():
                actions += self._refused(event.term)
            case Ticked():
                actions += self._tick(now_s)
        return actions

    def _tick(self, now_s: float) -> list[Action]:
        if self._asking or now_s < self._ask_at_s:
            return []
        self._asking = True
        self._ask_at_s = now_s + self._times.interval_s
        return [AskLock()]

    def _lock_answered(self, event: LockAnswered, now_s: float) -> list[Action]:
        self._asking = False
        if event.held is None:
            return []
        if not event.held:
            return self._step_down("another process has the lock")
        self._held_until_s = event.asked_s + self._times.ttl_s - self._times.margin_s
        if now_s >= self._held_until_s:
            return self._step_down("the lock came too late")
        if self.phase is not Phase.FOLLOWING:
            return []
        self.phase = Phase.GATHERING
        return [GatherTerms()]

    def _gathered(self, highest: int) -> list[Action]:
        if self.phase is not Phase.GATHERING:
            return []
        self.phase = Phase.LEADING
        self.term = 1 + max(highest if highest <= MAX_TERM else 0, self._highest_refused, self.term)
        return [Lead(self.term)]

    def _refused(self, term: int) -> list[Action]:
        if term > MAX_TERM:
            return []
        self._highest_refused = max(self._highest_refused, term)
        if self.phase is not Phase.LEADING or term < self.term:
            return []
        return [*self._step_down(f"a node follows a leader of term {term}"), FreeLock()]

    def _expire(self, now_s: float) -> list[Action]:
        return self._step_down("the lock was not renewed in time") if now_s >= self._held_until_s else []

    def _step_down(self, cause: str) -> list[Action]:
        if self.phase is Phase.FOLLOWING:
            return []
        self.phase = Phase.FOLLOWING
        return [StepDown(cause)]
