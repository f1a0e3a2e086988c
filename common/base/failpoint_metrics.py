"""Failpoints as metrics: how often each was reached, and how often a fault came of that."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from common.base.failpoints import Failpoints


class FailpointCollector(Collector):
    """Exports the counters of all registered failpoints; nothing for a process without any."""

    def __init__(self, failpoints: Failpoints, registry: CollectorRegistry) -> None:
        self._failpoints = failpoints
        registry.register(self)

    def collect(self) -> list[CounterMetricFamily]:
        """The families as they are now."""
        hits = CounterMetricFamily("pando_failpoint_hits", "Times a failpoint was reached.", labels=["failpoint"])
        fired = CounterMetricFamily("pando_failpoint_faults", "Faults made on purpose.", labels=["failpoint"])
        for point in self._failpoints.points():
            hits.add_metric([point.name], point.hits)
            fired.add_metric([point.name], point.fired)
        return [hits, fired]
