"""What admission deals in: the limits, the workers as it sees them, a request's claim, and its seat. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from common.base.errors import PandoError
from services.router.fair_queue import Entry


@dataclass(slots=True, frozen=True)
class AdmissionLimits:
    """Bounds; see the fields of the same names in `RouterConfig`."""

    max_running_requests: int = 0
    max_queued_requests: int = 512
    max_queued_tokens: int = 1_000_000
    max_queue_s: float = 60.0
    dispatch_min_tokens: int = 2048
    dispatch_ahead_s: float = 1.0
    priority_ageing_s: float = 5.0


@dataclass(slots=True, frozen=True)
class Workers:
    """What matters of the workers.

    Attributes:
        num_prefill: those that compute prompts.
        num_idle: those of them that this router has given nothing.
        num_free_seats: requests that the workers can take in addition to those of this router; None: not known.
    """

    num_prefill: int
    num_idle: int
    num_free_seats: int | None = None


@dataclass(slots=True)
class Claim:
    """What a request asks for.

    Attributes:
        weight: of its tenant; 0 is the usual one.
        uncached_tokens: prompt tokens that somebody will have to compute, about.
        resumes: it goes on with a stream that its client has a part of; so it goes first and is not refused for want
            of room.
    """

    tenant: str
    weight: int
    priority: int
    uncached_tokens: int
    deadline_s: float
    resumes: bool = False


class Stage(StrEnum):
    """Where a request stands."""

    QUEUED = "queued"
    DISPATCHED = "dispatched"
    RUNNING = "running"
    GONE = "gone"


@dataclass(slots=True, eq=False)
class Seat:
    """A request from its arrival to its end.

    Attributes:
        placed: its worker is chosen and charged.
        waited_s: in the queue, once it was dispatched.
        refusal: why it is gone, if it was refused after it had been queued.
    """

    entry: Entry
    arrived_s: float
    deadline_s: float
    stage: Stage = Stage.QUEUED
    placed: bool = False
    waited_s: float = 0.0
    refusal: PandoError | None = None
