"""A worker as the router knows it: what it registered, what it said of itself, how it answers. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from services.router.prefix_view import WorkerKey

MISSED_PINGS_TO_SUSPECT = 2


class WorkerState(StrEnum):
    """What the router thinks of a member."""

    READY = "ready"
    DRAINING = "draining"
    SUSPECT = "suspect"


@dataclass(slots=True, frozen=True)
class Record:
    """A registry entry, as far as membership cares."""

    worker_id: str
    incarnation: int
    address: str
    roles: tuple[str, ...]
    draining: bool = False

    @property
    def key(self) -> WorkerKey:
        """The life that wrote it."""
        return self.worker_id, self.incarnation


@dataclass(slots=True, frozen=True)
class Identity:
    """What all workers must agree on for their KV to be exchangeable."""

    namespace: bytes
    numerics_id: str
    block_bytes: int
    block_size: int


@dataclass(slots=True, frozen=True)
class Info:
    """A worker's answer to the handshake."""

    worker_id: str
    incarnation: int
    identity: Identity
    max_model_len: int
    transports: tuple[str, ...]
    pid: int


@dataclass(slots=True, frozen=True)
class Stats:
    """A worker's answer to a ping."""

    incarnation: int
    num_running: int = 0
    num_waiting: int = 0
    waiting_tokens: int = 0
    blocks_free: int = 0
    blocks_cached: int = 0
    blocks_held: int = 0
    engine_step_age_s: float = 0.0
    draining: bool = False
    roles: tuple[str, ...] = ()
    max_num_seqs: int = 0
    prefill_tokens_per_s: float = 0.0

    @property
    def num_blocks(self) -> int:
        """All KV blocks of the worker."""
        return self.blocks_free + self.blocks_cached + self.blocks_held


@dataclass(slots=True)
class Member:
    """A worker that passed the handshake. Owned and changed by `Membership` only."""

    record: Record
    info: Info
    registered: bool = True
    missed_pings: int = 0
    stalled: bool = False
    draining: bool = False
    stats: Stats = field(default_factory=lambda: Stats(incarnation=0))

    @property
    def key(self) -> WorkerKey:
        """This life of the worker."""
        return self.record.key

    @property
    def state(self) -> WorkerState:
        """Where it stands now."""
        if self.missed_pings >= MISSED_PINGS_TO_SUSPECT or self.stalled:
            return WorkerState.SUSPECT
        return WorkerState.DRAINING if self.draining else WorkerState.READY

    @property
    def roles(self) -> tuple[str, ...]:
        """Those it named in its last answer, which is never older than its entry; at first those of the entry."""
        return self.stats.roles or self.record.roles

    def has_role(self, role: str) -> bool:
        """Whether it has `role` now."""
        return role in self.roles
