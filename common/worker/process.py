"""A worker process from its settings to its end: what both role services start.

Order up: model -> pool -> transports -> RPC server -> registration. Order down: registration -> drain -> the reverse.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace

from common.base.config import load_or_exit, split_list
from common.base.errors import Draining, PandoError
from common.base.failpoint_metrics import FailpointCollector
from common.base.failpoints import make_failpoints
from common.base.ids import new_incarnation, new_worker_id
from common.base.logging import Logger, configure_logging, log_ready
from common.base.metrics import MetricsServer, new_registry
from common.base.model_config import model_digest
from common.cache.backends import Surroundings
from common.cache.kvstore_staging import InPlace
from common.cache.tiers import Tiers
from common.engine.loader import EngineConfig, load_runner
from common.engine.runner import ModelRunner
from common.grammar.llg import Vocabulary
from common.grammar.store import GrammarStore
from common.kv.hashing import namespace
from common.rpc.channel import ChannelPool
from common.rpc.operator import OperatorGuard, read_token
from common.rpc.registry import Heartbeat, WorkerRecord
from common.rpc.server import RpcServer
from common.sched.config import Policy, SchedulerConfig, step_budget
from common.sched.scheduler import Scheduler
from common.tokenizer.tokenizer import Tokenizer
from common.transport.region import Region
from common.transport.select import TransportConfig, TransportSet, host_id, make_drivers
from common.transport.tag import Tagger, load_tag_key
from common.worker.admin import StorageRequest
from common.worker.admin_service import AdminServicer
from common.worker.block_feed import BlockFeed
from common.worker.config import WorkerConfig, WorkerSettings
from common.worker.core import WorkerCore
from common.worker.decode_service import DecodeServicer
from common.worker.engine_thread import EngineThread
from common.worker.generation import Generator
from common.worker.handoff_receiver import HandoffReceiver
from common.worker.handoff_sender import HandoffSender
from common.worker.job import Identity, Limits
from common.worker.lending import Lender
from common.worker.memory import available_bytes, check_l2_fits, pool_blocks
from common.worker.metrics import WorkerMetrics
from common.worker.peers import BlockReader, PeerPrefixes, Source
from common.worker.prefill_service import PrefillServicer
from common.worker.report import TierCollector, TransportCollector, export_gauges, report_forever
from common.worker.service import WorkerServicer
from common.worker.state import WorkerState
from common.worker.tier_control import WorkerTiers
from common.worker.trust import BlockTrust, TagScope
from pando.v1 import admin_pb2_grpc, worker_pb2_grpc

CHECKSUM_THREADS = 2
STOP_GRACE_S = 1.0
SERVICES = {
    "worker": "pando.v1.WorkerService",
    "admin": "pando.v1.AdminService",
    "prefill": "pando.v1.PrefillService",
    "decode": "pando.v1.DecodeService",
}


@dataclass(slots=True)
class Engine:
    """The loaded model and what follows from it."""

    runner: ModelRunner
    identity: Identity
    limits: Limits
    tokenizer: Tokenizer
    vocabulary: Vocabulary


def load_engine(config: WorkerConfig) -> Engine:
    """Load model and tokenizer; blocks for seconds.

    Raises:
        PandoError: the model is missing, damaged or not supported, or the pool would be too small.
    """
    threads = config.num_threads or max(1, (os.cpu_count() or 1) // config.workers_on_host)
    runner = load_runner(
        EngineConfig(
            model_path=config.model_path,
            dtype=config.dtype,
            kv_cache_dtype=config.kv_cache_dtype,
            attention_backend=config.attention_backend,
            block_size=config.block_size,
            num_threads=threads,
        )
    )
    layout = runner.layout
    kv_name = str(layout.dtype).removeprefix("torch.")
    name = namespace(model_digest(config.model_path), "", runner.numerics_id, kv_name, layout.layout_digest())
    identity = Identity(name, runner.numerics_id, layout.block_bytes, layout.block_size)
    limits = Limits.of(runner.config, config.context_length, config.block_size, config.debug_logits_digest)
    tokenizer = Tokenizer.load(config.model_path)
    vocabulary = Vocabulary.load(config.model_path, limits.vocab_size, limits.eos_token_ids)
    return Engine(runner, identity, limits, tokenizer, vocabulary)


def scheduler_config(config: WorkerConfig, max_model_len: int, num_blocks: int) -> SchedulerConfig:
    """The scheduler's part of the configuration."""
    return SchedulerConfig(
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        max_batch_tokens=step_budget(config.max_batch_tokens, config.chunked_prefill_size, config.max_num_seqs),
        chunked_prefill_size=config.chunked_prefill_size,
        policy=Policy(config.schedule_policy),
        growth_reserve_blocks=config.growth_reserve_blocks,
        max_model_len=max_model_len,
        max_waiting_tokens=config.max_waiting_tokens,
        max_landing_blocks=max(1, int(num_blocks * config.max_landing_ratio)),
        high_water_ratio=config.high_water_ratio,
        load_back_min_tokens=config.hicache_load_back_min_tokens,
    )


def create_regions(config: WorkerConfig, block_bytes: int) -> tuple[Region, Region | None]:
    """The memory of L1 and, if there is one, of L2; untouched pages cost nothing.

    Raises:
        InvalidRequest: the sizes make no sense here.
    """
    available = available_bytes()
    l1_blocks = pool_blocks(config, block_bytes, available)
    l2_blocks = config.l2_blocks(l1_blocks, block_bytes)
    check_l2_fits(config, l1_blocks, l2_blocks, block_bytes, available)
    l2 = Region.create(l2_blocks, block_bytes) if l2_blocks else None
    return Region.create(l1_blocks, block_bytes), l2


class Worker:
    """One worker on the current event loop: everything but its RPC server and registration."""

    def __init__(self, settings: WorkerSettings, roles: Sequence[str], engine: Engine) -> None:
        config = settings.worker
        self.config = config
        self.timeouts = settings.timeouts.scaled()
        self.roles = list(roles)
        self.engine = engine
        self.worker_id = config.worker_id
        self.incarnation = new_incarnation()
        self.registry = new_registry()
        l1, l2 = create_regions(config, engine.identity.block_bytes)
        num_blocks = l1.num_extents
        engine.runner.attach_pool(l1.data, num_blocks)
        self.failpoints = make_failpoints(config.enable_failpoints, config.failpoints_dir)
        FailpointCollector(self.failpoints, self.registry)
        tiers = Tiers(l1, l2, config.policies(), self.failpoints)
        rules = scheduler_config(config, engine.limits.max_model_len, num_blocks)
        self.core = WorkerCore(
            scheduler=Scheduler(tiers.l1.cache, rules, tiers),
            tiers=tiers,
            engine=EngineThread(engine.runner),
            feed=BlockFeed([tier.cache.snapshot for tier in tiers.tiers]),
            metrics=WorkerMetrics(self.registry),
        )
        drivers = TransportConfig(drivers=tuple(split_list(config.transport)))
        self.transports = TransportSet(make_drivers(drivers, host_id(), self.incarnation))
        self.grammars = GrammarStore(engine.vocabulary, jump_forward=config.jump_forward)
        self.channels = ChannelPool(self.timeouts)
        self.checksums = ThreadPoolExecutor(CHECKSUM_THREADS, thread_name_prefix="checksum")
        self.tagger = Tagger(load_tag_key(config.kv_tag_key_file) if config.kv_tag_key_file else None)
        prefetch = config.prefetch(config.block_size)
        around = Surroundings(
            client_id=self.worker_id,
            registry_url=settings.registry.url,
            cluster=settings.registry.cluster,
            timeouts=self.timeouts,
        )
        self.tiers = WorkerTiers(
            self.core, engine.identity.namespace, self.tagger, self.failpoints, prefetch, around=around
        )
        export_gauges(self.core)
        TierCollector(self.core, self.registry)
        TransportCollector(self.transports, self.registry)

    async def add_services(self, server: RpcServer, address: str, log: Logger) -> WorkerState:
        """Start the transports and put this worker's services on a server that will listen on `address`."""
        await self.transports.start()
        for driver, why in self.transports.missing.items():
            log.warning("transport not available here", driver=driver, why=why)
        core, engine = self.core, self.engine
        trust = BlockTrust(self.tagger, engine.identity.namespace, host_id(), TagScope(self.config.kv_tag_scope))
        segments = {tier.number: self.transports.register(tier.region) for tier in core.tiers.tiers}
        regions = [(tier.region, segments[tier.number]) for tier in core.tiers.tiers]
        self.tiers.around = replace(self.tiers.around, in_place=InPlace(self.transports, self.incarnation, regions))
        lender = Lender(
            core=core,
            segments=segments,
            incarnation=self.incarnation,
            trust=trust,
            executor=self.checksums,
            max_lent_blocks=self.config.max_lent_blocks,
        )
        state = self._state()
        reader = BlockReader(
            core=core,
            transports=self.transports,
            timeouts=self.timeouts,
            trust=trust,
            failpoints=self.failpoints,
        )
        peers = PeerPrefixes(self.channels, reader, engine.identity, self.timeouts, self.worker_id)
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(WorkerServicer(state, core, lender), server.grpc)
        guard = OperatorGuard(read_token(self.config.admin_token_file) if self.config.admin_token_file else "")
        admin_pb2_grpc.add_AdminServiceServicer_to_server(
            AdminServicer(self.worker_id, self.tiers, self.failpoints, guard), server.grpc
        )
        token_bytes = engine.tokenizer.token_bytes
        if "prefill" in self.roles:
            sender = HandoffSender(core, lender, peers, state, token_bytes)
            prefill = PrefillServicer(state, sender, engine.limits, self.grammars, core.clock)
            worker_pb2_grpc.add_PrefillServiceServicer_to_server(prefill, server.grpc)
        if "decode" in self.roles:
            receiver = HandoffReceiver(self.channels, reader, engine.identity)
            here = Source(self.worker_id, address, 0)
            generator = Generator(
                core=core,
                tokenizer=engine.tokenizer,
                receiver=receiver,
                peers=peers,
                here=here,
                local_prefill_tokens=self.config.local_prefill_tokens,
            )
            decode = DecodeServicer(state, generator, engine.limits, self.grammars, token_bytes)
            worker_pb2_grpc.add_DecodeServiceServicer_to_server(decode, server.grpc)
        return state

    async def attach_storage(self) -> None:
        """Attach the store that the settings name, if they name one.

        Raises:
            InvalidRequest, Unavailable: see `WorkerTiers.attach`.
        """
        config = self.config
        if config.hicache_storage_backend:
            await self.tiers.attach(
                StorageRequest(config.hicache_storage_backend, config.storage_settings(), self.tiers.prefetch)
            )

    async def close(self) -> None:
        """Stop what `add_services` and the constructor started; what waits to be written to L3 still needs the rest."""
        await self.tiers.close()
        await self.channels.close()
        await self.transports.close()
        self.checksums.shutdown()
        self.grammars.close()
        self.core.engine.close()
        await self.core.close()
        self.engine.runner.detach_pool()
        for tier in self.core.tiers.tiers:
            tier.region.close()

    def _state(self) -> WorkerState:
        return WorkerState(
            worker_id=self.worker_id,
            incarnation=self.incarnation,
            roles=self.roles,
            model=self.config.model_path.resolve().name,
            pid=os.getpid(),
            identity=self.engine.identity,
            endpoints=self.transports.endpoints(),
            max_model_len=self.engine.limits.max_model_len,
            num_blocks=self.core.cache.num_blocks,
        )


async def serve(settings: WorkerSettings, roles: Sequence[str], engine: Engine, log: Logger) -> None:
    """Run a worker until SIGTERM or SIGINT, then drain it. However it ends, all threads and sockets end with it.

    Raises:
        PandoError, OSError: it cannot start.
        RuntimeError: its engine loop died; the process must not go on.
    """
    async with AsyncExitStack() as closing:
        stopping = _stop_event()
        worker = Worker(settings, roles, engine)
        closing.push_async_callback(worker.close)
        services = [SERVICES[name] for name in ("worker", "admin", *roles)]
        server = RpcServer(worker.timeouts, services, worker.failpoints)
        closing.push_async_callback(server.stop, STOP_GRACE_S)
        address = f"{worker.config.host}:{server.bind(worker.config.host, worker.config.port)}"
        metrics_server = MetricsServer(worker.registry, worker.config.host, worker.config.metrics_port)
        closing.callback(metrics_server.close)
        state = await worker.add_services(server, address, log)
        await worker.attach_storage()
        stepping = asyncio.create_task(worker.core.run())
        stepping.add_done_callback(lambda _: stopping.set())
        closing.push_async_callback(_end, stepping)
        await server.start()
        await server.set_serving(True)
        heartbeat = Heartbeat(
            settings.registry.url,
            settings.registry.cluster,
            lambda: _record(worker, state, address, metrics_server.address),
            interval_s=worker.timeouts.heartbeat_s,
            ttl_s=worker.timeouts.registration_ttl_s,
        )
        heartbeat.start()
        closing.push_async_callback(asyncio.to_thread, heartbeat.close)
        log_ready(address=address, metrics=metrics_server.address, **_facts(worker))
        await _until(stopping, worker, log)
        state.draining = True
        await _drain(worker, server, stepping, log)
        if stepping.done():
            raise RuntimeError("the engine loop died") from stepping.exception()
    log.info("stopped")


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for it."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _until(stopping: asyncio.Event, worker: Worker, log: Logger) -> None:
    """Wait for the signal, reporting memory meanwhile if that is wanted."""
    reporting = asyncio.create_task(report_forever(worker.core, log)) if worker.config.report_memory_info else None
    await stopping.wait()
    if reporting is not None:
        await _end(reporting)


async def _drain(worker: Worker, server: RpcServer, stepping: asyncio.Task[None], log: Logger) -> None:
    """Let running requests end within the time; those that do not go elsewhere: their callers get Draining."""
    await server.set_serving(False)
    core = worker.core
    if not stepping.done():
        log.info("draining", requests=core.num_requests)
        with suppress(TimeoutError):
            await asyncio.wait_for(core.drained(), worker.timeouts.drain_s)
    core.fail_all(lambda: Draining(f"worker {worker.worker_id} is going down"))
    core.feed.close()


def main(program: str, default_roles: str) -> None:
    """Entry point of a worker service; exits 2 with one line when it cannot start."""
    settings = load_or_exit(WorkerSettings, sys.argv[1:], program)
    roles = split_list(settings.worker.roles or default_roles)
    worker_id = settings.worker.worker_id or new_worker_id(roles[0])
    settings = settings.model_copy(update={"worker": settings.worker.model_copy(update={"worker_id": worker_id})})
    log = configure_logging(settings.log, service=program, worker=worker_id)
    try:
        engine = load_engine(settings.worker)
        for note in engine.runner.notes:
            log.warning(note)
        engine.runner.warm_up()
        gc.collect()
        gc.freeze()  # torch's million objects stay: collecting them again would pause steps, and exit by seconds
        asyncio.run(serve(settings, roles, engine, log))
    except PandoError as error:
        print(f"{program}: {error.message}", file=sys.stderr)
        raise SystemExit(2) from error
    except OSError as error:
        print(f"{program}: {error}", file=sys.stderr)
        raise SystemExit(2) from error


def _record(worker: Worker, state: WorkerState, address: str, metrics_address: str) -> WorkerRecord:
    return WorkerRecord(
        worker_id=worker.worker_id,
        incarnation=worker.incarnation,
        address=address,
        roles=worker.roles,
        pid=state.pid,
        metrics_address=metrics_address,
        engine_step_age_s=worker.core.engine.step_age_s(),
        draining=state.draining,
    )


def _facts(worker: Worker) -> dict[str, object]:
    return {
        "roles": worker.roles,
        "incarnation": worker.incarnation,
        "numerics": worker.engine.identity.numerics_id,
        "blocks": worker.core.cache.num_blocks,
        "block_bytes": worker.engine.identity.block_bytes,
        "transports": worker.transports.names,
    }


def _stop_event() -> asyncio.Event:
    """Set by SIGTERM or SIGINT."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    return stopping
