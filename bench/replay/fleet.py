"""The simulated fleet: what it consists of, and its members as the router and the simulation see them."""

from __future__ import annotations

from dataclasses import dataclass, field

from bench.replay.job import WorkerShape
from bench.replay.worker import SimWorker
from services.router.index_update import Change, Update
from services.router.member import Stats
from services.router.policy import Candidate
from services.router.prefix_view import WorkerKey

INCARNATION = 1


@dataclass(slots=True, frozen=True)
class FleetShape:
    """Workers by role, all alike.

    Attributes:
        num_unified: workers with both roles.
        num_prefill, num_decode: workers with one role.
        event_delay_s: from a change of a worker's index until a router sees it.
        stats_period_s: between two looks of a router at a worker's load.
        peer_fetch: blocks that another worker of the plan holds are fetched instead of computed.
        kv_token_bytes: KV of one token, for the router's estimate of transfers.
    """

    num_unified: int = 4
    num_prefill: int = 0
    num_decode: int = 0
    event_delay_s: float = 0.001
    stats_period_s: float = 0.5
    peer_fetch: bool = False
    kv_token_bytes: int = 131_072
    worker: WorkerShape = field(default_factory=WorkerShape)

    @property
    def block_bytes(self) -> int:
        """KV of a block as the router shall know it; 0 when blocks never move between workers."""
        moves = self.peer_fetch or self.num_prefill or self.num_decode
        return self.kv_token_bytes * self.worker.block_size if moves else 0


@dataclass(slots=True, eq=False)
class Member:
    """A worker of the fleet.

    Attributes:
        run: number of its current step; an end of an earlier one means nothing.
        end_s: when that step ends; None: it is idle.
        seq: changes it has told so far.
    """

    candidate: Candidate
    worker: SimWorker
    run: int = 0
    end_s: float | None = None
    seq: int = 0

    @property
    def key(self) -> WorkerKey:
        """Its name for the router."""
        return self.candidate.key

    def update(self, changes: list[Change]) -> Update:
        """The message that tells these changes."""
        self.seq += len(changes)
        return Update(seq=self.seq, changes=changes)

    def stats(self) -> Stats:
        """Its answer to a ping."""
        worker, cache = self.worker, self.worker.cache
        return Stats(
            incarnation=INCARNATION,
            num_running=len(worker.running),
            num_waiting=len(worker.waiting),
            waiting_tokens=worker.num_waiting_tokens,
            blocks_free=cache.num_free,
            blocks_cached=cache.num_cached,
            blocks_held=cache.num_held,
            max_num_seqs=worker.shape.max_num_seqs,
            prefill_tokens_per_s=worker.prefill_tokens_per_s,
        )


def build_fleet(shape: FleetShape) -> list[Member]:
    """Make the members, unified ones first, then prefill, then decode."""
    roles = [(True, True)] * shape.num_unified + [(False, True)] * shape.num_prefill
    roles += [(True, False)] * shape.num_decode
    if not any(decode for decode, _ in roles):
        raise ValueError("a fleet needs a worker that decodes")
    return [
        Member(
            Candidate(
                key=(f"worker-{number:03d}", INCARNATION),
                address=f"worker-{number:03d}",
                can_decode=can_decode,
                can_prefill=can_prefill,
            ),
            SimWorker(shape.worker),
        )
        for number, (can_decode, can_prefill) in enumerate(roles)
    ]
