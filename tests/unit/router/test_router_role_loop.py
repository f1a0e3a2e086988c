"""The shell of the role controller: what it shows, who acts, and that a refusal or a lost registry moves nobody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from common.base.errors import PandoError, PermissionDenied, Unavailable
from common.base.logging import get_logger
from services.router.member import Identity, Info, Member, Record, Stats
from services.router.metrics import RouterMetrics
from services.router.ratio import RatioController, Targets
from services.router.role_loop import Lock, RoleLoop

IDENTITY = Identity(b"n" * 32, "cpu", 64, 16)
TARGETS = Targets(ttft_s=1.0, tpot_s=0.1, sustain_s=2.0, cooldown_s=3.0)


@dataclass
class FakeFleet:
    members: list[Member] = field(default_factory=list)

    def set_role(self, worker_id: str, role: str) -> None:
        for member in self.members:
            if member.record.worker_id == worker_id:
                member.stats = Stats(1, roles=(role,))


@dataclass
class FakeLock:
    ours: bool | None = True
    closed: bool = False

    async def keep(self) -> bool:
        if self.ours is None:
            raise Unavailable("registry: gone")
        return self.ours

    async def close(self) -> None:
        self.closed = True


def member(worker_id: str, role: str, waiting_tokens: int = 0) -> Member:
    record = Record(worker_id, 1, f"h:{worker_id}", (role,))
    loaded = Stats(
        1, roles=(role,), waiting_tokens=waiting_tokens, prefill_tokens_per_s=1000.0, max_num_seqs=8, blocks_free=100
    )
    return Member(record, Info(worker_id, 1, IDENTITY, 100, ("shm",), 1), stats=loaded)


def busy_prefill() -> FakeFleet:
    """One prefill worker with five seconds of work in its queue, and two idle decode workers."""
    return FakeFleet([member("p", "prefill", waiting_tokens=5000), member("d0", "decode"), member("d1", "decode")])


@dataclass
class Rig:
    """A loop over a fake fleet, one second a step."""

    fleet: FakeFleet = field(default_factory=busy_prefill)
    lock: Lock | None = None
    acts: bool = False
    refusal: PandoError | None = None
    now_s: float = 0.0
    asked: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = RouterMetrics(self.registry)
        self.loop = RoleLoop(
            controller=RatioController(TARGETS),
            membership=self.fleet,
            metrics=self.metrics,
            clock=lambda: self.now_s,
            log=get_logger(),
            set_role=self._set_role if self.acts else None,
            lock=self.lock,
        )

    async def _set_role(self, address: str, role: str) -> None:
        self.asked.append((address, role))
        if self.refusal is not None:
            raise self.refusal
        self.fleet.set_role(address.removeprefix("h:"), role)

    async def steps(self, count: int) -> None:
        for _ in range(count):
            self.now_s += 1
            await self.loop.step()

    def moves(self, role: str, outcome: str) -> float:
        labels = {"role": role, "outcome": outcome}
        return self.registry.get_sample_value("pando_router_role_moves_total", labels) or 0.0


async def test_advice_is_told_and_moves_nobody() -> None:
    rig = Rig()
    await rig.steps(3)
    assert rig.loop.advice == "", "not yet"
    await rig.steps(1)
    assert rig.loop.advice.startswith("d0: decode -> prefill")
    assert rig.moves("prefill", "advised") == 1
    pressure = rig.registry.get_sample_value("pando_router_role_pressure_ratio", {"role": "prefill"})
    assert pressure == 5.0
    assert [one.roles for one in rig.fleet.members] == [("prefill",), ("decode",), ("decode",)]


async def test_acting_moves_one_worker_once() -> None:
    rig = Rig(acts=True, lock=FakeLock())
    await rig.steps(4)
    assert rig.asked == [("h:d0", "prefill")] and rig.moves("prefill", "done") == 1
    await rig.steps(20)
    assert len(rig.asked) == 1, "the last decode worker stays"


async def test_without_the_lock_nobody_acts_and_a_new_holder_waits() -> None:
    for ours in (False, None):
        lock = FakeLock(ours)
        rig = Rig(acts=True, lock=lock)
        await rig.steps(10)
        assert not rig.asked
        rig.fleet.members.append(member("d2", "decode"))
        await rig.steps(1)
        lock.ours = True
        await rig.steps(2)
        assert not rig.asked, "a worker came a moment ago"
        await rig.steps(1)
        assert rig.asked
        await rig.loop.close()
        assert lock.closed


async def test_a_refusal_is_counted_and_not_repeated_at_once() -> None:
    rig = Rig(acts=True, lock=FakeLock(), refusal=PermissionDenied("no token"))
    await rig.steps(6)
    assert len(rig.asked) == 1 and rig.moves("prefill", "failed") == 1
    await rig.steps(3)
    assert len(rig.asked) == 2


async def test_only_workers_that_are_ready_count() -> None:
    gone: Sequence[str] = ("d0",)
    rig = Rig()
    for one in rig.fleet.members:
        one.draining = one.record.worker_id in gone
    await rig.steps(10)
    assert rig.loop.advice == "", "one decode worker is left"
