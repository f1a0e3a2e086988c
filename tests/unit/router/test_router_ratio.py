"""The role controller on simulated clusters: steady load moves nobody, a step moves one, the opposite step one back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from common.base.roles import DECODE, PREFILL
from services.router.ratio import Move, Observation, RatioController, Targets, WorkerLoad

TARGETS = Targets(ttft_s=1.0, tpot_s=0.1, sustain_s=10.0, cooldown_s=60.0)
PERIOD_S = 1.0
Load = tuple[float, float]
"""Offered work of prefill and of decode, in workers that it keeps busy."""


@dataclass
class World:
    """Workers that share the work of their roles fairly; latency grows as a role runs full. Moves are carried out."""

    roles: dict[str, tuple[str, ...]]
    now_s: float = 0.0
    backlog_tokens: float = 0.0
    moves: list[Move] = field(default_factory=list)

    def observe(self, load: Load) -> Observation:
        """One period under a load."""
        self.now_s += PERIOD_S
        num_prefill, num_decode = (sum(role in roles for roles in self.roles.values()) for role in (PREFILL, DECODE))
        prefill, decode = load[0] / num_prefill, load[1] / num_decode
        self.backlog_tokens = max(0.0, self.backlog_tokens + (prefill - 1) * 1000 * num_prefill * PERIOD_S)
        workers = [self._worker(name, roles, num_prefill, decode) for name, roles in self.roles.items()]
        ttft_s = 0.2 / (1 - min(prefill, 0.95)) + self.backlog_tokens / 1000 / num_prefill
        return Observation(self.now_s, workers, ttft_s, tpot_s=0.02 + 0.06 * decode)

    def _worker(self, name: str, roles: tuple[str, ...], num_prefill: int, decode: float) -> WorkerLoad:
        waiting = int(self.backlog_tokens / num_prefill) if PREFILL in roles else 0
        seats = min(8, int(decode * 8)) if DECODE in roles else 0
        return WorkerLoad(name, roles, seats, 8, waiting, 1000.0, min(1.0, decode * 0.8) if seats else 0.0)

    def run(self, controller: RatioController, loads: Iterable[Load], *, act: bool = True) -> list[Move]:
        """Observe a series; returns the moves that were proposed."""
        moves = [move for load in loads if (move := self._step(controller, load, act)) is not None]
        self.moves += moves
        return moves

    def _step(self, controller: RatioController, load: Load, act: bool) -> Move | None:
        move = controller.observe(self.observe(load))
        if move is not None and act:
            assert self.roles[move.worker_id] == (move.before,), "only a worker of one role moves"
            self.roles[move.worker_id] = (move.after,)
        return move


def fleet(num_prefill: int, num_decode: int) -> World:
    names: dict[str, tuple[str, ...]] = {f"p{index}": (PREFILL,) for index in range(num_prefill)}
    return World(names | {f"d{index}": (DECODE,) for index in range(num_decode)})


def settled(world: World, targets: Targets = TARGETS) -> RatioController:
    """A controller that has seen a calm cluster for long enough to act."""
    controller = RatioController(targets)
    assert world.run(controller, steady((0.4, 0.4), TARGETS.cooldown_s + 2)) == []
    return controller


def steady(load: Load, seconds: float) -> list[Load]:
    return [load] * int(seconds / PERIOD_S)


@pytest.mark.parametrize("load", [(0.0, 0.0), (0.6, 0.6), (1.2, 1.2), (2.4, 0.4), (0.4, 2.2)])
def test_steady_load_within_the_targets_moves_nobody(load: Load) -> None:
    world, controller = fleet(3, 3), RatioController(TARGETS)
    assert world.run(controller, steady(load, 1000)) == []


def test_a_step_moves_one_worker_and_the_opposite_step_one_back() -> None:
    world = fleet(2, 4)
    controller = settled(world)
    assert world.run(controller, steady((1.0, 1.2), 300)) == []
    there = world.run(controller, steady((2.4, 1.2), 600))
    assert [(move.before, move.after) for move in there] == [(DECODE, PREFILL)]
    back = world.run(controller, steady((0.6, 3.4), 600))
    assert [(move.before, move.after) for move in back] == [(PREFILL, DECODE)]
    assert sorted(world.roles.values()) == [(DECODE,)] * 4 + [(PREFILL,)] * 2


def test_noise_moves_nobody() -> None:
    random = Random(1)
    world = fleet(3, 3)
    controller = settled(world)
    peaks = [(random.uniform(1.0, 3.2), random.uniform(0.4, 1.2)) for _ in range(3000)]
    assert world.run(controller, peaks) == []
    assert max(load[0] for load in peaks) > 3.0, "there were moments above the target"


def test_a_need_must_last() -> None:
    world = fleet(2, 4)
    controller = settled(world)
    short, calm = steady((2.1, 0.4), TARGETS.sustain_s - 1), steady((0.4, 0.4), 20)
    assert world.run(controller, [*short, *calm] * 10) == []
    assert len(world.run(controller, steady((2.1, 0.4), TARGETS.sustain_s + 2))) == 1


def test_after_a_change_by_anybody_it_waits() -> None:
    world = fleet(2, 5)
    controller = settled(world)
    world.run(controller, steady((2.9, 0.4), 5))
    world.roles["d4"] = (DECODE, PREFILL)
    assert world.run(controller, steady((4.0, 0.4), TARGETS.cooldown_s - 1)) == []
    assert len(world.run(controller, steady((4.0, 0.4), 5))) == 1


def test_the_last_worker_of_a_role_stays_and_so_does_one_with_both_roles() -> None:
    for roles in ({"p": (PREFILL,), "d": (DECODE,)}, {"p": (PREFILL,), "u": (PREFILL, DECODE), "v": (PREFILL, DECODE)}):
        world = World(dict(roles))
        controller = settled(world)
        assert world.run(controller, steady((5.0, 0.1), 300)) == []


def test_a_role_that_would_run_hot_without_the_worker_gives_none() -> None:
    world = fleet(2, 2)
    controller = settled(world)
    assert world.run(controller, steady((2.5, 1.3), 600)) == [], "more workers are needed, not other roles"
    assert controller.pressure[PREFILL] > 1


def test_first_tokens_that_are_late_because_decode_is_full_are_not_blamed_on_prefill() -> None:
    controller = RatioController(TARGETS)
    full = [WorkerLoad(f"d{index}", (DECODE,), 8, 8, 0, 1000.0, 1.0) for index in range(2)]
    idle = [WorkerLoad(f"p{index}", (PREFILL,), 0, 8, 0, 1000.0, 0.0) for index in range(2)]
    moves = [controller.observe(Observation(float(now_s), [*full, *idle], 30.0, 0.05)) for now_s in range(80)]
    assert [(move.before, move.after) for move in moves if move] == [(PREFILL, DECODE)]


def test_the_worker_with_least_to_do_moves() -> None:
    controller = RatioController(TARGETS)
    workers = [
        WorkerLoad("p", (PREFILL,), 4, 64, 9000, 1000.0),
        WorkerLoad("d0", (DECODE,), 4, 64),
        WorkerLoad("d1", (DECODE,), 1, 64),
        WorkerLoad("d2", (DECODE,), 4, 64),
    ]
    moves = [controller.observe(Observation(float(now_s), workers)) for now_s in range(80)]
    assert [move.worker_id for move in moves if move] == ["d1"]


def test_advice_stands_as_long_as_its_need_and_is_given_once_per_cooldown() -> None:
    world = fleet(2, 4)
    controller = settled(world)
    needy = steady((2.4, 0.4), TARGETS.cooldown_s)
    assert len(world.run(controller, needy, act=False)) == 1 and controller.proposal is not None
    assert "decode -> prefill" in str(controller.proposal)
    world.backlog_tokens = 0.0
    world.run(controller, steady((0.4, 0.4), 2), act=False)
    assert controller.proposal is None


def test_what_is_not_measured_has_no_pressure() -> None:
    controller = RatioController(TARGETS)
    workers = [WorkerLoad("p", (PREFILL,), waiting_tokens=10_000), WorkerLoad("d", (DECODE,))]
    for now_s in range(100):
        assert controller.observe(Observation(float(now_s), workers)) is None
    assert controller.pressure == {PREFILL: 0.0, DECODE: 0.0}
    assert controller.observe(Observation(100.0, [])) is None


def test_who_stands_by_sees_changes_and_forgets_needs() -> None:
    world = fleet(2, 5)
    controller = settled(world)
    world.run(controller, steady((4.0, 0.4), TARGETS.sustain_s - 1))
    controller.stand_by(world.observe((4.0, 0.4)))
    assert world.run(controller, steady((4.0, 0.4), TARGETS.sustain_s - 1)) == []
    world.roles["d4"] = (PREFILL,)
    controller.stand_by(world.observe((4.0, 0.4)))
    assert world.run(controller, steady((4.0, 0.4), TARGETS.cooldown_s - 1)) == []
    assert len(world.run(controller, steady((4.0, 0.4), 5))) == 1


def test_it_waits_before_its_first_move() -> None:
    world, controller = fleet(2, 4), RatioController(TARGETS)
    assert world.run(controller, steady((2.4, 0.4), TARGETS.cooldown_s)) == []
    assert len(world.run(controller, steady((2.4, 0.4), 5))) == 1


@pytest.mark.parametrize("broken", ["sustain", "cooldown", "calm"])
def test_the_simulation_can_tell_a_controller_that_is_too_eager(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: without its brakes the same controller moves too often in the worlds above."""
    targets = replace(TARGETS, sustain_s=0.0) if broken == "sustain" else TARGETS
    targets = replace(targets, cooldown_s=0.0) if broken == "cooldown" else targets
    series = [(fleet(2, 4), (2.1, 0.4), 9, 0), (fleet(2, 5), (3.6, 0.4), 60, 1), (fleet(2, 2), (2.5, 1.3), 600, 0)]

    def is_steady(targets: Targets) -> bool:
        worlds = [(World(dict(world.roles)), load, seconds, most) for world, load, seconds, most in series]
        return all(len(w.run(settled(w, targets), steady(load, seconds))) <= most for w, load, seconds, most in worlds)

    assert is_steady(TARGETS)
    if broken == "calm":
        monkeypatch.setattr("services.router.ratio.CALM", 10.0)
    assert not is_steady(targets)
