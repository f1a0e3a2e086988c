"""What follows the fleet's state: the health that gRPC answers, and the gauges."""

from __future__ import annotations

from collections import Counter

from common.rpc.server import RpcServer
from services.router.breaker import Role
from services.router.loop import Fleet
from services.router.member import WorkerState
from services.router.metrics import RouterMetrics
from services.router.prefix_view import Trust
from services.router.waiting_room import WaitingRoom


async def keep_health_and_metrics(
    server: RpcServer, fleet: Fleet, room: WaitingRoom, metrics: RouterMetrics, period_s: float
) -> None:
    """Run until cancelled: refresh, and let go what may go now, on every change of a worker and every `period_s`."""
    while True:
        await server.set_serving(fleet.is_serving)
        refresh_gauges(fleet, metrics)
        room.let_go(room.clock())
        room.refresh_gauges()
        await fleet.wait_for_change(period_s)


def refresh_gauges(fleet: Fleet, metrics: RouterMetrics) -> None:
    """Write the present state into the gauges."""
    members = list(fleet.membership.members)
    states = Counter(member.state for member in members)
    for state in WorkerState:
        metrics.workers.labels(state.value).set(states[state])
    metrics.view_blocks.set(len(fleet.view))
    metrics.view_dropped.set(fleet.view.num_dropped)
    trusts = Counter(fleet.view.trust(member.key) for member in members)
    for trust in Trust:
        metrics.view_workers.labels(trust.value).set(trusts[trust])
    metrics.speculations.set(fleet.planner.num_speculations)
    num_open = fleet.num_open_breakers()
    for role in Role:
        metrics.breakers.labels(role.value).set(num_open[role])
