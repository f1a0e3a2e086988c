"""Every metric of a worker keeps the naming rules and explains itself."""

from __future__ import annotations

import re

import pytest
from prometheus_client import CollectorRegistry, Metric

from common.transport.select import DriverCounters
from common.worker.report import TierCollector, TransportCollector, export_gauges
from tests.support.l3_memory import MemoryStore, Shelf
from tests.support.worker_rig import Listener, make_request, running_core

UNITS = (
    "seconds",
    "bytes",
    "blocks",
    "tokens",
    "requests",
    "reads",
    "errors",
    "nodes",
    "preemptions",
    "handoffs",
    "masks",
)
ID_LABELS = {"request", "request_id", "worker", "worker_id"}


class Transports:
    """Stands for a TransportSet."""

    def __init__(self) -> None:
        self.counters = {"shm": DriverCounters(reads=2, bytes=100, seconds=0.5, errors=1)}


@pytest.fixture
async def families() -> list[Metric]:
    async with running_core(l2_blocks=4) as rig:
        rig.attach(MemoryStore(Shelf(1 << 20)))
        export_gauges(rig.core)
        TierCollector(rig.core, rig.registry)
        TransportCollector(Transports(), rig.registry)  # type: ignore[arg-type]
        return list(rig.registry.collect())


def wrong(metric: Metric) -> str:
    """What is wrong with a metric, "" if nothing."""
    if not re.fullmatch(r"pando_worker_[a-z0-9_]+", metric.name):
        return "name"
    if not metric.documentation.endswith(".") or len(metric.documentation) < 10:
        return "help"
    if not any(unit in metric.name for unit in UNITS) and not metric.name.endswith(("_ratio", "_total", "failures")):
        return "unit"
    if {label for sample in metric.samples for label in sample.labels} & ID_LABELS:
        return "label"
    return ""


async def test_names_help_units_and_labels(families: list[Metric]) -> None:
    assert len(families) > 20
    assert {metric.name: why for metric in families if (why := wrong(metric))} == {}


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("worker_x_seconds", "A fine text.", "name"),
        ("pando_worker_x_seconds", "", "help"),
        ("pando_worker_latency", "A fine text.", "unit"),
    ],
)
def test_the_rule_finds_offenders(name: str, text: str, why: str) -> None:
    assert wrong(Metric(name, text, "gauge")) == why


async def test_all_that_an_operator_was_promised_is_there(families: list[Metric]) -> None:
    names = {metric.name.removeprefix("pando_worker_") for metric in families}
    assert names >= {
        "requests",
        "running_requests",
        "waiting_requests",
        "ttft_seconds",
        "itl_seconds",
        "tpot_seconds",
        "e2e_seconds",
        "prompt_tokens",
        "cached_tokens",
        "generated_tokens",
        "blocks_free",
        "blocks_cached",
        "blocks_held",
        "transfer_bytes",
        "transfer_seconds",
        "evicted_blocks",
        "engine_step_seconds",
    }


async def test_gauges_follow_the_state() -> None:
    async with running_core(num_blocks=32) as rig:
        export_gauges(rig.core)
        rig.engine.gate.clear()
        request = make_request("a", range(8), max_tokens=2)
        assert rig.core.reserve(request, Listener()) is not None
        assert rig.metric("pando_worker_landing_requests") == 1
        assert rig.metric("pando_worker_blocks_held") == 2
        assert rig.metric("pando_worker_blocks_free") == 30
        rig.core.drop(request)
        rig.engine.gate.set()


def test_transport_counters_are_per_driver() -> None:
    registry = CollectorRegistry()
    TransportCollector(Transports(), registry)  # type: ignore[arg-type]
    assert registry.get_sample_value("pando_worker_transfer_bytes_total", {"driver": "shm"}) == 100
    assert registry.get_sample_value("pando_worker_transfer_errors_total", {"driver": "shm"}) == 1
