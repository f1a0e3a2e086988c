"""Metrics of the gateway and the timer that feeds the latency histograms of one generation."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from common.base.clock import Clock
from common.base.metrics import LATENCY_BUCKETS_S
from services.gateway.context import Outcome


class GatewayMetrics:
    """All metrics of one gateway, in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.requests = Counter(
            "pando_gateway_requests_total",
            "HTTP requests that ended, by route and outcome (ok, client_error, server_error, disconnect)",
            ["route", "outcome"],
            registry=registry,
        )
        self.running = Gauge(
            "pando_gateway_requests_running",
            "generations between their first RPC and their last byte",
            registry=registry,
        )
        self.e2e_s = _histogram("pando_gateway_e2e_seconds", "from a generation's arrival to its last byte", registry)
        self.ttft_s = _histogram("pando_gateway_ttft_seconds", "from arrival to the first token, all prompts", registry)
        self.itl_s = _histogram("pando_gateway_itl_seconds", "gap between two tokens of one choice", registry)
        self.tokens = Counter(
            "pando_gateway_tokens_total",
            "tokens of ended generations (prompt, cached, generated)",
            ["kind"],
            registry=registry,
        )

    def count(self, route: str, outcome: Outcome) -> None:
        """One HTTP request is over."""
        self.requests.labels(route, outcome.value).inc()


def _histogram(name: str, text: str, registry: CollectorRegistry) -> Histogram:
    return Histogram(name, text, buckets=LATENCY_BUCKETS_S, registry=registry)


class GenerationTimer:
    """Times one generation: TTFT at its first token, ITL per choice, e2e at its end."""

    def __init__(self, metrics: GatewayMetrics, clock: Clock, started_s: float) -> None:
        self._metrics = metrics
        self._clock = clock
        self._started_s = started_s
        self._last_s: dict[int, float] = {}

    def on_tokens(self, choice: int, count: int) -> None:
        """`count` tokens of a choice came in one frame; their gap is shared evenly."""
        if count == 0:
            return
        now = self._clock()
        if not self._last_s:
            self._metrics.ttft_s.observe(now - self._started_s)
        last = self._last_s.get(choice)
        self._last_s[choice] = now
        if last is not None:
            for _ in range(count):
                self._metrics.itl_s.observe((now - last) / count)

    def on_end(self) -> None:
        """The last byte is written."""
        self._metrics.e2e_s.observe(self._clock() - self._started_s)
