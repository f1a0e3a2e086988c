"""One worker on an event loop: the loaded engine, its tiers and core, and the services that it offers.

How it becomes a process, registers and drains is in `common.worker.process`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from common.base.comma_list import split_list
from common.base.failpoint_metrics import FailpointCollector
from common.base.failpoints import make_failpoints
from common.base.ids import new_incarnation
from common.base.logging import Logger
from common.base.metrics import new_registry
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
from common.rpc.server import RpcServer
from common.sched.config import Policy, SchedulerConfig, step_budget
from common.sched.scheduler import Scheduler
from common.tokenizer.tokenizer import Tokenizer
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
from common.worker.memory import create_regions
from common.worker.metrics import WorkerMetrics
from common.worker.peers import BlockReader, PeerPrefixes, Source
from common.worker.prefill_service import PrefillServicer
from common.worker.report import RoleCollector, TierCollector, TransportCollector, export_gauges
from common.worker.roles import WorkerRoles
from common.worker.service import WorkerServicer
from common.worker.state import WorkerState
from common.worker.tier_control import WorkerTiers
from common.worker.trust import BlockTrust
from pando.v1 import admin_pb2_grpc, worker_pb2_grpc

CHECKSUM_THREADS = 2


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
        shared_prefill_min_tokens=config.shared_prefill_min_tokens,
    )


class Worker:
    """One worker on the current event loop: everything but its RPC server and registration."""

    def __init__(self, settings: WorkerSettings, roles: Sequence[str], engine: Engine) -> None:
        config = settings.worker
        self.config = config
        self.timeouts = settings.timeouts.scaled()
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
        self.roles = WorkerRoles(self.worker_id, roles, self.core.fail_all, drain_s=self.timeouts.drain_s)
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
        RoleCollector(self.roles, self.registry)
        TierCollector(self.core, self.registry)
        TransportCollector(self.transports, self.registry)

    async def add_services(self, server: RpcServer, address: str, log: Logger) -> WorkerState:
        """Start the transports and put this worker's services on a server that will listen on `address`."""
        await self.transports.start()
        for driver, why in self.transports.missing.items():
            log.warning("transport not available here", driver=driver, why=why)
        core, engine = self.core, self.engine
        trust = BlockTrust(self.tagger, engine.identity.namespace, host_id(), self.config.kv_tag_scope)
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
        guard = OperatorGuard(read_token(self.config.admin_token_file) if self.config.admin_token_file else "")
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(WorkerServicer(state, core, lender, guard), server.grpc)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(
            AdminServicer(self.worker_id, self.tiers, self.failpoints, guard, self.roles), server.grpc
        )
        token_bytes = engine.tokenizer.token_bytes
        sender = HandoffSender(core, lender, peers, state, token_bytes)
        prefill = PrefillServicer(state, sender, engine.limits, self.grammars, core.clock)
        worker_pb2_grpc.add_PrefillServiceServicer_to_server(prefill, server.grpc)
        generator = Generator(
            core=core,
            tokenizer=engine.tokenizer,
            receiver=HandoffReceiver(self.channels, reader, engine.identity),
            peers=peers,
            here=Source(self.worker_id, address, 0),
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
        self.roles.close()
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
