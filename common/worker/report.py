"""What a worker tells about itself: gauges read when scraped, and `--report-memory-info` lines in the log."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import psutil
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from common.base.logging import Logger
from common.base.roles import ROLES
from common.cache.tiers import Tier
from common.transport.select import TransportSet
from common.worker.core import WorkerCore
from common.worker.roles import WorkerRoles

REPORT_INTERVAL_S = 10.0


def export_gauges(core: WorkerCore) -> None:
    """Export the state of scheduler and cache."""
    scheduler, cache, metrics = core.scheduler, core.cache, core.metrics
    metrics.gauge("pando_worker_running_requests", "Requests that take part in steps.", lambda: scheduler.num_running)
    metrics.gauge("pando_worker_waiting_requests", "Requests that wait.", lambda: scheduler.num_waiting)
    metrics.gauge("pando_worker_landing_requests", "Requests whose KV arrives.", lambda: scheduler.num_landing)
    metrics.gauge("pando_worker_waiting_tokens", "Known tokens that wait.", lambda: scheduler.num_waiting_tokens)
    metrics.gauge("pando_worker_blocks_free", "Free KV blocks in L1.", lambda: cache.num_free)
    metrics.gauge("pando_worker_blocks_cached", "KV blocks in L1 that only the index holds.", lambda: cache.num_cached)
    metrics.gauge("pando_worker_blocks_held", "KV blocks in L1 that requests or loans hold.", lambda: cache.num_held)
    metrics.gauge("pando_worker_blocks_total", "All KV blocks in L1.", lambda: cache.num_blocks)
    metrics.gauge("pando_worker_radix_nodes", "Nodes of the radix index.", lambda: cache.num_nodes)
    metrics.gauge(
        "pando_worker_engine_step_age_seconds", "Age of the running engine step; 0 when idle.", core.engine.step_age_s
    )


class TransportCollector(Collector):
    """Exports the transport's counters, per driver."""

    def __init__(self, transports: TransportSet, registry: CollectorRegistry) -> None:
        self._transports = transports
        registry.register(self)

    def collect(self) -> list[CounterMetricFamily]:
        """The families as they are now."""
        families = [
            CounterMetricFamily(f"pando_worker_transfer_{name}", text, labels=["driver"])
            for name, text in (
                ("bytes", "Bytes of KV read from peers."),
                ("seconds", "Time spent in reads from peers, failed ones included."),
                ("reads", "Reads from peers."),
                ("errors", "Reads from peers that failed."),
            )
        ]
        for driver, counters in self._transports.counters.items():
            values = (counters.bytes, counters.seconds, counters.reads, counters.errors)
            for family, value in zip(families, values, strict=True):
                family.add_metric([driver], value)
        return families


class RoleCollector(Collector):
    """Exports which roles the worker has, what runs for each, and how often they changed."""

    def __init__(self, roles: WorkerRoles, registry: CollectorRegistry) -> None:
        self._roles = roles
        registry.register(self)

    def collect(self) -> list[Metric]:
        """The families as they are now."""
        has = GaugeMetricFamily("pando_worker_role", "1 where the worker has the role now.", labels=["role"])
        runs = GaugeMetricFamily(
            "pando_worker_role_requests",
            "Requests that run for a role, those of a role that was given up among them.",
            labels=["role"],
        )
        for role in ROLES:
            has.add_metric([role], role in self._roles.names)
            runs.add_metric([role], self._roles.num_running(role))
        changes = CounterMetricFamily("pando_worker_role_changes", "Changes of the roles since the start.")
        changes.add_metric([], self._roles.num_changes)
        return [has, runs, changes]


class TierCollector(Collector):
    """Exports what moves between the tiers, in blocks."""

    def __init__(self, core: WorkerCore, registry: CollectorRegistry) -> None:
        self._core = core
        registry.register(self)

    def collect(self) -> list[Metric]:
        """The families as they are now; those of L2 and L3 only where there is one."""
        core, storage = self._core, self._core.storage
        families = [_blocks(core.tiers.tiers)]
        if core.tiers.l2 is not None:
            moves = core.tiers.counters
            values = {"saved": moves.saved, "loaded": moves.loaded, "dropped": moves.dropped}
            families.append(
                _counter("l2_moved_blocks", "Blocks copied to and from L2, or not for want of room.", values)
            )
        if storage is not None:
            reads, writes = storage.prefetcher.counters, storage.archive.counters
            written = {
                "stored": writes.stored,
                "present": writes.present,
                "failed": writes.failed,
                "dropped": writes.dropped,
            }
            families += [
                _counter("l3_read_blocks", "Blocks looked up in or read from L3, by answer.", reads.answers),
                _counter("l3_written_blocks", "Blocks offered to L3, by what became of them.", written),
                _counter("l3_fetched_blocks", "Blocks brought from L3.", {"block": reads.fetched}),
                _counter(
                    "l3_prefetch_requests",
                    "Requests that stopped waiting for L3 (timeout) or went without it (skipped).",
                    {"timeout": reads.timeouts, "skipped": reads.skipped},
                ),
            ]
        return families


def _counter(name: str, text: str, values: Mapping[Any, int]) -> Metric:
    family = CounterMetricFamily(f"pando_worker_{name}", text, labels=["kind"])
    for kind, value in values.items():
        family.add_metric([kind], value)
    return family


def _blocks(tiers: Sequence[Tier]) -> Metric:
    family = GaugeMetricFamily("pando_worker_tier_blocks", "KV blocks by tier and state.", labels=["tier", "state"])
    for tier in tiers:
        cache = tier.cache
        for state, count in (("free", cache.num_free), ("cached", cache.num_cached), ("held", cache.num_held)):
            family.add_metric([f"l{tier.number}", state], count)
    return family


async def report_forever(core: WorkerCore, log: Logger) -> None:
    """Log hit rate, index and memory every 10 s."""
    process = psutil.Process()
    while True:
        await asyncio.sleep(REPORT_INTERVAL_S)
        cache, metrics = core.cache, core.metrics
        prompt, cached = metrics.num_prompt, metrics.num_cached
        log.info(
            "memory",
            hit_ratio=round(cached / prompt, 4) if prompt else 0.0,
            radix_nodes=cache.num_nodes,
            shared_prefix_tokens=cache.num_shared_blocks * core.scheduler.config.block_size,
            blocks_free=cache.num_free,
            blocks_cached=cache.num_cached,
            blocks_held=cache.num_held,
            resident_mib=process.memory_info().rss >> 20,
        )
