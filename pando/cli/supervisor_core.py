"""What to start, stop and restart, and when: the pure core of the local supervisor. Events in, actions out.

Phases of a service::

    waiting -> starting -> ready -> (exit) backoff -> starting ...
                                             \\-> failed, after `restart_limit` exits in a row
    any -> stopping -> stopped

* While the cluster comes up for the first time, any exit ends it: a bad flag or a damaged model will not heal.
* Once it has been ready, a service that exits is started again: at once after a stable life, else after a growing
  pause, unless it never stays up.
* Services may be added and removed while it runs; one that is removed is forgotten when it has ended.
* Stopping goes layer by layer from the top; a service that outlives its grace time is killed.

It knows no processes, clocks, files or signals: time comes in as `now_s`, and names stand for processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias


class Phase(StrEnum):
    """Where a service is in its life."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    BACKOFF = "backoff"
    FAILED = "failed"
    STOPPING = "stopping"
    STOPPED = "stopped"


ALIVE = frozenset({Phase.STARTING, Phase.READY, Phase.STOPPING})


@dataclass(slots=True, frozen=True)
class Began:
    """The supervisor runs; the first event."""


@dataclass(slots=True, frozen=True)
class Ticked:
    """Time passed."""


@dataclass(slots=True, frozen=True)
class BecameReady:
    """A service answered its probe."""

    name: str


@dataclass(slots=True, frozen=True)
class Exited:
    """A process ended; `code` as in subprocess: negative for a signal."""

    name: str
    code: int


@dataclass(slots=True, frozen=True)
class StopAsked:
    """Somebody wants the cluster down; a second time: at once."""


@dataclass(slots=True, frozen=True)
class Added:
    """Further services shall run."""

    services: tuple[Service, ...]


@dataclass(slots=True, frozen=True)
class Removed:
    """These services shall run no more."""

    names: tuple[str, ...]


Event: TypeAlias = "Began | Ticked | BecameReady | Exited | StopAsked | Added | Removed"


@dataclass(slots=True, frozen=True)
class Start:
    """Start the service's process."""

    name: str


@dataclass(slots=True, frozen=True)
class Signal:
    """Ask the process to end, or kill it."""

    name: str
    kill: bool


@dataclass(slots=True, frozen=True)
class Note:
    """Tell the user."""

    text: str


Action = Start | Signal | Note


@dataclass(slots=True, frozen=True)
class Limits:
    """Bounds of patience. Seconds, except `restart_limit`."""

    start_timeout_s: float = 120.0
    first_pause_s: float = 0.25
    longest_pause_s: float = 10.0
    stable_after_s: float = 30.0
    restart_limit: int = 20


@dataclass(slots=True)
class Service:
    """One service as the core sees it.

    Attributes:
        due_s: when the next deadline of its phase is: start timeout, end of the pause, end of the grace time.
        exits_in_a_row: exits without a stable life between them.
        restarts: starts after the first.
        leaving: it was removed and has not ended yet.
    """

    name: str
    layer: int
    grace_s: float
    phase: Phase = Phase.WAITING
    due_s: float = float("inf")
    exits_in_a_row: int = 0
    restarts: int = 0
    last_exit: str = ""
    leaving: bool = False

    def enter(self, phase: Phase, due_s: float = float("inf")) -> None:
        """Change phase."""
        self.phase, self.due_s = phase, due_s


@dataclass(slots=True)
class SupervisorCore:
    """The state machine of one local cluster."""

    services: list[Service]
    limits: Limits = field(default_factory=Limits)
    been_ready: bool = False
    stopping: bool = False
    failure: str = ""
    """Why the cluster never came up; empty otherwise."""

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """Advance by one event."""
        match event:
            case Began():
                return self._start_waiting(now_s)
            case Ticked():
                return self._tick(now_s)
            case BecameReady(name):
                return self._became_ready(self._find(name), now_s)
            case Exited(name, code):
                return self._exited(self._find(name), code, now_s)
            case StopAsked():
                return self._stop(now_s) if not self.stopping else self._kill_all()
            case Added(services):
                return self._add(services, now_s)
            case Removed(names):
                return [action for name in names for action in self._remove(self._find(name), now_s)]

    @property
    def state(self) -> str:
        """starting, ready, degraded, stopping, stopped or failed."""
        if self.done:
            return "failed" if self.failure else "stopped"
        if self.stopping:
            return "stopping"
        if not self.been_ready:
            return "starting"
        return "ready" if all(service.phase is Phase.READY for service in self.services) else "degraded"

    @property
    def done(self) -> bool:
        """Nothing runs and nothing will be started."""
        return self.stopping and not any(service.phase in ALIVE for service in self.services)

    def next_due_s(self) -> float:
        """When time alone changes something; infinity for never."""
        return min((service.due_s for service in self.services), default=float("inf"))

    def _find(self, name: str) -> Service:
        return next(service for service in self.services if service.name == name)

    def _start_waiting(self, now_s: float) -> list[Action]:
        """Start the first layer, or all once the first layer is ready."""
        first = min(service.layer for service in self.services)
        base_ready = all(service.phase is Phase.READY for service in self.services if service.layer == first)
        waiting = [service for service in self.services if service.phase is Phase.WAITING]
        return [self._start(one, now_s) for one in waiting if base_ready or one.layer == first]

    def _add(self, services: Sequence[Service], now_s: float) -> list[Action]:
        if self.stopping:
            return []
        self.services.extend(services)
        return self._start_waiting(now_s)

    def _remove(self, service: Service, now_s: float) -> list[Action]:
        if self.stopping or service.leaving:
            return []
        service.leaving = True
        if service.phase not in ALIVE:
            self.services.remove(service)
            return []
        service.enter(Phase.STOPPING, now_s + service.grace_s)
        return [Signal(service.name, kill=False)]

    def _start(self, service: Service, now_s: float) -> Action:
        service.enter(Phase.STARTING, now_s + self.limits.start_timeout_s)
        return Start(service.name)

    def _became_ready(self, service: Service, now_s: float) -> list[Action]:
        if service.phase is not Phase.STARTING:
            return []
        service.enter(Phase.READY, now_s + self.limits.stable_after_s)
        actions = self._start_waiting(now_s)
        if service.restarts:
            actions.append(Note(f"{service.name} is ready again"))
        if all(one.phase is Phase.READY for one in self.services):
            self.been_ready = True
        return actions

    def _exited(self, service: Service, code: int, now_s: float) -> list[Action]:
        service.last_exit = describe_exit(code)
        if self.stopping:
            service.enter(Phase.STOPPED)
            return self._stop_next_layer(now_s)
        if service.leaving:
            self.services.remove(service)
            return [Note(f"{service.name} has left")]
        if not self.been_ready:
            service.enter(Phase.FAILED)
            return self._fail(f"{service.name} {service.last_exit} while starting", now_s)
        return self._pause(service, now_s)

    def _pause(self, service: Service, now_s: float) -> list[Action]:
        service.exits_in_a_row += 1
        if service.exits_in_a_row > self.limits.restart_limit:
            service.enter(Phase.FAILED)
            return [Note(f"{service.name} {service.last_exit}; given up after {service.exits_in_a_row} exits in a row")]
        pause_s = self._pause_s(service.exits_in_a_row)
        service.enter(Phase.BACKOFF, now_s + pause_s)
        return [Note(f"{service.name} {service.last_exit}; starting it again in {pause_s:g} s")]

    def _pause_s(self, exits_in_a_row: int) -> float:
        if exits_in_a_row == 1:
            return 0.0
        return min(self.limits.first_pause_s * 2.0 ** (exits_in_a_row - 2), self.limits.longest_pause_s)

    def _fail(self, reason: str, now_s: float) -> list[Action]:
        self.failure = reason
        return [Note(reason), *self._stop(now_s)]

    def _tick(self, now_s: float) -> list[Action]:
        actions: list[Action] = []
        for service in self.services:
            if service.due_s <= now_s:
                actions += self._due(service, now_s)
        return actions

    def _due(self, service: Service, now_s: float) -> list[Action]:
        """The deadline of the service's phase has come."""
        service.due_s = float("inf")
        match service.phase:
            case Phase.READY:
                service.exits_in_a_row = 0
                return []
            case Phase.BACKOFF:
                service.restarts += 1
                return [self._start(service, now_s)]
            case Phase.STARTING:
                text = f"{service.name} was not ready within {self.limits.start_timeout_s:g} s"
                if not self.been_ready:
                    return self._fail(text, now_s)
                return [Note(text), Signal(service.name, kill=True)]
            case Phase.STOPPING:
                return [Note(f"{service.name} outlived its grace time"), Signal(service.name, kill=True)]
            case _:
                return []

    def _stop(self, now_s: float) -> list[Action]:
        self.stopping = True
        for service in self.services:
            if service.phase in (Phase.WAITING, Phase.BACKOFF):
                service.enter(Phase.STOPPED)
            elif service.phase is not Phase.STOPPING:  # one that leaves keeps its deadline
                service.due_s = float("inf")
        return self._stop_next_layer(now_s)

    def _stop_next_layer(self, now_s: float) -> list[Action]:
        """Ask the highest layer that still runs to end; nothing if it has been asked already."""
        alive = [service for service in self.services if service.phase in ALIVE]
        top = max((service.layer for service in alive), default=-1)
        asked = [service for service in alive if service.layer == top and service.phase is not Phase.STOPPING]
        for service in asked:
            service.enter(Phase.STOPPING, now_s + service.grace_s)
        return [Signal(service.name, kill=False) for service in asked]

    def _kill_all(self) -> list[Action]:
        alive = [service for service in self.services if service.phase in ALIVE]
        for service in alive:
            service.enter(Phase.STOPPING)
        return [Signal(service.name, kill=True) for service in alive]


def describe_exit(code: int) -> str:
    """How a process ended, in words."""
    return f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
