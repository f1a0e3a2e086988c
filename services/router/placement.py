"""A plan in force: its workers are charged from the moment it is made until its attempt ends, however it ends.

What is seen of the attempt on the way (first token, steps, what was reused) goes to who measures speeds, once each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from services.router.load import Charge
from services.router.policy import Plan

TOKENS_PER_MEASUREMENT = 8
RUNNING = "running"


class Observer(Protocol):
    """Who wants to know how an attempt goes."""

    def came_first(self, placement: Placement, now_s: float) -> None:
        """The first token came."""

    def came_more(self, placement: Placement, num_tokens: int, elapsed_s: float, now_s: float) -> None:
        """`num_tokens` more came within `elapsed_s`."""

    def came_last(self, placement: Placement, usage: Reuse, now_s: float) -> None:
        """The worker told what it cost."""

    def ended(self, placement: Placement) -> None:
        """The attempt is over. Called exactly once."""


class Reuse:
    """What the last frame tells of an attempt.

    Attributes:
        cached_tokens: by tier (l1, l2, l3, peer).
        transfer_bytes, transfer_s: KV that decode read from other processes, and how long it waited for it.
    """

    __slots__ = ("cached_tokens", "transfer_bytes", "transfer_s")

    def __init__(self, cached_tokens: Mapping[str, int], transfer_bytes: int = 0, transfer_s: float = 0.0) -> None:
        self.cached_tokens = cached_tokens
        self.transfer_bytes = transfer_bytes
        self.transfer_s = transfer_s


class Placement:
    """A plan and its charges; the owner calls `release` on every path.

    Attributes:
        started_s: when the plan was made.
        num_tokens: known tokens when it was made.
        backlog_tokens: prompt tokens that were to be computed until the first token, its own included.
        first_token_s: time to the first token; None before.
        reuse: what the last frame told; None before.
        outcome: running, finished, aborted, or what the owner says of a failure.
    """

    def __init__(
        self,
        plan: Plan,
        prompt: Charge,
        output: Charge,
        observer: Observer,
        *,
        started_s: float,
        num_tokens: int,
        backlog_tokens: int,
    ) -> None:
        self.plan = plan
        self.started_s = started_s
        self.num_tokens = num_tokens
        self.backlog_tokens = backlog_tokens
        self.first_token_s: float | None = None
        self.reuse: Reuse | None = None
        self.outcome = RUNNING
        self._prompt = prompt
        self._output = output
        self._observer = observer
        self._open = True
        self._counted = 0
        self._counted_from_s = started_s

    def progress(self, num_tokens: int, now_s: float) -> None:
        """Tokens came: the prompt is computed, and decode has less to do."""
        if not self._open:
            return
        self._output.progress(num_tokens)
        if self.first_token_s is None:
            self.first_token_s = now_s - self.started_s
            self._prompt.computed(now_s)
            self._prompt.release()
            self._counted_from_s = now_s
            self._observer.came_first(self, now_s)
            return
        self._counted += num_tokens
        if self._counted >= TOKENS_PER_MEASUREMENT:
            self._observer.came_more(self, self._counted, now_s - self._counted_from_s, now_s)
            self._counted = 0
            self._counted_from_s = now_s

    def finished(self, reuse: Reuse, now_s: float) -> None:
        """The last frame came."""
        if self._open:
            self.reuse = reuse
            self._observer.came_last(self, reuse, now_s)

    def release(self) -> None:
        """Take back what is left; a second call does nothing."""
        if self._open:
            self._open = False
            if self.outcome == RUNNING:
                self.outcome = "aborted" if self.reuse is None else "finished"
            self._prompt.release()
            self._output.release()
            self._observer.ended(self)
