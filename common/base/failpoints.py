"""Named places where tests and game days make things go wrong on purpose.

A component registers its failpoints at start and asks `hit(name)` at each of them; the answer is almost always None.
Rules are armed by files in a folder or by `arm` (the admin RPC); `common.base.failpoint_rules` has their syntax.

Off by default: a process that was not started with failpoints has `DISABLED`, which never fires and refuses to be
armed. There is no other way in: nothing that a client sends reaches `arm`.

`hit` may be called from any thread. It does not know what the names stand for.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from common.base.clock import Clock, monotonic
from common.base.errors import InvalidRequest, PandoError, Unsupported
from common.base.failpoint_files import FailpointFiles
from common.base.failpoint_rules import Action, ArmedRule, Fault, Rule, parse_rules
from common.base.logging import get_logger

POLL_S = 0.5
"""At least so many seconds are between two looks at the folder."""


class Kind(StrEnum):
    """What can go wrong at a failpoint."""

    CALL = "call"
    """It can be late, fail or never answer."""
    DATA = "data"
    """As CALL; and there is a payload that can be cut or flipped."""


_POSSIBLE = {
    Kind.CALL: frozenset({Action.DELAY, Action.FAIL, Action.DROP, Action.OFF}),
    Kind.DATA: frozenset(Action),
}


class Source(StrEnum):
    """Who armed a rule."""

    FILE = "file"
    ADMIN = "admin"


@dataclass(slots=True)
class Point:
    """A registered failpoint: what it is, how often it was reached, and how often a fault came of that."""

    name: str
    kind: Kind
    description: str
    hits: int = 0
    fired: int = 0


@dataclass(slots=True, frozen=True)
class Armed:
    """Rules under one name, which may end with `*`."""

    name: str
    source: Source
    rules: tuple[ArmedRule, ...]

    def matches(self, name: str) -> bool:
        """Whether the rules are for the failpoint of this name."""
        return name.startswith(self.name[:-1]) if self.name.endswith("*") else name == self.name

    @property
    def text(self) -> str:
        """The rules as text."""
        return ";".join(str(armed.rule) for armed in self.rules)


class Failpoints:
    """The failpoints of one process.

    Rules under several names that match one failpoint are tried in the order in which they were armed. A wildcard means
    those of its failpoints at which its action can happen.

    Args:
        folder: of the rule files; None for none.
        seed: of all rules that bring none.
        clock: for looking at the folder at most every `POLL_S`.
    """

    def __init__(self, folder: Path | None = None, *, seed: int = 0, clock: Clock = monotonic) -> None:
        self._files = None if folder is None else FailpointFiles(folder)
        self._seed = seed
        self._clock = clock
        self._next_poll_s = 0.0
        self._lock = threading.Lock()
        self._points: dict[str, Point] = {}
        self._armed: dict[tuple[Source, str], Armed] = {}
        self._at: dict[str, list[ArmedRule]] = {}

    @property
    def enabled(self) -> bool:
        """Whether anything can be armed."""
        return True

    def register(self, name: str, kind: Kind, description: str) -> None:
        """Make a failpoint known; again with the same words is fine."""
        with self._lock:
            point = self._points.setdefault(name, Point(name, kind, description))
            assert (point.kind, point.description) == (kind, description), f"two failpoints are called {name}"
            self._compile()

    def hit(self, name: str) -> Fault | None:
        """What to suffer at a registered failpoint now; None, nearly always, is nothing."""
        with self._lock:
            self._poll()
            point = self._points[name]
            point.hits += 1
            for rule in self._at.get(name, ()):
                fault = rule.hit()
                if fault is not None:
                    point.fired += fault.action is not Action.OFF
                    return None if fault.action is Action.OFF else fault
            return None

    def arm(self, name: str, text: str) -> Armed:
        """Arm a failpoint, or all that a name ending in `*` matches, in place of what `arm` gave that name before.

        Returns what is armed under the name now.

        Raises:
            InvalidRequest: no such failpoint (the message lists them), bad rules, or nothing there can suffer them.
            Unsupported: this process was started without failpoints.
        """
        rules = parse_rules(text)
        with self._lock:
            self._check(name, rules)
            self._put(Source.ADMIN, name, rules)
            self._compile()
            return self._armed[Source.ADMIN, name]

    def disarm(self, name: str) -> None:
        """Take back what `arm` did under this very name.

        Raises:
            InvalidRequest: nothing is armed under it, or a file arms it.
        """
        with self._lock:
            if self._armed.pop((Source.ADMIN, name), None) is None:
                by_file = (Source.FILE, name) in self._armed
                why = "is armed by a file; remove the file" if by_file else "is not armed"
                raise InvalidRequest(f"failpoint {name} {why}", param="name")
            self._compile()

    def disarm_all(self) -> int:
        """Take back all that `arm` did; files stay. Returns how many names that were."""
        with self._lock:
            ours = [key for key in self._armed if key[0] is Source.ADMIN]
            for key in ours:
                del self._armed[key]
            self._compile()
            return len(ours)

    def points(self) -> list[Point]:
        """Copies of all registered failpoints, by name."""
        with self._lock:
            return [Point(p.name, p.kind, p.description, p.hits, p.fired) for _, p in sorted(self._points.items())]

    def armed(self) -> list[Armed]:
        """What is armed now, in order."""
        with self._lock:
            self._poll()
            return list(self._armed.values())

    def _poll(self) -> None:
        if self._files is None or (now := self._clock()) < self._next_poll_s:
            return
        self._next_poll_s = now + POLL_S
        changes = self._files.poll()
        for name, rules in changes.items():
            self._put_file(name, rules)
        if changes:
            self._compile()

    def _put_file(self, name: str, rules: Sequence[Rule]) -> None:
        """Files may be there before their component registers, so an unknown name waits; who mistyped it is told."""
        try:
            if rules:
                self._check(name, rules)
        except InvalidRequest as error:
            get_logger().error("a failpoint file does nothing so far", name=name, why=error.message)
        self._put(Source.FILE, name, rules)

    def _put(self, source: Source, name: str, rules: Sequence[Rule]) -> None:
        self._armed.pop((source, name), None)
        if rules:
            armed = tuple(ArmedRule(rule, f"{self._seed}:{name}:{index}") for index, rule in enumerate(rules))
            self._armed[source, name] = Armed(name, source, armed)

    def _check(self, name: str, rules: Sequence[Rule]) -> None:
        wanted = Armed(name, Source.ADMIN, ())
        matching = [point for point in self._points.values() if wanted.matches(point.name)]
        if not matching:
            known = ", ".join(sorted(self._points)) or "none"
            raise InvalidRequest(f"no failpoint is called {name!r}; known: {known}", param="name")
        for rule in rules:
            if not any(rule.action in _POSSIBLE[point.kind] for point in matching):
                raise InvalidRequest(f"{rule.action} cannot happen at {name}: there is no payload", param="rule")

    def _compile(self) -> None:
        """Work out anew which rules are tried at each failpoint."""
        self._at = {name: _rules_at(point, self._armed) for name, point in self._points.items()}


def _rules_at(point: Point, armed: Mapping[tuple[Source, str], Armed]) -> list[ArmedRule]:
    matching = [rule for one in armed.values() if one.matches(point.name) for rule in one.rules]
    return [rule for rule in matching if rule.rule.action in _POSSIBLE[point.kind]]


class _Disabled(Failpoints):
    """Holds nothing, so that everybody may share one."""

    @property
    def enabled(self) -> bool:
        return False

    def register(self, name: str, kind: Kind, description: str) -> None:
        """Forget it."""

    def hit(self, name: str) -> Fault | None:
        """None."""
        return None

    def arm(self, name: str, text: str) -> Armed:
        """Refuse."""
        raise Unsupported("this process was started without failpoints", reason="failpoints_disabled")


DISABLED: Failpoints = _Disabled()
"""For every process that was not started with failpoints."""


def make_failpoints(enabled: bool, folder: Path | None) -> Failpoints:
    """The failpoints of a process: `DISABLED` unless they are enabled or a folder arms them.

    An empty path, which is also the working directory, is no folder: an empty setting must not arm anything.
    """
    folder = None if folder == Path() else folder
    return Failpoints(folder) if enabled or folder is not None else DISABLED


async def inflict(fault: Fault | None, error: Callable[[], PandoError]) -> None:
    """Suffer the DELAY, FAIL or DROP of a hit on the event loop; other actions are the caller's to carry out.

    DROP waits until cancelled, so the caller's own deadline is what ends it.

    Raises:
        PandoError: what `error` makes, for FAIL.
    """
    if fault is None:
        return
    if fault.action is Action.DELAY:
        await asyncio.sleep(fault.delay_s)
    elif fault.action is Action.DROP:
        await asyncio.Event().wait()
    elif fault.action is Action.FAIL:
        raise error()
