"""What the router measures; names follow `pando_router_<thing>_<unit>`.

A `RequestTrace` follows one request and turns its frames into TTFT (time to first token), ITL (gap between two
tokens), TPOT ((e2e - TTFT) / (n - 1) per choice) and e2e, so that these are never mixed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from common.base.errors import PandoError
from common.base.metrics import LATENCY_BUCKETS_S
from services.router.latency import RecentLatency

TIERS = ("l1", "l2", "l3", "peer")
RECENT_S = 30.0
"""How far back the latencies go that the role controller looks at."""
_OUTCOMES = {
    "INVALID_ARGUMENT": "invalid",
    "NOT_FOUND": "invalid",
    "UNIMPLEMENTED": "invalid",
    "RESOURCE_EXHAUSTED": "overloaded",
    "UNAVAILABLE": "unavailable",
    "ABORTED": "unavailable",
    "DEADLINE_EXCEEDED": "deadline",
    "CANCELLED": "abort",
}


def outcome_of(error: PandoError) -> str:
    """The outcome label of a failed request."""
    return _OUTCOMES.get(error.grpc_code, "error")


class RouterMetrics:
    """All metrics of one router, in the registry it was given."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"pando_router_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"pando_router_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(f"pando_router_{name}", text, buckets=LATENCY_BUCKETS_S, registry=registry)

        self.requests = counter("requests_total", "Generate requests by how they ended.", "outcome")
        self.running = gauge("running_requests", "Requests in flight.")
        self.queued_tokens = gauge("queued_tokens", "Uncached prompt tokens of requests that wait in the router.")
        self.queued_requests = gauge("queued_requests", "Requests that wait in the router.")
        self.queued_tenants = gauge("queued_tenants", "Tenants with a request that waits in the router.")
        self.dispatched_tokens = gauge(
            "dispatched_tokens", "Uncached prompt tokens of requests at the workers that have no first token yet."
        )
        self.dispatch_limit_tokens = gauge("dispatch_limit_tokens", "Bound on dispatched tokens, by measured speed.")
        self.queue_seconds = histogram("queue_seconds", "Time in the router's queue, of requests that got a token.")
        self.refusals = counter("refusals_total", "Requests refused for want of room or time, by reason.", "reason")
        self.put_backs = counter("put_backs_total", "Requests that no worker had room for, so that they wait again.")
        self.ttft = histogram("ttft_seconds", "Time from a request's arrival to its first token.")
        self.itl = histogram(
            "itl_seconds", "Gap between two tokens of a choice; a frame's gap is shared by its tokens."
        )
        self.tpot = histogram("tpot_seconds", "Time per output token after the first, per choice.")
        self.e2e = histogram("e2e_seconds", "Time from a request's arrival to its end, successful ones.")
        self.planning = histogram(
            "planning_seconds",
            "Time from arrival to the first call to a worker, of requests that got a token.",
        )
        self.prompt_tokens = counter("prompt_tokens_total", "Prompt tokens of answered requests.")
        cached = counter("cached_tokens_total", "Prompt tokens that nobody had to compute.", "tier")
        self.cached_tokens = {tier: cached.labels(tier) for tier in TIERS}
        self.generated_tokens = counter("generated_tokens_total", "Output tokens sent to clients.")
        self.plans = counter("plans_total", "Placements by where and why the prompt is computed.", "reason")
        self.retries = counter("retries_total", "Attempts repeated before the first token, by the leg blamed.", "leg")
        self.migrations = counter("migrations_total", "Streams moved after the first token, by the leg blamed.", "leg")
        self.retries_refused = counter(
            "retries_refused_total", "Requests that failed because the budget of retries was used up."
        )
        self.retry_budget = gauge("retry_budget_retries", "Retries before a first token that may be made now.")
        self.breakers = gauge("open_breakers", "Workers that get no work of a role because they failed at it.", "role")
        self.workers = gauge("workers", "Workers by state.", "state")
        self.role_pressure = gauge(
            "role_pressure_ratio", "Load of a role over its targets, as the role controller sees it.", "role"
        )
        self.role_moves = counter(
            "role_moves_total",
            "Moves by the role that is gained and what came of it (advised, done, failed).",
            "role",
            "outcome",
        )
        self.recent_ttft = RecentLatency(RECENT_S)
        self.recent_tpot = RecentLatency(RECENT_S)
        self.view_blocks = gauge("view_blocks", "Different KV blocks in the prefix view.")
        self.view_dropped = gauge("view_dropped_blocks", "Blocks that the prefix view had no room for.")
        self.view_workers = gauge(
            "view_workers", "Workers by what their entries in the prefix view are worth: exact or not yet.", "trust"
        )
        self.speculations = gauge(
            "speculations", "Prompts on their way to a worker whose blocks count as held there already."
        )


@dataclass(slots=True)
class _ChoiceTimes:
    first_s: float
    last_s: float
    num_tokens: int


class RequestTrace:
    """Times and tokens of one request.

    Attributes:
        on_planned: called when its workers are chosen and charged.
    """

    def __init__(self, metrics: RouterMetrics, now_s: float) -> None:
        self._metrics = metrics
        self._start_s = self._planned_s = now_s
        self._choices: dict[int, _ChoiceTimes] = {}
        self.on_planned: Callable[[], object] = lambda: None

    def planned(self, now_s: float) -> None:
        """The first call to a worker leaves."""
        self._planned_s = now_s
        self.on_planned()

    def tokens(self, choice: int, count: int, now_s: float) -> None:
        """A frame with `count` tokens passes."""
        self._metrics.generated_tokens.inc(count)
        times = self._choices.get(choice)
        if times is None:
            if not self._choices:
                self._metrics.planning.observe(self._planned_s - self._start_s)
                self._metrics.ttft.observe(now_s - self._start_s)
                self._metrics.recent_ttft.add(now_s, now_s - self._planned_s)
            self._choices[choice] = _ChoiceTimes(now_s, now_s, count)
            return
        gap_s = (now_s - times.last_s) / count
        for _ in range(count):
            self._metrics.itl.observe(gap_s)
        times.last_s = now_s
        times.num_tokens += count

    def prompt(self, num_tokens: int, cached: Mapping[str, int]) -> None:
        """The first choice tells what the prompt cost."""
        self._metrics.prompt_tokens.inc(num_tokens)
        for tier, count in cached.items():
            if count:
                self._metrics.cached_tokens[tier].inc(count)

    def finish(self, outcome: str, now_s: float) -> None:
        """The request is over."""
        self._metrics.requests.labels(outcome).inc()
        if outcome != "ok":
            return
        self._metrics.e2e.observe(now_s - self._start_s)
        for times in self._choices.values():
            if times.num_tokens > 1:
                tpot_s = (times.last_s - times.first_s) / (times.num_tokens - 1)
                self._metrics.tpot.observe(tpot_s)
                self._metrics.recent_tpot.add(now_s, tpot_s)
