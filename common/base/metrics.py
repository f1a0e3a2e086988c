"""Prometheus plumbing shared by all processes: bucket choices and the exporter.

Metrics live in a registry that `__main__` creates and hands down; there is no global one.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, start_http_server

LATENCY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""For TTFT, ITL, TPOT, e2e and step times."""


def new_registry() -> CollectorRegistry:
    """A registry with the process, platform and garbage collector metrics in it."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


class MetricsServer:
    """A Prometheus exporter on http://host:port/metrics, in a thread of its own; port 0 picks a free one.

    Attributes:
        address: host:port it listens on.
    """

    def __init__(self, registry: CollectorRegistry, host: str, port: int) -> None:
        self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        self.address = f"{host}:{self._server.server_port}"

    def close(self) -> None:
        """Stop serving and wait for the thread."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
