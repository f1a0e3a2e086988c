"""Who may take something new: ready members, suspects when nobody else decodes, and what open breakers leave."""

from __future__ import annotations

import pytest

from services.router.breaker import BreakerLimits, Breakers, Role
from services.router.index_update import Update
from services.router.member import Identity, Info, Record, Stats
from services.router.membership import Event, HandshakeAnswered, Membership, PingAnswered, PingFailed, RegistryListed
from services.router.prefix_view import PrefixView
from services.router.roster import Roster

D = Record("d", 1, "host:1", ("decode",))
P = Record("p", 1, "host:2", ("prefill",))


class Rig:
    """A roster whose members came one after the other."""

    def __init__(self, *records: Record) -> None:
        self.membership = Membership(20.0)
        self.breakers = Breakers(BreakerLimits(failures=1))
        self.view = PrefixView(100)
        self.roster = Roster(self.membership, self.breakers, self.view, view_ready_s=3.0)
        self.handle(RegistryListed(records))
        for record in records:
            identity = Identity(b"one", "fake", 64, 16)
            self.handle(HandshakeAnswered(record, Info(record.worker_id, record.incarnation, identity, 100, (), 1)))

    def handle(self, event: Event) -> None:
        self.membership.handle(event)
        self.roster.changed()

    def roles(self, excluded: tuple[tuple[str, int], ...] = (), now_s: float = 0.0) -> dict[str, str]:
        """Roles of the candidates, as letters."""
        found = self.roster.candidates(excluded, now_s)
        return {one.key[0]: "d" * one.can_decode + "p" * one.can_prefill for one in found}


def test_ready_members_are_candidates_for_their_roles_and_events_are_noticed() -> None:
    rig = Rig(D, P)
    assert rig.roles() == {"d": "d", "p": "p"} and rig.roster.candidates((), 0.0) is rig.roster.candidates((), 1.0)
    assert rig.roster.is_ready(D.key) and not rig.roster.is_ready(("d", 2))
    rig.handle(PingAnswered(P.key, Stats(1, roles=("prefill", "decode"))))
    assert rig.roles() == {"d": "d", "p": "dp"}
    rig.handle(PingFailed(D.key, refused=True))
    assert rig.roles() == {"p": "dp"} and not rig.roster.is_ready(D.key)
    rig.handle(PingAnswered(P.key, Stats(1, roles=("prefill",))))
    assert rig.roles() == {"p": "p", "d": "d"}, "a suspect is better than nobody"


def test_an_open_breaker_takes_a_role_away_unless_nobody_else_decodes() -> None:
    rig = Rig(D, P)
    rig.breakers.use(P.key, Role.PREFILL, 0.0).failed(0.0)
    assert not rig.breakers.all_closed and rig.roles() == {"d": "d", "p": ""}
    rig.breakers.use(D.key, Role.DECODE, 0.0).failed(0.0)
    assert rig.roles() == {"d": "d", "p": ""}, "a try is worth more than nothing"
    rig.handle(PingAnswered(P.key, Stats(1, roles=("prefill", "decode"))))
    assert rig.roles() == {"d": "", "p": "d"}
    assert rig.roles(excluded=(P.key,)) == {"d": "d", "p": "d"}
    assert rig.roles(now_s=60.0) == {"d": "d", "p": "dp"}, "half open"


@pytest.mark.parametrize("tells", [True, False])
def test_the_view_is_there_when_the_first_workers_have_told_or_had_the_time_to(tells: bool) -> None:
    rig = Rig(D)
    assert not rig.roster.has_view(9.0), "nobody has joined"
    rig.roster.joined(10.0)
    assert rig.roster.view_due_s == 13.0 and not rig.roster.has_view(12.9)
    if tells:
        rig.view.handle(D.key, Update(0, [], snapshot=True, snapshot_end=True))
    assert rig.roster.has_view(12.9) == tells and rig.roster.has_view(13.0)
    rig.view.lost_track(D.key)
    rig.roster.joined(20.0)
    assert rig.roster.has_view(20.0), "it stays so"
