"""When a failed call is tried again, and after what pause. Pure.

Only what the cluster did not begin is tried again: callers ask before the first token came and not after. A request
carries its seed, so the second try is the same request.
"""

from __future__ import annotations

from dataclasses import dataclass

from common.base.errors import Overloaded, PandoError, Unavailable

MAX_TIMEOUT_S = 1e7
"""A longer deadline is none: four months; sockets and gRPC take no larger numbers."""


@dataclass(slots=True, frozen=True)
class Retry:
    """How patient a client is.

    Attributes:
        max_attempts: tries in all; 1 never retries.
        first_pause_s: upper end of the first pause; it doubles with every try.
        max_pause_s: longest pause. A server that asks for a longer one is not asked again.
    """

    max_attempts: int = 3
    first_pause_s: float = 0.2
    max_pause_s: float = 8.0

    def pause_s(self, error: PandoError, attempt: int, draw: float) -> float | None:
        """Seconds until the next try after `attempt` (from 1) failed; None: give up.

        Args:
            draw: uniform in 0 .. 1; spreads the tries of many clients.
        """
        if attempt >= self.max_attempts or not isinstance(error, Unavailable | Overloaded):
            return None
        if error.retry_after_s > self.max_pause_s:
            return None
        backoff_s = min(self.first_pause_s * 2.0 ** (attempt - 1), self.max_pause_s)
        return error.retry_after_s + backoff_s * (0.5 + draw / 2)
