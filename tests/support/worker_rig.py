"""A worker core without model or sockets: real scheduler and cache, an engine that stands still on demand."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from common.base.errors import PandoError
from common.cache.config import PrefetchConfig, TierPolicies
from common.cache.l3 import Backend
from common.cache.seal import SealConfig, SealedL3
from common.cache.storage import Storage, StorageConfig
from common.cache.tiers import Tiers
from common.kv.block_cache import BlockCache
from common.kv.hashing import prefix_root
from common.sched.config import SchedulerConfig
from common.sched.params import SamplingParams
from common.sched.plan import StepPlan, StepResult
from common.sched.request import Request, RequestUpdate
from common.sched.scheduler import Scheduler
from common.transport.base import Endpoint, Read
from common.transport.region import Region
from common.transport.tag import Tagger
from common.worker.block_feed import BlockFeed
from common.worker.core import WorkerCore
from common.worker.engine_thread import EngineThread
from common.worker.metrics import WorkerMetrics
from common.worker.trust import BlockTrust
from tests.support.fake_engine import FakeEngine, reference_output

BLOCK_SIZE = 4
BLOCK_BYTES = 64
NAMESPACE = b"n" * 32
NO_TAGS = BlockTrust(Tagger(None), NAMESPACE, "host")


def make_request(request_id: str, prompt: Sequence[int], **fields: object) -> Request:
    """A greedy request; `max_tokens` and other sampling fields go into its parameters."""
    names = set(SamplingParams.__dataclass_fields__)
    params = {"temperature": 0.0} | {k: v for k, v in fields.items() if k in names}
    rest = {k: v for k, v in fields.items() if k not in names}
    return Request(
        request_id,
        list(prompt),
        SamplingParams(**params),  # type: ignore[arg-type]
        root=prefix_root(BLOCK_SIZE, ""),
        block_size=BLOCK_SIZE,
        **rest,  # type: ignore[arg-type]
    )


class GatedEngine(FakeEngine):
    """A fake engine whose steps wait at a gate.

    Attributes:
        gate: steps run while it is set (the default).
        closes_after: so many steps more run, then the gate is closed; 0: it is left alone.
        fail: request ids whose logits are not finite.
        explode: steps raise this.
    """

    def __init__(self, tiers: Tiers) -> None:
        super().__init__(tiers.l1.cache.num_blocks, BLOCK_SIZE, rows=tiers.l1.rows)
        self.gate = threading.Event()
        self.gate.set()
        self.began = threading.Event()
        self.closes_after = 0
        self.fail: list[str] = []
        self.explode: Exception | None = None

    def step(self, plan: StepPlan, failed: Sequence[str] = ()) -> StepResult:
        """Wait at the gate, then compute."""
        self.began.set()
        assert self.gate.wait(60), "nobody opened the gate"
        if self.closes_after:
            self.closes_after -= 1
            if not self.closes_after:
                self.gate.clear()
        if self.explode is not None:
            raise self.explode
        return super().step(plan, failed or [s.request_id for s in plan.sequences if s.request_id in self.fail])


@dataclass
class Listener:
    """A sink that keeps everything and can be awaited."""

    tokens: list[int] = field(default_factory=list)
    updates: list[RequestUpdate] = field(default_factory=list)
    errors: list[PandoError] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    explode: Exception | None = None

    def on_update(self, update: RequestUpdate) -> None:
        """Keep it."""
        if self.explode is not None:
            raise self.explode
        self.updates.append(update)
        if update.token_id is not None:
            self.tokens.append(update.token_id)
        if update.finish_reason is not None:
            self.ended.set()

    def on_error(self, error: PandoError) -> None:
        """Keep it."""
        self.errors.append(error)
        self.ended.set()

    async def wait(self) -> None:
        """Wait for the end, well or not."""
        async with asyncio.timeout(60):
            await self.ended.wait()


@dataclass
class Rig:
    """The parts of a running core."""

    core: WorkerCore
    cache: BlockCache
    engine: GatedEngine
    registry: CollectorRegistry

    def metric(self, name: str, **labels: str) -> float:
        """A sample; 0 when there is none."""
        return self.registry.get_sample_value(name, labels) or 0.0

    async def settle(self) -> None:
        """Wait until no step runs, nothing moves between the tiers, and the loop has nothing to start."""
        async with asyncio.timeout(60):
            await self.core.tiers.drained()
            if self.core.storage is not None:
                await self.core.storage.drained()
            quiet = 0
            while quiet < 5:
                await asyncio.sleep(0)
                quiet = 0 if self.core.scheduler.in_flight else quiet + 1

    async def tick(self) -> None:
        """Let the loop run what is ready."""
        await asyncio.sleep(0)

    async def run(self, name: str, prompt: Sequence[int], **fields: object) -> Request:
        """Run a request alone to its end, check its output and that nothing is left in between."""
        request, listener = make_request(name, prompt, **({"max_tokens": 3} | fields)), Listener()
        self.core.add(request, listener)
        await listener.wait()
        assert not listener.errors, listener.errors
        assert listener.tokens == reference_output(prompt, request.params), name
        await self.settle()
        self.core.tiers.check()
        return request

    def attach(self, backend: Backend, key: bytes | None = None, **prefetch: object) -> Storage:
        """Put a started backend behind the core as L3. Requests wait for it as long as the policy lets them."""
        rules = PrefetchConfig(**({"min_tokens": 1, "timeout_base_s": 20.0, "patience_ratio": 1e9} | prefetch))  # type: ignore[arg-type]
        integrity = self.core.metrics.integrity_failures
        l3 = SealedL3(backend, Tagger(key), SealConfig(), lambda damage: integrity.inc())
        config = StorageConfig(backend.name, prefetch=rules)
        storage = Storage(self.core.tiers, l3, NAMESPACE, config, lambda: self.core.prefill_tokens_per_s)
        self.core.storage = storage
        storage.offer_all()
        return storage

    def flush(self) -> None:
        """Drop what only the indexes of L1 and L2 hold."""
        for tier in self.core.tiers.tiers:
            tier.cache.flush()

    def check_idle(self) -> None:
        """Nothing is held and nobody is known."""
        self.core.scheduler.check()
        self.core.tiers.check()
        assert [tier.cache.num_held for tier in self.core.tiers.tiers if tier.cache.num_held] == []
        assert self.core.num_requests == 0


@asynccontextmanager
async def running_core(
    num_blocks: int = 32, *, l2_blocks: int = 0, policies: TierPolicies | None = None, **config: object
) -> AsyncIterator[Rig]:
    """A core whose loop runs; checked for leaks at the end. `config` sets fields of SchedulerConfig."""
    l2 = Region.create(l2_blocks, BLOCK_BYTES) if l2_blocks else None
    tiers = Tiers(Region.create(num_blocks, BLOCK_BYTES), l2, policies)
    engine, registry, cache = GatedEngine(tiers), CollectorRegistry(), tiers.l1.cache
    settings = {"block_size": BLOCK_SIZE, "max_num_seqs": 8, "max_batch_tokens": 64} | config
    core = WorkerCore(
        scheduler=Scheduler(cache, SchedulerConfig(**settings), tiers),  # type: ignore[arg-type]
        tiers=tiers,
        engine=EngineThread(engine),
        feed=BlockFeed([tier.cache.snapshot for tier in tiers.tiers]),
        metrics=WorkerMetrics(registry),
    )
    rig = Rig(core, cache, engine, registry)
    loop = asyncio.create_task(core.run())
    try:
        yield rig
        await rig.settle()
        assert not loop.done(), loop
        rig.check_idle()
    finally:
        engine.gate.set()
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)
        core.engine.close()
        if core.storage is not None:
            await core.storage.close(1.0)
        await core.close()
        for tier in tiers.tiers:
            tier.region.close()


@dataclass
class FakeTransports:
    """Stands for a TransportSet: a read waits until told how it ends.

    Attributes:
        reads: what was asked for, batch by batch.
        outcome: what each read raises; None lets it succeed, filling targets with `fill`.
        gate: reads wait for it.
    """

    outcome: Exception | None = None
    fill: int = 0xAB
    reads: list[list[Read]] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    began: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self, peer: Sequence[Endpoint], reads: Sequence[Read], deadline_s: float) -> None:
        """See `TransportSet.read`."""
        self.reads.append(list(reads))
        self.began.set()
        await self.gate.wait()
        if self.outcome is not None:
            raise self.outcome
        for read in reads:
            read.target[:] = bytes([self.fill]) * len(read.target)
