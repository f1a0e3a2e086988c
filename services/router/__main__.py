"""Starts a router: the only place that constructs its parts. SIGTERM or Ctrl-C drains it."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Sequence

from common.base.clock import monotonic
from common.base.config import load_or_exit
from common.base.errors import Draining, InvalidRequest, Leg
from common.base.logging import Logger, configure_logging, log_ready
from common.base.metrics import MetricsServer, new_registry
from common.base.model_config import ModelError
from common.grammar.checker import GrammarChecker
from common.rpc.registry import RegistryReader
from common.rpc.server import RpcServer
from pando.v1 import inference_pb2_grpc
from services.router.admission import Admission
from services.router.breaker import BreakerLimits, Breakers
from services.router.budget import RetryBudget
from services.router.config import RouterConfig, RouterSettings
from services.router.decisions import DecisionLog
from services.router.desk import Desk
from services.router.intake import Intake
from services.router.loop import Fleet, Reader
from services.router.membership import Membership
from services.router.metrics import RouterMetrics
from services.router.planner import Planner, PlannerConfig
from services.router.prompts import Model, PromptPool
from services.router.role_loop import make_role_loop
from services.router.running import RunningTable
from services.router.seat import AdmissionLimits
from services.router.service import SERVICE_NAME, InferenceService
from services.router.upkeep import keep_health_and_metrics
from services.router.waiting_room import WaitingRoom
from services.router.worker_rpc import WorkerRpc

LAST_WORDS_S = 1.0
"""Seconds that the errors of requests which outlive the drain time have to leave."""


class CannotStart(Exception):
    """The process cannot do its job; the message is one line for the operator."""


class Router:
    """All parts of one router, wired. Lives on one event loop.

    Attributes:
        address, metrics_address: host:port of the gRPC API and of the exporter, once started.
        registry: of its metrics.
        grammars: tries out new grammars.
        room: where requests wait.
    """

    def __init__(self, settings: RouterSettings, model: Model, reader: Reader, log: Logger) -> None:
        config = settings.router
        timeouts = settings.timeouts.scaled()
        self.address = self.metrics_address = ""
        self._config = config
        self._drain_s = timeouts.drain_s
        self._log = log
        self.registry = new_registry()
        self._metrics = RouterMetrics(self.registry)
        self._rpc = WorkerRpc(timeouts)
        membership = Membership(timeouts.engine_stall_s)
        self._fleet = Fleet(
            reader=reader,
            rpc=self._rpc,
            membership=membership,
            planner=Planner(planner_config(config)),
            breakers=Breakers(
                BreakerLimits(config.breaker_failures, config.breaker_pause_s, config.breaker_max_pause_s)
            ),
            clock=monotonic,
            poll_s=config.poll_s,
            view_ready_s=config.view_ready_s,
            log=log,
        )
        self._roles = make_role_loop(settings, membership, self._rpc, self._metrics, log)
        self._pool = PromptPool(config.tokenizer_threads, config.inline_prompt_chars)
        self.grammars = GrammarChecker(
            config.model_path,
            model.config.vocab_size,
            model.config.eos_token_ids,
            limit_s=config.grammar_trial_s,
        )
        room = self.room = WaitingRoom(Admission(admission_limits(config)), self._fleet, self._metrics, monotonic)
        self._running = RunningTable(config.max_concurrent_requests, room.too_many)
        self._metrics.running.set_function(self._running.__len__)
        strict = config.context_policy == "strict"
        decisions = DecisionLog(config.explain_requests)
        budget = RetryBudget(config.retry_ratio, config.retry_burst)
        self._metrics.retry_budget.set_function(lambda: budget.num_left)
        service = InferenceService(
            desk=Desk(
                config, self._fleet, self._rpc, model.tokenizer, self._metrics, monotonic, log, budget, decisions
            ),
            intake=Intake(model, membership, self._pool, self.grammars, limits=settings.limits, strict_context=strict),
            model=model,
            pool=self._pool,
            running=self._running,
            room=room,
            limits=settings.limits,
            request_s=timeouts.request_s,
            created_unix_s=int(time.time()),
            role_advice=lambda: self._roles.advice if self._roles else "",
        )
        self._server = RpcServer(timeouts, [SERVICE_NAME])
        inference_pb2_grpc.add_InferenceServicer_to_server(service, self._server.grpc)

    async def start(self) -> None:
        """Serve; health follows the workers. Raises CannotStart."""
        config = self._config
        try:
            self._exporter = MetricsServer(self.registry, config.host, config.metrics_port)
        except OSError as error:
            raise CannotStart(f"metrics port {config.metrics_port}: {error.strerror}; set --metrics-port") from error
        try:
            port = self._server.bind(config.host, config.port)
        except OSError as error:
            self._exporter.close()
            raise CannotStart(f"{error}; set --port") from error
        await self._server.start()
        self._fleet.start()
        if self._roles:
            self._roles.start(config.poll_s)
        self._upkeep = asyncio.create_task(
            keep_health_and_metrics(self._server, self._fleet, self.room, self._metrics, config.poll_s)
        )
        self.address = f"{config.host}:{port}"
        self.metrics_address = self._exporter.address

    async def stop(self) -> None:
        """Take nothing new, let running requests end within the drain time, then end.

        Those that do not end in time are told that the router goes down: their callers go on at another one.
        """
        self._log.info("draining", num_running=len(self._running))
        self._upkeep.cancel()
        await asyncio.gather(self._upkeep, return_exceptions=True)
        asyncio.get_running_loop().call_later(self._drain_s, self._running.end_all, _going_down)
        await self._server.stop(self._drain_s + LAST_WORDS_S)
        if self._roles:
            await self._roles.close()
        await self._fleet.close()
        await self._rpc.close()
        self._pool.close()
        await self.grammars.close()
        self._exporter.close()


def admission_limits(config: RouterConfig) -> AdmissionLimits:
    """The bounds of admission, which has them under the names of the configuration."""
    return AdmissionLimits(**{name: getattr(config, name) for name in AdmissionLimits.__dataclass_fields__})


def planner_config(config: RouterConfig) -> PlannerConfig:
    """What the planner needs, which has it under the names of the configuration."""
    return PlannerConfig(**{name: getattr(config, name) for name in PlannerConfig.__dataclass_fields__})


def _going_down() -> Draining:
    return Draining("the router is going down", leg=Leg.ROUTER)


async def serve(settings: RouterSettings, model: Model, log: Logger) -> None:
    """Run a router until SIGTERM or SIGINT. Raises CannotStart."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    reader = RegistryReader(settings.registry.url, settings.registry.cluster, settings.timeouts.scaled().ping_s)
    router = Router(settings, model, reader, log)
    await router.start()
    router.grammars.start()
    log_ready(address=router.address, metrics=router.metrics_address)
    await stop.wait()
    await router.stop()
    await reader.close()


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit status."""
    settings = load_or_exit(RouterSettings, argv, "services.router")
    log = configure_logging(settings.log, service="router")
    try:
        model = Model.load(settings.router.model_path, settings.router.served_model_name)
        asyncio.run(serve(settings, model, log))
    except (ModelError, CannotStart, InvalidRequest) as error:
        print(f"services.router: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
