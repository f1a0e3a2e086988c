"""The shell around the role controller: shows it workers and latencies, and tells or carries out what it proposes.

Several routers may run one each. Only the one that has the registry's lock acts; the others (all of them, when the
registry is gone) stand by. They see the changes of roles too and wait after each, whoever made it, so that a new holder
of the lock does not hurry after the last one.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from common.base.clock import Clock, monotonic
from common.base.errors import PandoError, Unavailable
from common.base.logging import Logger
from common.rpc.operator import read_token
from common.rpc.registry import RegistryLock
from services.router.config import RouterSettings
from services.router.member import Member, WorkerState
from services.router.metrics import RouterMetrics
from services.router.ratio import Move, Observation, RatioController, Targets, WorkerLoad
from services.router.worker_rpc import WorkerRpc

PERCENTILE = 0.9
LOCK_PERIODS = 5
"""For so many looks at the cluster the lock holds without being extended."""

SetRole = Callable[[str, str], Awaitable[None]]
"""Gives the worker at an address one role and no other; raises PandoError."""


class Lock(Protocol):
    """At most one router has it at a time."""

    async def keep(self) -> bool:
        """Take or extend it; whether it is ours. Raises Unavailable."""

    async def close(self) -> None:
        """Close the connection."""


class Members(Protocol):
    """Who is in the cluster."""

    @property
    def members(self) -> Iterable[Member]:
        """All, whatever their state."""


class RoleLoop:
    """Runs a controller over the workers of one router.

    Args:
        controller: decides.
        membership: whose workers are looked at.
        metrics: of this router; its recent latencies are looked at too.
        set_role: carries out a move; None: moves are only told.
        lock: of those who carry out moves; None with `set_role` None.
    """

    def __init__(
        self,
        *,
        controller: RatioController,
        membership: Members,
        metrics: RouterMetrics,
        clock: Clock,
        log: Logger,
        set_role: SetRole | None = None,
        lock: Lock | None = None,
    ) -> None:
        self._controller = controller
        self._membership = membership
        self._metrics = metrics
        self._clock = clock
        self._log = log
        self._set_role = set_role
        self._lock = lock
        self._running: asyncio.Task[None] | None = None

    @property
    def advice(self) -> str:
        """The move that is proposed now; empty for none."""
        return str(self._controller.proposal or "")

    def start(self, period_s: float) -> None:
        """Look at the cluster every `period_s` until closed."""
        self._running = asyncio.create_task(self._run(period_s))

    async def _run(self, period_s: float) -> None:
        while True:
            await asyncio.sleep(period_s)
            await self.step()

    async def step(self) -> None:
        """Look once, and do what follows."""
        seen = self._observation()
        if not await self._may_act():
            self._controller.stand_by(seen)
            return
        move = self._controller.observe(seen)
        for role, pressure in self._controller.pressure.items():
            self._metrics.role_pressure.labels(role).set(pressure)
        if move is not None:
            await self._follow(move)

    async def close(self) -> None:
        """Stop looking; the lock expires."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        if self._lock is not None:
            await self._lock.close()

    async def _may_act(self) -> bool:
        try:
            return self._lock is None or await self._lock.keep()
        except Unavailable:
            return False

    def _observation(self) -> Observation:
        now_s = self._clock()
        return Observation(
            now_s=now_s,
            workers=[_load(one) for one in self._membership.members if one.state is WorkerState.READY],
            ttft_s=self._metrics.recent_ttft.percentile(PERCENTILE, now_s),
            tpot_s=self._metrics.recent_tpot.percentile(PERCENTILE, now_s),
        )

    async def _follow(self, move: Move) -> None:
        outcome = "advised" if self._set_role is None else await self._carry_out(move, self._set_role)
        self._metrics.role_moves.labels(move.after, outcome).inc()
        facts = {"worker_id": move.worker_id, "before": move.before, "role": move.after, "reason": move.reason}
        self._log.info("role controller moves a worker", outcome=outcome, **facts)

    async def _carry_out(self, move: Move, set_role: SetRole) -> str:
        addresses = [one.record.address for one in self._membership.members if one.record.worker_id == move.worker_id]
        try:
            for address in addresses:
                await set_role(address, move.after)
        except PandoError as error:
            self._log.warning("a worker did not take its role", worker_id=move.worker_id, error=error.message)
            return "failed"
        return "done"


def make_role_loop(
    settings: RouterSettings, membership: Members, rpc: WorkerRpc, metrics: RouterMetrics, log: Logger
) -> RoleLoop | None:
    """The loop that the settings ask for, None for none.

    Raises:
        InvalidRequest: the operator token cannot be read.
    """
    config, registry = settings.router, settings.registry
    if config.role_controller == "off":
        return None
    acts = config.role_controller == "act"
    token = read_token(config.admin_token_file) if config.admin_token_file else ""
    timeouts = settings.timeouts.scaled()
    ttl_s = max(timeouts.registration_ttl_s, LOCK_PERIODS * config.poll_s)
    return RoleLoop(
        controller=RatioController(
            Targets(
                ttft_s=config.role_ttft_target_s,
                tpot_s=config.role_tpot_target_s,
                sustain_s=config.role_sustain_s,
                cooldown_s=config.role_cooldown_s,
            )
        ),
        membership=membership,
        metrics=metrics,
        clock=monotonic,
        log=log,
        set_role=(lambda address, role: rpc.set_role(address, role, token)) if acts else None,
        lock=RegistryLock(
            registry.url, registry.cluster, "roles", secrets.token_hex(8), ttl_s=ttl_s, timeout_s=timeouts.ping_s
        )
        if acts
        else None,
    )


def _load(member: Member) -> WorkerLoad:
    stats = member.stats
    return WorkerLoad(
        worker_id=member.record.worker_id,
        roles=tuple(sorted(member.roles)),
        num_requests=stats.num_running + stats.num_waiting,
        max_num_seqs=stats.max_num_seqs,
        waiting_tokens=stats.waiting_tokens,
        prefill_tokens_per_s=stats.prefill_tokens_per_s,
        held_ratio=stats.blocks_held / stats.num_blocks if stats.num_blocks else 0.0,
    )
