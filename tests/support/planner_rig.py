"""A planner in a test's hands: workers by name, prompts as chains of small names, time as a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from services.router.index_update import ChangeKind, Update
from services.router.placement import Placement
from services.router.planner import Planner, PlannerConfig
from services.router.policy import Candidate, Exclusions, Plan, Task
from services.router.prefix_view import WorkerKey

BLOCK_SIZE = 16
NOBODY = Exclusions()


def chain(name: str, num_blocks: int, head: Sequence[bytes] = ()) -> list[bytes]:
    """Prefix hashes of a prompt that starts with the blocks of `head` and goes on in its own way."""
    return [*head, *(f"{name}.{number}".encode() for number in range(len(head), num_blocks))]


def worker(name: str) -> Candidate:
    """A candidate whose first letter is its role: d(ecode), p(refill) or u(nified)."""
    return Candidate((name, 1), f"host:{name}", name[0] in "du", name[0] in "pu")


@dataclass
class PlannerRig:
    """A planner and its workers.

    Attributes:
        now_s: the time; the test moves it.
    """

    workers: list[Candidate]
    config: PlannerConfig = field(default_factory=PlannerConfig)
    now_s: float = 100.0

    def __post_init__(self) -> None:
        self.planner = Planner(self.config)
        self._seqs: dict[WorkerKey, int] = {}
        for one in self.workers:
            assert self.planner.handle(one.key, Update(0, [], snapshot=True, snapshot_end=True))

    def store(self, name: str, hashes: Sequence[bytes], tier: int = 1) -> None:
        """A worker says that it has blocks."""
        self._tell(name, ChangeKind.STORED, hashes, tier)

    def evict(self, name: str, hashes: Sequence[bytes], tier: int = 1) -> None:
        """A worker says that it has them no more."""
        self._tell(name, ChangeKind.REMOVED, hashes, tier)

    def _tell(self, name: str, kind: ChangeKind, hashes: Sequence[bytes], tier: int) -> None:
        key = (name, 1)
        self._seqs[key] = self._seqs.get(key, 0) + len(hashes)
        assert self.planner.handle(key, Update(self._seqs[key], [(kind, one, tier) for one in hashes]))

    def task(
        self,
        hashes: Sequence[bytes],
        tail_tokens: int = 8,
        *,
        session_id: str = "",
        known: Mapping[WorkerKey, int] | None = None,
        output: int = 100,
        block_bytes: int = 0,
    ) -> Task:
        """A prompt of full blocks and some tokens more."""
        num_tokens = len(hashes) * BLOCK_SIZE + tail_tokens
        return Task(hashes, num_tokens, BLOCK_SIZE, output, session_id, block_bytes, known or {})

    def plan(self, task: Task, exclusions: Exclusions = NOBODY) -> Plan:
        """Where a task would go."""
        found = self.planner.plan(task, self.workers, exclusions, self.now_s)
        assert found is not None, "nobody can decode"
        return found

    def start(self, task: Task) -> Placement:
        """Send a task to where it would go."""
        return self.planner.start(self.plan(task), task, self.now_s)

    def run(self, task: Task, first_s: float = 0.1, step_s: float = 0.01, num_tokens: int = 9) -> str:
        """A whole request alone: returns its decode worker and moves the time."""
        placement = self.start(task)
        self.now_s += first_s
        placement.progress(1, self.now_s)
        for _ in range(num_tokens - 1):
            self.now_s += step_s
            placement.progress(1, self.now_s)
        placement.release()
        return placement.plan.decode.key[0]


def keys(plan: Plan) -> tuple[str, str | None]:
    """Names of the decode worker and the prefill worker."""
    return plan.decode.key[0], plan.prefill.key[0] if plan.prefill else None
