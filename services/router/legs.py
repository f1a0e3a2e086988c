"""The breakers' view of one attempt: which workers it uses for which part, and what it learns of each. Pure."""

from __future__ import annotations

from common.base.errors import Leg
from services.router.breaker import Breakers, Role
from services.router.policy import Plan


class Legs:
    """The uses of an attempt's workers; the owner calls `release` at its end, however it ends."""

    def __init__(self, breakers: Breakers, plan: Plan, now_s: float) -> None:
        """The attempt begins."""
        self._decode = breakers.use(plan.decode.key, Role.DECODE, now_s)
        self._prefill = breakers.use(plan.prefill.key, Role.PREFILL, now_s) if plan.prefill else None

    def answered(self) -> None:
        """A token came: what prefill had to do is done, and decode works."""
        if self._prefill is not None:
            self._prefill.succeeded()
        self._decode.answered()

    def succeeded(self) -> None:
        """The attempt ended well."""
        self._decode.succeeded()

    def failed(self, leg: Leg, now_s: float) -> None:
        """The attempt failed, and `leg` is to blame."""
        if leg is Leg.DECODE:
            self._decode.failed(now_s)
        elif self._prefill is not None:
            self._prefill.failed(now_s)

    def release(self) -> None:
        """The attempt is over; a second call does nothing."""
        self._decode.release()
        if self._prefill is not None:
            self._prefill.release()
