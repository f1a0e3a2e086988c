"""What to do when an attempt failed: blame the leg that broke, try another worker for it, or give up.

Pure: an error and the plan it hit go in; exclusions for the next plan, or the error that ends the request, come out.
Invariants: at most `max_attempts` attempts; a failing prefill never costs the decode worker anything; an error that no
other worker can heal ends the request at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from common.base.errors import (
    BlockCorrupt,
    Cancelled,
    Leg,
    NotReady,
    Overloaded,
    PandoError,
    StepAborted,
    Unavailable,
)
from services.router.policy import Exclusions
from services.router.prefix_view import WorkerKey

_PREFILL_LEGS = (Leg.PREFILL, Leg.TRANSFER, Leg.STORE)
_HEALED_ELSEWHERE = (Overloaded, Unavailable, StepAborted, BlockCorrupt)


def heals_elsewhere(error: PandoError) -> bool:
    """Whether another worker may succeed. A worker's Cancelled is one: the client's own never comes this way."""
    return isinstance(error, (*_HEALED_ELSEWHERE, Cancelled))


@dataclass(slots=True)
class Retries:
    """The failures of one choice so far."""

    max_attempts: int
    attempt: int = 0
    errors: list[PandoError] = field(default_factory=list)
    _decode: set[WorkerKey] = field(default_factory=set)
    _prefill: set[WorkerKey] = field(default_factory=set)
    _keep_decode: WorkerKey | None = None

    @property
    def exclusions(self) -> Exclusions:
        """For the next plan."""
        return Exclusions(self._decode, self._prefill, self._keep_decode)

    def failed(self, error: PandoError, decode: WorkerKey, prefill: WorkerKey | None) -> Leg:
        """Note a failed attempt; returns the leg to blame.

        Raises:
            PandoError: the error itself, when another attempt cannot help or none is left.
        """
        self.errors.append(error)
        self.attempt += 1
        if not heals_elsewhere(error) or self.attempt >= self.max_attempts:
            raise error
        if error.leg in _PREFILL_LEGS and prefill is not None:
            self._prefill.add(prefill)
            self._keep_decode = decode
            return error.leg
        self._decode.add(decode)
        self._keep_decode = None
        return Leg.DECODE

    def forgive(self) -> None:
        """Allow every worker again: nobody else is left, and they answer."""
        self._decode.clear()
        self._prefill.clear()

    def nobody_left(self) -> PandoError:
        """The error for a request that no worker can take."""
        overloaded = [error for error in self.errors if isinstance(error, Overloaded)]
        if not self.errors:
            return NotReady("no decode worker is there", reason="no_worker", leg=Leg.ROUTER)
        if len(overloaded) == len(self.errors):
            return min(overloaded, key=lambda error: error.retry_after_s)
        return self.errors[-1]
