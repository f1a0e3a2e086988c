"""What a request would cost on each worker, as estimated time: the prefix policy's pricing.

Every term is seconds, from the worker's measured pace and its open load. A match shorter than `min_match_tokens` earns
nothing, so that a common first block does not pin all requests to whom it happened on. Blocks that other workers hold
can be fetched when that is quicker than computing them, which is how a hot prefix spreads when its owner is busy; what
has to be computed of a prefix that many running requests share is shared among them (`credit_s`). On a busy fleet
computing costs those who come after as well (`effort_s`), so that of two workers with equal times the one that has less
to do for it is taken. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from services.router.load import Load
from services.router.policy import Candidate, Quote, Task
from services.router.popularity import Curve
from services.router.prefix_view import WorkerKey
from services.router.speeds import L2_BYTE_S, Pace


@dataclass(slots=True, frozen=True)
class Situation:
    """All that prices depend on, gathered once per plan.

    Attributes:
        matches: blocks of the prompt's head by worker, all tiers.
        upper: those of them in L1, by worker; a worker that is not in it has all of its match there.
        landing: workers some of whose match is still on its way to them.
        longest: blocks of the longest match that can be fetched from some worker; 0: nothing can be.
        busy_ratio: part of the workers that compute prompts which have one to compute.
    """

    task: Task
    matches: Mapping[WorkerKey, int]
    upper: Mapping[WorkerKey, int]
    landing: Collection[WorkerKey]
    longest: int
    curve: Curve
    load: Callable[[WorkerKey], Load]
    pace: Callable[[WorkerKey], Pace]
    now_s: float
    min_match_tokens: int
    busy_ratio: float

    def held_tokens(self, key: WorkerKey) -> int:
        """Prompt tokens that the worker has; never the last one."""
        return min(self.matches.get(key, 0) * self.task.block_size, self.task.num_tokens - 1)

    def uncached_tokens(self, key: WorkerKey) -> int:
        """Tokens that it lacks."""
        return self.task.num_tokens - self.held_tokens(key)


def price_prompt(situation: Situation, candidate: Candidate) -> Quote:
    """The cost of the first token when this worker computes the prompt."""
    task, key = situation.task, candidate.key
    load, pace = situation.load(key), situation.pace(key)
    block_size, last = task.block_size, task.num_tokens - 1
    held = situation.held_tokens(key)
    matched = held if held >= situation.min_match_tokens else 0
    byte_per_token = task.block_bytes / block_size
    fetched = 0
    if situation.longest and pace.byte_s * byte_per_token < pace.token_s:
        reachable = min(situation.longest * block_size, last)
        fetched = max(0, reachable - matched) if reachable >= situation.min_match_tokens else 0
    below = max(0, matched - situation.upper.get(key, len(task.hashes)) * block_size)
    known = matched + fetched
    alone = _computed_alone(situation, known)
    return Quote(
        candidate,
        cached_tokens=held,
        compute_tokens=task.num_tokens - known,
        queue_s=load.queue_s(pace.token_s, situation.now_s),
        prefill_s=pace.start_s + (task.num_tokens - known) * pace.token_s,
        load_s=(fetched * pace.byte_s + below * L2_BYTE_S) * byte_per_token,
        effort_s=alone * pace.token_s * situation.busy_ratio,
        credit_s=(task.num_tokens - known - alone) * pace.token_s,
    )


def price_decode(situation: Situation, candidate: Candidate, *, remote: bool) -> Quote:
    """The cost of generating on this worker, its prompt's KV coming from elsewhere when `remote`."""
    task, key = situation.task, candidate.key
    load, pace = situation.load(key), situation.pace(key)
    step_s = pace.step_s + load.num_requests * pace.request_s
    decode_s = task.expected_output_tokens * step_s
    moved = situation.uncached_tokens(key) * task.block_bytes / task.block_size if remote else 0.0
    return Quote(
        candidate,
        cached_tokens=situation.held_tokens(key),
        queue_s=_wait_for_room_s(task, load, decode_s),
        transfer_s=moved * pace.byte_s,
        decode_s=decode_s,
    )


def _computed_alone(situation: Situation, known: int) -> float:
    """Tokens after `known` that count for this request alone."""
    task = situation.task
    num_blocks = len(task.hashes)
    rest = task.num_tokens - max(known, num_blocks * task.block_size)
    blocks = situation.curve.blocks(num_blocks) - situation.curve.blocks(min(num_blocks, known // task.block_size))
    return max(0.0, rest + blocks * task.block_size)


def _wait_for_room_s(task: Task, load: Load, residence_s: float) -> float:
    """Time until a full worker has let enough requests go; each stays about as long as this one would."""
    over = 0.0
    if load.max_requests:
        over = (load.num_requests + 1 - load.max_requests) / load.max_requests
    if load.max_context_tokens:
        wanted = load.context_tokens + task.num_tokens + task.expected_output_tokens
        over = max(over, (wanted - load.max_context_tokens) / load.max_context_tokens)
    return max(0.0, over) * residence_s
