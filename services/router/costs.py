"""What a request would cost on each worker, as estimated time: the prefix policy's pricing.

Every term is seconds, from the worker's measured pace and its open load. A match shorter than `min_match_tokens` earns
nothing, so that a common first block does not pin all requests to whom it happened on. Blocks that other workers hold
can be fetched when that is quicker than computing them, which is how a hot prefix spreads when its owner is busy; what
has to be computed of a prefix that many running requests share is shared among them (`credit_s`). On a busy fleet
computing costs those who come after as well, and everywhere it delays the tokens of those who generate beside it
(`effort_s`), so that of two workers with equal times the one that has less to do for it, or disturbs fewer, is taken.
Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from services.router.load import Load
from services.router.policy import Candidate, Quote, Task
from services.router.popularity import Curve
from services.router.speeds import L2_BYTE_S, PEER_BYTE_S, Pace


@dataclass(slots=True)
class Standing:
    """One worker in one situation.

    Attributes:
        held_tokens: prompt tokens that it has; never the last one.
        num_blocks: blocks of the prompt's head that it has.
        below_tokens: those of `held_tokens` that are in its host memory only.
        landing: some of what it has is still on its way.
    """

    candidate: Candidate
    load: Load
    pace: Pace
    held_tokens: int
    num_blocks: int
    below_tokens: int
    landing: bool


@dataclass(slots=True)
class Situation:
    """What all prices of one plan share.

    Attributes:
        standings: all candidates.
        longest_tokens: what of the prompt can be fetched from some worker; 0: nothing.
        curve: how popular the prompt's blocks are; None: not at all.
        horizon_tokens: output tokens whose time counts; what runs beside later ones is not known now.
        disturbed_ratio: what of a prompt's time counts for each request that generates on the worker meanwhile.
        busy_ratio: part of the workers that compute prompts which have one to compute.
        alone: what was found of `curve`, by tokens to compute: most workers have the same number of them.
    """

    task: Task
    standings: list[Standing]
    longest_tokens: int
    curve: Curve | None
    busy_ratio: float
    now_s: float
    min_match_tokens: int
    horizon_tokens: int
    disturbed_ratio: float
    alone: dict[int, float] = field(default_factory=dict)


def price_prompt(situation: Situation, worker: Standing) -> Quote:
    """The cost of the first token when this worker computes the prompt."""
    task, load, pace, token_s = situation.task, worker.load, worker.pace, worker.pace.token_s
    matched = worker.held_tokens if worker.held_tokens >= situation.min_match_tokens else 0
    fetched = 0
    load_s = 0.0
    if situation.longest_tokens > matched or worker.below_tokens:
        byte_per_token = task.block_bytes / task.block_size
        if situation.longest_tokens > matched and PEER_BYTE_S * byte_per_token < token_s:
            fetched = situation.longest_tokens - matched
        load_s = (fetched * PEER_BYTE_S + min(matched, worker.below_tokens) * L2_BYTE_S) * byte_per_token
    compute_tokens = task.num_tokens - matched - fetched
    alone = compute_tokens if situation.curve is None else _computed_alone(situation, situation.curve, compute_tokens)
    queue_s = load.queue_s(token_s, situation.now_s)
    prefill_s = pace.start_s + compute_tokens * token_s
    disturbed_s = situation.disturbed_ratio * load.num_requests * prefill_s
    effort_s = alone * token_s * situation.busy_ratio + disturbed_s
    credit_s = (compute_tokens - alone) * token_s
    first_token_s = queue_s + prefill_s + load_s
    return Quote(
        worker.candidate,
        worker.held_tokens,
        compute_tokens,
        queue_s,
        prefill_s,
        load_s,
        effort_s,
        credit_s,
        load.last_used,
        first_token_s,
        first_token_s + effort_s - credit_s,
    )


def price_decode(situation: Situation, worker: Standing, prompt: Quote, *, remote: bool) -> Quote:
    """The cost of generating on this worker, its prompt being computed as `prompt` says (elsewhere when `remote`)."""
    task, load, pace = situation.task, worker.load, worker.pace
    step_s = pace.step_s + load.num_requests * pace.request_s
    room_s = _wait_for_room_s(task, load, task.expected_output_tokens * step_s)
    transfer_s = 0.0
    if remote:
        transfer_s = (task.num_tokens - worker.held_tokens) * task.block_bytes / task.block_size * pace.byte_s
    queue_s = max(room_s, prompt.queue_s) if remote else room_s + prompt.queue_s
    decode_s = min(task.expected_output_tokens, situation.horizon_tokens) * step_s
    first_token_s = queue_s + prompt.prefill_s + prompt.load_s + transfer_s
    return Quote(
        worker.candidate,
        worker.held_tokens,
        prompt.compute_tokens,
        queue_s,
        prompt.prefill_s,
        prompt.load_s,
        prompt.effort_s,
        prompt.credit_s,
        load.last_used,
        first_token_s,
        first_token_s + decode_s + prompt.effort_s - prompt.credit_s,
        transfer_s,
        decode_s,
        remote,
    )


def _computed_alone(situation: Situation, curve: Curve, compute_tokens: int) -> float:
    """How many of the last `compute_tokens` of the prompt count for this request alone."""
    task = situation.task
    found = situation.alone.get(compute_tokens)
    if found is not None:
        return found
    num_blocks = len(task.hashes)
    known = task.num_tokens - compute_tokens
    rest = task.num_tokens - max(known, num_blocks * task.block_size)
    blocks = curve.total - curve.blocks(min(num_blocks, known // task.block_size))
    found = situation.alone[compute_tokens] = max(0.0, min(compute_tokens, rest + blocks * task.block_size))
    return found


def _wait_for_room_s(task: Task, load: Load, residence_s: float) -> float:
    """Time until a full worker has let enough requests go; each stays about as long as this one would."""
    over = 0.0
    if load.max_requests:
        over = (load.num_requests + 1 - load.max_requests) / load.max_requests
    if load.max_context_tokens:
        wanted = load.context_tokens + task.num_tokens + task.expected_output_tokens
        over = max(over, (wanted - load.max_context_tokens) / load.max_context_tokens)
    return over * residence_s if over > 0 else 0.0
