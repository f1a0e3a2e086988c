"""Metrics of the gateway and the timer that feeds the latency histograms of one generation."""

from __future__ import annotations

from dataclasses import dataclass

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
            "pando_gateway_running_requests",
            "generations between their first RPC and their last byte",
            registry=registry,
        )
        self.e2e_s = _histogram("pando_gateway_e2e_seconds", "from a generation's arrival to its last byte", registry)
        self.ttft_s = _histogram("pando_gateway_ttft_seconds", "from arrival to the first token, all prompts", registry)
        self.itl_s = _histogram("pando_gateway_itl_seconds", "gap between two tokens of one choice", registry)
        self.tpot_s = _histogram("pando_gateway_tpot_seconds", "time per token after the first, per choice", registry)
        self.tokens = Counter(
            "pando_gateway_tokens_total",
            "tokens of ended generations (prompt, cached, generated)",
            ["kind"],
            registry=registry,
        )
        self.prompt_tokens = self.tokens.labels("prompt")
        self.cached_tokens = self.tokens.labels("cached")
        self.generated_tokens = self.tokens.labels("generated")

        self.router_moves = Counter(
            "pando_gateway_router_moves_total",
            "calls that their router failed and another one takes over, by phase (before or after the first token)",
            ["phase"],
            registry=registry,
        )
        self.rewrites = Counter(
            "pando_gateway_rewrites_total",
            "first user messages that a rule of prompt normalisation rewrote",
            ["rule"],
            registry=registry,
        )

    def router_moved(self, begun: bool) -> None:
        """A call goes on at another router, or ends if there is none."""
        self.router_moves.labels("after" if begun else "before").inc()

    def count(self, route: str, outcome: Outcome) -> None:
        """One HTTP request is over."""
        self.requests.labels(route, outcome.value).inc()


def _histogram(name: str, text: str, registry: CollectorRegistry) -> Histogram:
    return Histogram(name, text, buckets=LATENCY_BUCKETS_S, registry=registry)


@dataclass(slots=True)
class _ChoiceTimes:
    first_s: float
    last_s: float
    num_tokens: int


class GenerationTimer:
    """Times one generation: TTFT at its first token, ITL per gap of a choice, TPOT per choice and e2e at its end."""

    def __init__(self, metrics: GatewayMetrics, clock: Clock, started_s: float) -> None:
        self._metrics = metrics
        self._clock = clock
        self._started_s = started_s
        self._choices: dict[int, _ChoiceTimes] = {}

    def on_tokens(self, choice: int, count: int) -> None:
        """`count` tokens of a choice came in one frame; their gap is shared evenly."""
        if count == 0:
            return
        now = self._clock()
        if not self._choices:
            self._metrics.ttft_s.observe(now - self._started_s)
        times = self._choices.get(choice)
        if times is None:
            self._choices[choice] = _ChoiceTimes(now, now, count)
            return
        for _ in range(count):
            self._metrics.itl_s.observe((now - times.last_s) / count)
        times.last_s = now
        times.num_tokens += count

    def on_end(self) -> None:
        """The last byte is written."""
        self._metrics.e2e_s.observe(self._clock() - self._started_s)
        for times in self._choices.values():
            if times.num_tokens > 1:
                self._metrics.tpot_s.observe((times.last_s - times.first_s) / (times.num_tokens - 1))
