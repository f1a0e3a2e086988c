"""What a store process measures; names follow `pando_kvstore_<thing>_<unit>`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from common.base.metrics import LATENCY_BUCKETS_S


class NodeMetrics:
    """Counters of a process, in the registry it was given."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"pando_kvstore_{name}", text, labels, registry=registry)

        self.lookups = counter("lookup_objects_total", "Objects that were looked up here, by answer.", "answer")
        self.puts = counter("put_objects_total", "Objects that were offered here, by answer.", "answer")
        self.put_bytes = counter("put_bytes_total", "Payload bytes that were taken.")
        self.lent_bytes = counter("lent_bytes_total", "Payload bytes that lookups made readable.")
        self.loads = counter("load_objects_total", "Objects that were read back from disk, by outcome.", "outcome")
        self.evicted = counter("evicted_objects_total", "Objects that lost a tier to make room.")
        self.expired_leases = counter("expired_leases_total", "Leases that nobody gave back in time.")
        self.disk_writes = counter("disk_writes_total", "Objects written to disk, by outcome.", "outcome")
        self.damaged = counter("damaged_objects_total", "Objects whose bytes were found to be wrong.")
        self.replicas = counter("replicas_total", "Copies of hot objects that were asked for, by outcome.", "outcome")
        self.terms = counter("terms_total", "Times that this process became the leader.")
        seconds = Histogram(
            "pando_kvstore_call_seconds", "Time of calls.", ["call"], buckets=LATENCY_BUCKETS_S, registry=registry
        )
        # Looked up once: a lookup of one object takes less time than finding its counters by label.
        self.hits, self.misses, self.errors = (self.lookups.labels(answer) for answer in ("hit", "miss", "error"))
        self.seconds = {call: seconds.labels(call) for call in ("lookup", "put")}


class StatsCollector(Collector):
    """Gauges that are read when they are asked for.

    Args:
        read: returns values by name; called on the exporter's thread, so it only reads numbers.
    """

    def __init__(self, read: Callable[[], dict[str, float]], registry: CollectorRegistry) -> None:
        self._read = read
        registry.register(self)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """All gauges."""
        for name, value in self._read().items():
            yield GaugeMetricFamily(f"pando_kvstore_{name}", _TEXTS[name], value)

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Names without values: registering must not read."""
        for name, text in _TEXTS.items():
            yield GaugeMetricFamily(f"pando_kvstore_{name}", text)


_TEXTS = {
    "objects": "Objects that this node has.",
    "bytes": "Headers and payloads of these.",
    "memory_bytes": "Headers and payloads in memory, staged ones included.",
    "memory_capacity_bytes": "Limit of the memory.",
    "disk_objects": "Objects on disk.",
    "disk_bytes": "Headers and payloads on disk.",
    "disk_capacity_bytes": "Limit of the disk, 0 without one.",
    "unwritten_bytes": "Objects that are not on disk yet.",
    "staged_bytes": "Objects that are being taken or loaded.",
    "leases": "Leases that are held by readers.",
    "leader_ratio": "1 while this process leads the store.",
    "directory_objects": "Names that the leader knows.",
    "directory_nodes": "Nodes that the leader follows.",
    "directory_complete_ratio": "1 while the leader knows what all nodes hold.",
    "term": "Highest term that this process knows.",
}
