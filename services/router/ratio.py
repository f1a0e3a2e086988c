"""How many workers should prefill and how many decode: proposes to move one worker from a role to the other.

::

    pressure of a role: the worst of what is measured over what is wanted; 1 is at the target
        prefill   TTFT / its target, expected wait in the queue / TTFT target
        decode    TPOT / its target, share of batch seats taken, share of KV blocks held (both / FULL)

    one role above 1, the other below CALM even if it had a worker less  --for sustain_s-->  a move
    a move, or any other change of who has which role                    --cooldown_s-->     the next one may come

Why it does not swing: the role that gives the worker must stay calm without it, so the move itself cannot make it ask
for the worker back. A decode side that is full makes first tokens late as well; then TTFT says nothing about prefill.
Invariants: no role is left without a worker; one worker at a time; a worker that has both roles counts for both and is
never moved; what is not measured has no pressure. Pure: observations with their time go in, moves come out. It knows no
workers but those it is shown, and not whether a move was carried out: it sees that in the next observations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from common.base.roles import DECODE, PREFILL

CALM = 0.7
FULL = 0.9


@dataclass(slots=True, frozen=True)
class WorkerLoad:
    """A worker that is ready, and what it has to do.

    Attributes:
        roles: that it has now.
        num_requests: that run or wait.
        max_num_seqs: most requests in a step; 0: unknown.
        waiting_tokens: that nobody computes yet.
        prefill_tokens_per_s: measured; 0: not yet.
        held_ratio: share of its KV blocks that requests and loans hold.
    """

    worker_id: str
    roles: tuple[str, ...]
    num_requests: int = 0
    max_num_seqs: int = 0
    waiting_tokens: int = 0
    prefill_tokens_per_s: float = 0.0
    held_ratio: float = 0.0


@dataclass(slots=True, frozen=True)
class Observation:
    """What is known at one moment.

    Attributes:
        workers: those that are ready.
        ttft_s, tpot_s: of recent requests (a high percentile); None: there were too few.
    """

    now_s: float
    workers: Sequence[WorkerLoad]
    ttft_s: float | None = None
    tpot_s: float | None = None


@dataclass(slots=True, frozen=True)
class Targets:
    """What is wanted, and how patient the controller is.

    Attributes:
        ttft_s, tpot_s: latencies that the cluster shall keep.
        sustain_s: how long a need must last without a break.
        cooldown_s: how long nothing is proposed after any change of the roles, and at first.
    """

    ttft_s: float
    tpot_s: float
    sustain_s: float
    cooldown_s: float


@dataclass(slots=True, frozen=True)
class Move:
    """A worker of one role that shall have the other."""

    worker_id: str
    before: str
    after: str
    reason: str

    def __str__(self) -> str:
        return f"{self.worker_id}: {self.before} -> {self.after} ({self.reason})"


class RatioController:
    """Feeds on observations; see the module.

    Attributes:
        pressure: of each role, by the last observation.
        proposal: the last move, for as long as what it is for lasts.
    """

    def __init__(self, targets: Targets) -> None:
        self.targets = targets
        self.pressure = {PREFILL: 0.0, DECODE: 0.0}
        self.proposal: Move | None = None
        self._standing: dict[str, tuple[str, ...]] | None = None
        self._quiet_until_s = float("-inf")
        self._needed: str | None = None
        self._needed_since_s = 0.0

    def stand_by(self, seen: Observation) -> None:
        """Another controller decides: only note who has which role, and forget what was needed."""
        self._notice_changes(seen)
        self.pressure = {PREFILL: 0.0, DECODE: 0.0}
        self.proposal = self._needed = None

    def observe(self, seen: Observation) -> Move | None:
        """Take in an observation; returns a move when one is due now."""
        self._notice_changes(seen)
        self.pressure = {PREFILL: _prefill_pressure(seen, self.targets), DECODE: _decode_pressure(seen, self.targets)}
        needed = self._need(seen)
        if needed != self._needed:
            self._needed, self._needed_since_s, self.proposal = needed, seen.now_s, None
        lasted_s = seen.now_s - self._needed_since_s
        if needed is None or lasted_s < self.targets.sustain_s or seen.now_s < self._quiet_until_s:
            return None
        self._quiet_until_s = seen.now_s + self.targets.cooldown_s
        self.proposal = self._move_to(needed, seen)
        return self.proposal

    def _notice_changes(self, seen: Observation) -> None:
        """Whoever changed the roles, what was measured before says little about now. The first look is a change too."""
        standing = {worker.worker_id: worker.roles for worker in seen.workers}
        if standing != self._standing:
            self._quiet_until_s = seen.now_s + self.targets.cooldown_s
            self._needed = self.proposal = None
        self._standing = standing

    def _need(self, seen: Observation) -> str | None:
        """The role that needs a worker which the other can spare; None when there is no such role."""
        for needed, giving in ((PREFILL, DECODE), (DECODE, PREFILL)):
            if self.pressure[needed] > 1 and self._can_spare(giving, seen):
                return needed
        return None

    def _can_spare(self, role: str, seen: Observation) -> bool:
        """Whether a role has a worker to give and would stay calm without it."""
        count = len(_having(seen, role))
        return count > 1 and bool(_movable(seen, role)) and self.pressure[role] * count / (count - 1) < CALM

    def _move_to(self, needed: str, seen: Observation) -> Move:
        """The move of the worker that has least to do; ties go to the first by name."""
        giving = DECODE if needed == PREFILL else PREFILL
        idlest = min(
            _movable(seen, giving),
            key=lambda one: (one.num_requests, one.waiting_tokens, one.held_ratio, one.worker_id),
        )
        reason = f"pressure {self.pressure[needed]:.2f} on {needed}, {self.pressure[giving]:.2f} on {giving}"
        return Move(idlest.worker_id, giving, needed, reason)


def _having(seen: Observation, role: str) -> list[WorkerLoad]:
    return [worker for worker in seen.workers if role in worker.roles]


def _movable(seen: Observation, role: str) -> list[WorkerLoad]:
    return [worker for worker in seen.workers if worker.roles == (role,)]


def _prefill_pressure(seen: Observation, targets: Targets) -> float:
    workers = _having(seen, PREFILL)
    speed = sum(worker.prefill_tokens_per_s for worker in workers)
    wait_s = sum(worker.waiting_tokens for worker in workers) / speed if speed else 0.0
    late_s = seen.ttft_s if seen.ttft_s is not None and _fullness(seen) <= 1 else 0.0
    return max(wait_s, late_s) / targets.ttft_s


def _decode_pressure(seen: Observation, targets: Targets) -> float:
    slow = seen.tpot_s / targets.tpot_s if seen.tpot_s is not None else 0.0
    return max(slow, _fullness(seen))


def _fullness(seen: Observation) -> float:
    """How full the decode side is, in seats and in blocks; 1 at FULL."""
    workers = _having(seen, DECODE)
    if not workers:
        return 0.0
    seats = sum(worker.max_num_seqs for worker in workers)
    taken = sum(worker.num_requests for worker in workers) / seats if seats else 0.0
    held = sum(worker.held_ratio for worker in workers) / len(workers)
    return max(taken, held) / FULL
