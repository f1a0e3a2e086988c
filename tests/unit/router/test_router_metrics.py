"""TTFT, ITL, TPOT and e2e are told apart, and every error has an outcome."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from common.base import errors
from services.router.metrics import RequestTrace, RouterMetrics, outcome_of


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def value(registry: CollectorRegistry, name: str, **labels: str) -> float:
    return registry.get_sample_value(f"pando_router_{name}", labels) or 0.0


def test_times_of_two_choices(registry: CollectorRegistry) -> None:
    trace = RequestTrace(RouterMetrics(registry), 10.0)
    trace.planned(10.1)
    trace.tokens(0, 1, 11.0)
    trace.tokens(1, 1, 12.0)
    trace.tokens(0, 2, 13.0)
    trace.tokens(0, 1, 14.0)
    trace.prompt(40, {"l1": 16, "peer": 0})
    trace.finish("ok", 15.0)
    assert value(registry, "planning_seconds_sum") == pytest.approx(0.1)
    assert (value(registry, "ttft_seconds_count"), value(registry, "ttft_seconds_sum")) == (1, 1.0)
    assert (value(registry, "itl_seconds_count"), value(registry, "itl_seconds_sum")) == (3, 3.0)
    assert (value(registry, "tpot_seconds_count"), value(registry, "tpot_seconds_sum")) == (1, 1.0)
    assert value(registry, "e2e_seconds_sum") == 5.0
    assert value(registry, "generated_tokens_total") == 5
    assert value(registry, "prompt_tokens_total") == 40
    assert value(registry, "cached_tokens_total", tier="l1") == 16
    assert value(registry, "requests_total", outcome="ok") == 1


def test_recent_times_are_kept_for_the_role_controller(registry: CollectorRegistry) -> None:
    metrics = RouterMetrics(registry)
    for _ in range(5):
        trace = RequestTrace(metrics, 10.0)
        trace.planned(12.0)
        trace.tokens(0, 1, 13.0)
        trace.tokens(0, 4, 15.0)
        trace.finish("ok", 16.0)
    assert metrics.recent_ttft.percentile(0.9, 16.0) == 1.0, "from its start at a worker: who waits here has no place"
    assert metrics.recent_tpot.percentile(0.9, 16.0) == 0.5


def test_failures_count_but_give_no_times(registry: CollectorRegistry) -> None:
    trace = RequestTrace(RouterMetrics(registry), 10.0)
    trace.tokens(0, 5, 11.0)
    trace.finish("unavailable", 12.0)
    assert value(registry, "requests_total", outcome="unavailable") == 1
    assert value(registry, "e2e_seconds_count") == value(registry, "tpot_seconds_count") == 0


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (errors.InvalidRequest("x"), "invalid"),
        (errors.ModelNotFound("x"), "invalid"),
        (errors.Unsupported("x"), "invalid"),
        (errors.Overloaded("x"), "overloaded"),
        (errors.PeerLost("x"), "unavailable"),
        (errors.HandoffAborted("x"), "unavailable"),
        (errors.DeadlineExceeded("x"), "deadline"),
        (errors.Cancelled("x"), "abort"),
        (errors.LayoutMismatch("x"), "error"),
        (errors.Internal("x"), "error"),
    ],
)
def test_outcomes(error: errors.PandoError, outcome: str) -> None:
    assert outcome_of(error) == outcome


def test_all_metrics_have_names_and_help(registry: CollectorRegistry) -> None:
    RouterMetrics(registry)
    for family in registry.collect():
        assert family.name.startswith("pando_router_") and family.documentation
