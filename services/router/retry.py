"""What to do when an attempt failed: blame the leg that broke, try another worker for it, or give up.

Pure: an error and the plan it hit go in; exclusions for the next plan, or the error that ends the request, come out.
Invariants: at most `max_attempts` attempts in a row that bring no token (a long stream may move as often as workers are
restarted under it); a failing prefill never costs the decode worker anything; an error that no other worker can heal
ends the request at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from common.base.errors import (
    BlockCorrupt,
    Cancelled,
    Internal,
    Leg,
    NotReady,
    Overloaded,
    PandoError,
    PeerLost,
    StepAborted,
    Unavailable,
    WrongRole,
)
from services.router.policy import Exclusions
from services.router.prefix_view import WorkerKey

_PREFILL_LEGS = (Leg.PREFILL, Leg.TRANSFER, Leg.STORE)
_HEALED_ELSEWHERE = (Overloaded, Unavailable, StepAborted, BlockCorrupt)


def heals_elsewhere(error: PandoError) -> bool:
    """Whether another worker may succeed. A worker's Cancelled is one: the client's own never comes this way."""
    return isinstance(error, (*_HEALED_ELSEWHERE, Cancelled))


def blamed_leg(error: PandoError, prefill: WorkerKey | None) -> Leg:
    """The leg that an error speaks against; without a prefill worker there is only decode's."""
    return error.leg if error.leg in _PREFILL_LEGS and prefill is not None else Leg.DECODE


def blames(error: PandoError) -> bool:
    """Whether an error speaks against the worker of its leg; being full or going down does not."""
    return isinstance(error, (NotReady, PeerLost, StepAborted, BlockCorrupt, Internal))


@dataclass(slots=True)
class Retries:
    """The failures of one choice so far.

    Attributes:
        max_attempts: in a row without a token.
        attempt: number of the present one; rises with every failure.
        errors: since the last token.
    """

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

    def failed(
        self, error: PandoError, decode: WorkerKey, prefill: WorkerKey | None, *, progressed: bool = False
    ) -> Leg:
        """Note a failed attempt; returns the leg to blame.

        Args:
            error: that ended it.
            decode, prefill: the workers it used.
            progressed: it brought a token, so earlier failures are forgiven.

        Raises:
            PandoError: the error itself, when another attempt cannot help or none is left.
        """
        if progressed:
            self.errors.clear()
            self.forgive()
        self.errors.append(error)
        self.attempt += 1
        if not heals_elsewhere(error) or len(self.errors) >= self.max_attempts:
            raise error
        return self._exclude(error, decode, prefill)

    @property
    def is_misled(self) -> bool:
        """Whether the last worker had not the role it was chosen for: what is known of the roles is old."""
        return bool(self.errors) and isinstance(self.errors[-1], WrongRole)

    def crowded(self, error: Overloaded, decode: WorkerKey, prefill: WorkerKey | None) -> Leg:
        """As `failed`, for a stream that can wait until a worker has room: that ends no attempts."""
        self.attempt += 1
        if not self.is_crowded:
            self.errors.append(error)
        return self._exclude(error, decode, prefill)

    @property
    def is_crowded(self) -> bool:
        """Whether the last worker had no room."""
        return bool(self.errors) and isinstance(self.errors[-1], Overloaded)

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

    def _exclude(self, error: PandoError, decode: WorkerKey, prefill: WorkerKey | None) -> Leg:
        """Keep the next plan from the worker that an error speaks of; returns the leg."""
        leg = blamed_leg(error, prefill)
        if leg is Leg.DECODE:
            self._decode.add(decode)
            self._keep_decode = None
        elif prefill is not None:
            self._prefill.add(prefill)
            self._keep_decode = decode
        return leg
