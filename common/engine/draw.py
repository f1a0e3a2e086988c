"""Draw one token under a constraint: wait for its mask, within bounds that others can bear, and tell what follows.

A grammar may be slow, for a token or for ever. Whoever shares the step does not pay for it: the wait of a whole step is
bounded by a part of what its forward took, and a sequence whose mask is not there then is left for a later step.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from common.base.clock import Clock
from common.base.errors import InvalidRequest
from common.engine.sampler import Row, sample
from common.sched.plan import SampleSpec

NOTHING_TO_DRAW = "the sampling parameters leave no token to draw"
LEAST_WAIT_S = 0.002
SHARE_OF_FORWARD = 0.5


class Patience:
    """How long one step waits for masks, all its sequences together."""

    def __init__(self, forward_s: float, clock: Clock = time.perf_counter) -> None:
        """Start now, after a forward that took `forward_s`."""
        self._clock = clock
        self._end_s = clock() + max(LEAST_WAIT_S, SHARE_OF_FORWARD * forward_s)

    def left_s(self) -> float:
        """Seconds that are left, 0 when there are none."""
        return max(0.0, self._end_s - self._clock())


@dataclass(slots=True, frozen=True)
class Drawn:
    """A token, those that must follow it, and whether the output is over after them."""

    token_id: int
    forced: Sequence[int] = ()
    complete: bool = False


def draw(row: Row, spec: SampleSpec, patience: Patience) -> Drawn | None:
    """Draw from a finite logits row [vocab]; None: the constraint is not ready, nothing was drawn.

    Raises:
        InvalidRequest: parameters or constraint leave nothing to draw.
    """
    if spec.constraint is None:
        return Drawn(_sample(row, spec))
    mask = spec.constraint.mask(patience.left_s())
    if mask is None:
        return None
    token_id = sample(row, spec, mask)
    if token_id is None:
        raise InvalidRequest(NOTHING_TO_DRAW)
    accepted = spec.constraint.accept(token_id, spec.may_jump)
    return Drawn(token_id, accepted.forced, accepted.complete)


def _sample(row: Row, spec: SampleSpec) -> int:
    token_id = sample(row, spec)
    if token_id is None:
        raise InvalidRequest(NOTHING_TO_DRAW)
    return token_id
