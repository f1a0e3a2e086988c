"""Decisions as Explain tells them; with `convert.py` the place where protobuf messages are built."""

from __future__ import annotations

from collections.abc import Sequence

from pando.v1 import inference_pb2, types_pb2
from services.router.decisions import Decision
from services.router.metrics import TIERS
from services.router.policy import Plan, Quote


def explanation_to_pb(
    request_id: str, policy: str, decisions: Sequence[Decision], now_s: float
) -> inference_pb2.ExplainResponse:
    """The answer to Explain; `found` is false without decisions."""
    return inference_pb2.ExplainResponse(
        found=bool(decisions),
        request_id=request_id,
        policy=policy,
        decisions=[_decision(one, now_s) for one in decisions],
    )


def _decision(decision: Decision, now_s: float) -> inference_pb2.Decision:
    placement = decision.placement
    plan = placement.plan
    return inference_pb2.Decision(
        choice=decision.choice,
        attempt=decision.attempt,
        age_s=now_s - placement.started_s,
        num_tokens=placement.num_tokens,
        decode_worker=plan.decode.key[0],
        prefill_worker=plan.prefill.key[0] if plan.prefill else "",
        reason=plan.reason,
        sources=[source.worker.key[0] for source in plan.sources],
        candidates=_candidates(plan),
        outcome=placement.outcome,
        expected_ttft_s=plan.first_token_s,
        ttft_s=placement.first_token_s or 0.0,
        reused=_reused(decision),
    )


def _reused(decision: Decision) -> types_pb2.CachedTokens | None:
    reuse = decision.placement.reuse
    if reuse is None:
        return None
    return types_pb2.CachedTokens(**{tier: reuse.cached_tokens.get(tier, 0) for tier in TIERS})


def _candidates(plan: Plan) -> list[inference_pb2.CandidateCost]:
    chosen = {("decode", plan.decode.key), ("prefill", plan.prefill.key if plan.prefill else None)}
    quotes = [("decode", quote) for quote in plan.decode_quotes] + [("prefill", one) for one in plan.prefill_quotes]
    return [_candidate(role, quote, (role, quote.candidate.key) in chosen) for role, quote in quotes]


def _candidate(role: str, quote: Quote, chosen: bool) -> inference_pb2.CandidateCost:
    return inference_pb2.CandidateCost(
        worker_id=quote.candidate.key[0],
        role=role,
        cached_tokens=quote.cached_tokens,
        queue_s=quote.queue_s,
        prefill_s=quote.prefill_s,
        load_s=quote.load_s,
        transfer_s=quote.transfer_s,
        decode_s=quote.decode_s,
        effort_s=quote.effort_s,
        credit_s=quote.credit_s,
        total_s=quote.total_s,
        chosen=chosen,
    )
