"""Who may take something new, and whether enough is known of the workers to serve.

Follows from membership, breakers and prefix view alone. What of it changes with events only is kept between them (see
`changed`), since every placement asks. Pure: time is an argument.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from services.router.breaker import Breakers, Role
from services.router.member import Member, WorkerState
from services.router.membership import Membership
from services.router.policy import Candidate
from services.router.prefix_view import PrefixView, WorkerKey


class Roster:
    """The members as a placement sees them.

    Attributes:
        view_due_s: when the first workers must have told what they hold; None before one joined.
    """

    def __init__(self, membership: Membership, breakers: Breakers, view: PrefixView, view_ready_s: float) -> None:
        """Workers that are there after a start have `view_ready_s` to tell what they hold."""
        self._membership = membership
        self._breakers = breakers
        self._view = view
        self._view_ready_s = view_ready_s
        self._view_built = False
        self._ready: Sequence[Candidate] | None = None
        self._usable: Sequence[Candidate] | None = None
        self.view_due_s: float | None = None

    def changed(self) -> None:
        """An event has passed through membership."""
        self._ready = self._usable = None

    @property
    def ready(self) -> Sequence[Candidate]:
        """The ready members, whatever their breakers say."""
        if self._ready is None:
            self._ready = [_candidate(one) for one in self._membership.members if one.state is WorkerState.READY]
        return self._ready

    def joined(self, now_s: float) -> None:
        """A worker is a member from now on."""
        if self.view_due_s is None:
            self.view_due_s = now_s + self._view_ready_s

    def candidates(self, excluded: Collection[WorkerKey], now_s: float) -> Sequence[Candidate]:
        """Workers that may take something new: the ready ones; if none of them decodes, suspects that do.

        An open breaker takes a worker's role away, but for decoding when nobody else can but those who are `excluded`:
        a try is worth more then.
        """
        if self._usable is None:
            self._usable = self._find_usable()
        usable = self._usable
        if self._breakers.all_closed:
            return usable
        found = [self._allowed(one, now_s) for one in usable]
        if any(one.can_decode and one.key not in excluded for one in found):
            return found
        return [replace(one, can_decode=whole.can_decode) for one, whole in zip(found, usable, strict=True)]

    def is_ready(self, key: WorkerKey) -> bool:
        """Whether this life of a worker is a ready member."""
        member = self._membership.member(key)
        return member is not None and member.state is WorkerState.READY

    def has_view(self, now_s: float) -> bool:
        """True when the workers that came first have told what they hold, or had the time to; it stays so."""
        if not self._view_built and self.view_due_s is not None:
            told = not self._membership.num_asked and all(self._view.is_exact(one.key) for one in self.ready)
            self._view_built = told or now_s >= self.view_due_s
        return self._view_built

    def _find_usable(self) -> Sequence[Candidate]:
        if any(one.can_decode for one in self.ready):
            return self.ready
        suspects = [one for one in self._membership.members if one.state is WorkerState.SUSPECT]
        return [*self.ready, *(_candidate(one) for one in suspects if one.has_role("decode"))]

    def _allowed(self, one: Candidate, now_s: float) -> Candidate:
        """What the breakers leave of a candidate."""
        allows = self._breakers.allows
        return replace(
            one,
            can_decode=one.can_decode and allows(one.key, Role.DECODE, now_s),
            can_prefill=one.can_prefill and allows(one.key, Role.PREFILL, now_s),
        )


def _candidate(member: Member) -> Candidate:
    return Candidate(member.key, member.record.address, member.has_role("decode"), member.has_role("prefill"))
