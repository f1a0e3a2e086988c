"""What a worker exports to Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from common.base.metrics import LATENCY_BUCKETS_S
from common.sched.plan import StepPlan, StepResult
from common.sched.request import Request

STEP_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class WorkerMetrics:
    """Counters and histograms of one worker; gauges read the state through functions given to `gauge`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.requests = Counter(
            "pando_worker_requests_total",
            "Requests that ended on this worker, by outcome (stop, length, abort, error, overloaded).",
            ["outcome"],
            registry=registry,
        )
        self.step_seconds = Histogram(
            "pando_worker_engine_step_seconds",
            "Wall time of an engine step, by phase (prefill: prompt tokens in it, decode: none).",
            ["phase"],
            buckets=STEP_BUCKETS_S,
            registry=registry,
        )
        self.step_tokens = Counter(
            "pando_worker_engine_tokens_total",
            "Token rows computed by the engine, by phase of the step.",
            ["phase"],
            registry=registry,
        )
        self.generated = Counter(
            "pando_worker_generated_tokens_total", "Output tokens drawn on this worker.", registry=registry
        )
        self.forced = Counter(
            "pando_worker_forced_tokens_total",
            "Output tokens that a grammar forced and no step drew.",
            registry=registry,
        )
        self.late = Counter(
            "pando_worker_late_masks_total",
            "Times that a sequence had to wait a step because its grammar's mask was not ready.",
            registry=registry,
        )
        self.prompt_tokens = Counter(
            "pando_worker_prompt_tokens_total", "Prompt tokens of requests that began here.", registry=registry
        )
        self.cached_tokens = Counter(
            "pando_worker_cached_tokens_total",
            "Prompt tokens that nobody computed for their request, by tier that held their KV.",
            ["tier"],
            registry=registry,
        )
        self.preemptions = Counter(
            "pando_worker_preemptions_total", "Requests whose blocks were taken to let others run.", registry=registry
        )
        self.evictions = Counter(
            "pando_worker_evicted_blocks_total", "Cached blocks that gave way to others.", registry=registry
        )
        self._num_preemptions = self._num_evictions = 0
        self.num_prompt = self.num_cached = 0
        self.num_cached_by_tier: dict[str, int] = {"l1": 0, "l2": 0, "l3": 0, "peer": 0}
        self.ttft = Histogram(
            "pando_worker_ttft_seconds",
            "From arrival on this worker to its first token.",
            buckets=LATENCY_BUCKETS_S,
            registry=registry,
        )
        self.itl = Histogram(
            "pando_worker_itl_seconds",
            "Time between two tokens of one request.",
            buckets=LATENCY_BUCKETS_S,
            registry=registry,
        )
        self.tpot = Histogram(
            "pando_worker_tpot_seconds",
            "Per request: from its first token to its last, divided by the tokens after the first.",
            buckets=LATENCY_BUCKETS_S,
            registry=registry,
        )
        self.e2e = Histogram(
            "pando_worker_e2e_seconds",
            "From the arrival of a request for output on this worker to its last token.",
            buckets=LATENCY_BUCKETS_S,
            registry=registry,
        )
        self.handoffs = Counter(
            "pando_worker_handoffs_total",
            "Handoffs by side (decode, prefill) and outcome (ok, failed).",
            ["side", "outcome"],
            registry=registry,
        )
        self.fetched_blocks = Counter(
            "pando_worker_fetched_blocks_total",
            "Blocks read from peers, by kind (handoff, prefix).",
            ["kind"],
            registry=registry,
        )
        self.integrity_failures = Counter(
            "pando_worker_integrity_failures_total",
            "Blocks that were refused because their bytes were not what was promised.",
            registry=registry,
        )

    def finished(self, outcome: str) -> None:
        """Count the end of a request."""
        self.requests.labels(outcome).inc()

    def step(self, plan: StepPlan, result: StepResult) -> None:
        """Count one engine step."""
        phase = "prefill" if plan.num_tokens > len(plan.sequences) else "decode"
        self.step_seconds.labels(phase).observe(result.elapsed_s)
        self.step_tokens.labels(phase).inc(plan.num_tokens)
        num_forced = sum(len(token.forced_ids) for token in result.sampled.values())
        self.generated.inc(len(result.sampled) + num_forced)
        self.forced.inc(num_forced)
        self.late.inc(len(result.late))

    def prompt_done(self, request: Request) -> None:
        """Count the prompt of a request that was computed here, once its first token is known."""
        self.prompt_tokens.inc(len(request.prompt_ids))
        self.num_prompt += len(request.prompt_ids)
        for tier, num_tokens in request.num_cached_tokens.items():
            self.cached_tokens.labels(tier).inc(num_tokens)
            self.num_cached += num_tokens
            self.num_cached_by_tier[tier] += num_tokens

    def totals(self, num_preemptions: int, num_evictions: int) -> None:
        """Bring the counters of events that scheduler and cache count themselves up to date."""
        self.preemptions.inc(num_preemptions - self._num_preemptions)
        self.evictions.inc(num_evictions - self._num_evictions)
        self._num_preemptions, self._num_evictions = num_preemptions, num_evictions

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Export a value that is read when scraped."""
        Gauge(name, text, registry=self._registry).set_function(value)
