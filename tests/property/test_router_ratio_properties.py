"""Whatever the load does, the role controller keeps its promises; a steady load makes nobody go back.

The promises: every role has a worker, only workers of one role move, two moves have a pause between them, and whoever
gave a worker was calm.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from common.base.roles import DECODE, PREFILL
from services.router.ratio import CALM, Move, Observation, RatioController, Targets, WorkerLoad

TARGETS = Targets(ttft_s=1.0, tpot_s=0.1, sustain_s=3.0, cooldown_s=8.0)
ROLES = st.sampled_from([(PREFILL,), (DECODE,), (DECODE, PREFILL)])
FLEETS = st.lists(ROLES, min_size=1, max_size=6)
LOAD = st.tuples(st.floats(0, 6), st.floats(0, 6))


def observe(now_s: float, fleet: dict[str, tuple[str, ...]], load: tuple[float, float]) -> Observation:
    """Workers that share a load, in workers that it keeps busy; seats and queues are all there is to see."""
    prefill, decode = (sum(role in roles for roles in fleet.values()) for role in (PREFILL, DECODE))
    workers = [
        WorkerLoad(
            name,
            roles,
            num_requests=min(64, int(64 * load[1] / decode)) if DECODE in roles else 0,
            max_num_seqs=64,
            waiting_tokens=int(2000 * max(0.0, load[0] / prefill - 0.5)) if PREFILL in roles else 0,
            prefill_tokens_per_s=1000.0,
        )
        for name, roles in fleet.items()
    ]
    return Observation(now_s, workers)


def run(fleet: dict[str, tuple[str, ...]], loads: list[tuple[float, float]]) -> list[tuple[float, Move]]:
    """Carry out every move; returns them with their times, each checked."""
    controller, moves = RatioController(TARGETS), list[tuple[float, Move]]()
    for second, load in enumerate(loads):
        move = controller.observe(observe(float(second), fleet, load))
        if move is None:
            continue
        assert fleet[move.worker_id] == (move.before,)
        num_giving = sum(move.before in roles for roles in fleet.values())
        assert num_giving > 1 and controller.pressure[move.before] * num_giving / (num_giving - 1) < CALM
        assert controller.pressure[move.after] > 1
        assert second >= TARGETS.cooldown_s and (not moves or second - moves[-1][0] >= TARGETS.cooldown_s)
        fleet[move.worker_id] = (move.after,)
        moves.append((second, move))
    return moves


def named(roles: list[tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    return {f"w{index}": each for index, each in enumerate(roles)}


@settings(max_examples=150, deadline=None)
@given(FLEETS, st.lists(st.tuples(LOAD, st.integers(1, 20)), max_size=8))
def test_any_load(roles: list[tuple[str, ...]], phases: list[tuple[tuple[float, float], int]]) -> None:
    fleet = named(roles)
    if not all(any(role in each for each in roles) for role in (PREFILL, DECODE)):
        return
    run(fleet, [load for load, seconds in phases for _ in range(seconds)])
    assert all(any(role in each for each in fleet.values()) for role in (PREFILL, DECODE))


@settings(max_examples=100, deadline=None)
@given(FLEETS, LOAD)
def test_a_steady_load_never_swings(roles: list[tuple[str, ...]], load: tuple[float, float]) -> None:
    if not all(any(role in each for each in roles) for role in (PREFILL, DECODE)):
        return
    moves = run(named(roles), [load] * 150)
    assert len({move.after for _, move in moves}) <= 1, "no worker goes back while nothing has changed"
    assert len(moves) < len(roles)
