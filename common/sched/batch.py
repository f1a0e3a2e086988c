"""One step's work: how many tokens of whom, written down for the engine. Pure functions.

Decode rows (one token to compute) go first, each costs one token of the budget; then prompts in order of rank, each at
most a chunk, while the budget lasts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from common.sched.config import WHOLE_PROMPT, SchedulerConfig
from common.sched.plan import SampleSpec, SequenceStep
from common.sched.request import Request

Share = tuple[Request, int]


def share_out(running: Sequence[Request], config: SchedulerConfig) -> list[Share]:
    """Return who computes how many tokens in the next step, within seats and token budget.

    Args:
        running: in order of rank, each with at least one token to compute.
        config: budget, seats, chunk size.
    """
    shares: list[Share] = [(r, 1) for r in running if r.num_uncomputed == 1][: config.max_num_seqs]
    left = config.max_batch_tokens - len(shares)
    num_whole = 0
    for request in running:
        if len(shares) == config.max_num_seqs or left <= 0:
            break
        if request.num_uncomputed == 1:
            continue
        if config.chunked_prefill_size == WHOLE_PROMPT:
            if num_whole and request.num_uncomputed > left:
                break
            num_whole += 1
            share = request.num_uncomputed
        else:
            share = min(request.num_uncomputed, config.chunked_prefill_size, left)
        shares.append((request, share))
        left -= share
    return shares


def demand(request: Request, config: SchedulerConfig) -> int:
    """Return how much of a step's budget a request could use."""
    if config.chunked_prefill_size == WHOLE_PROMPT:
        return request.num_uncomputed
    return min(request.num_uncomputed, config.chunked_prefill_size)


def to_steps(shares: Iterable[Share]) -> list[SequenceStep]:
    """Write the shares down for the engine."""
    return [_to_step(request, count) for request, count in shares]


def _to_step(request: Request, count: int) -> SequenceStep:
    start, stop = request.num_computed, request.num_computed + count
    targets: Sequence[int] = ()
    if request.num_missing_prompt_logprobs:
        targets = request.prompt_ids[start + 1 : stop + 1]
    return SequenceStep(
        request_id=request.request_id,
        token_ids=request.tokens(start, stop),
        start=start,
        block_table=request.block_table[: request.num_blocks_for(stop)],
        sample=_sample_spec(request) if stop == request.num_tokens else None,
        prompt_logprobs=request.params.prompt_logprobs if targets else None,
        targets=targets,
        digest=request.digest,
    )


def _sample_spec(request: Request) -> SampleSpec:
    return SampleSpec(
        params=request.params,
        seed=request.seed,
        choice=request.choice,
        position=len(request.output_ids),
        prompt_ids=request.prompt_ids,
        output_ids=request.output_ids,
        constraint=request.constraint,
        may_jump=_may_jump(request),
    )


def _may_jump(request: Request) -> bool:
    """Whether tokens may be appended that no step computes logits for."""
    params = request.params
    return params.logprobs is None and not request.digest and len(request.output_ids) >= params.min_tokens
