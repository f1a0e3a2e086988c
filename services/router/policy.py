"""The plan: which worker decodes, which computes the prompt, and who else holds a part of it.

Pure and replayable: matches, loads and exclusions in, a `Plan` (or None: nobody can) out. The cost of a worker is the
number of tokens it has to compute before and for this request: what it is charged with, plus the part of the request
that its cache lacks. Decode is chosen first; the prompt goes to a prefill worker only when the uncached part is worth
the trip. Ties go to the worker that was used least recently. Knows nothing about time, calls or tokens' values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from services.router.prefix_view import WorkerKey

MAX_SOURCES = 2


@dataclass(slots=True, frozen=True)
class Candidate:
    """A worker that may be chosen.

    Attributes:
        address: gRPC host:port.
        queued_tokens: tokens it has to compute already.
        last_used: position of its last use; lower is longer ago.
    """

    key: WorkerKey
    address: str
    can_decode: bool
    can_prefill: bool
    queued_tokens: int = 0
    last_used: int = 0


@dataclass(slots=True, frozen=True)
class Task:
    """What is to be placed.

    Attributes:
        num_tokens: known tokens, prompt and output so far, >= 1.
        block_size: tokens per block.
        expected_output_tokens: tokens that it will probably generate.
        matches: blocks of the prompt that each worker holds, contiguous from the first.
        landing: workers some of whose `matches` may still be on their way to them.
    """

    num_tokens: int
    block_size: int
    expected_output_tokens: int
    matches: Mapping[WorkerKey, int]
    landing: Collection[WorkerKey] = ()

    def uncached_tokens(self, key: WorkerKey) -> int:
        """Tokens a worker would compute; the last one always."""
        return self.num_tokens - min(self.matches.get(key, 0) * self.block_size, self.num_tokens - 1)


@dataclass(slots=True, frozen=True)
class Exclusions:
    """Workers that this request must not use again for a role, and the decode worker it must keep, if any."""

    decode: Collection[WorkerKey] = ()
    prefill: Collection[WorkerKey] = ()
    keep_decode: WorkerKey | None = None


@dataclass(slots=True, frozen=True)
class Source:
    """A worker that holds the first `num_blocks` of the prompt."""

    worker: Candidate
    num_blocks: int


@dataclass(slots=True, frozen=True)
class Plan:
    """Where one choice runs.

    Attributes:
        prefill: computes what decode lacks; None: decode itself does.
        sources: workers that hold more than the one who computes, longest first.
        prompt_tokens: what to charge to the one who computes the prompt.
        output_tokens: what to charge to decode beside.
        reason: why the prompt is computed where it is: short_suffix, no_prefill_worker, decode_is_best,
            remote, landing (decode fetches what has not come yet).
    """

    decode: Candidate
    prefill: Candidate | None
    sources: tuple[Source, ...]
    prompt_tokens: int
    output_tokens: int
    reason: str


def plan(task: Task, workers: Sequence[Candidate], excluded: Exclusions, remote_prefill_min_tokens: int) -> Plan | None:
    """Place a task; None when no worker can decode."""
    decode = _choose_decode(task, workers, excluded)
    if decode is None:
        return None
    prefill, reason = _choose_prefill(task, workers, excluded, decode, remote_prefill_min_tokens)
    computing = prefill or decode
    return Plan(
        decode=decode,
        prefill=prefill,
        sources=_sources(task, workers, computing),
        prompt_tokens=task.uncached_tokens(computing.key),
        output_tokens=task.expected_output_tokens,
        reason=reason,
    )


def _cost(task: Task, worker: Candidate) -> tuple[int, int, str]:
    return worker.queued_tokens + task.uncached_tokens(worker.key), worker.last_used, worker.key[0]


def _choose_decode(task: Task, workers: Sequence[Candidate], excluded: Exclusions) -> Candidate | None:
    able = [worker for worker in workers if worker.can_decode and worker.key not in excluded.decode]
    kept = [worker for worker in able if worker.key == excluded.keep_decode]
    return min(kept or able, key=lambda worker: _cost(task, worker), default=None)


def _choose_prefill(
    task: Task, workers: Sequence[Candidate], excluded: Exclusions, decode: Candidate, min_tokens: int
) -> tuple[Candidate | None, str]:
    landing = decode.key in task.landing
    if task.uncached_tokens(decode.key) < min_tokens and not landing:
        return None, "short_suffix"
    able = [
        worker
        for worker in workers
        if worker.can_prefill and worker.key not in excluded.prefill and worker.key != decode.key
    ]
    best = min(able, key=lambda worker: _cost(task, worker), default=None)
    if best is None:
        return None, "no_prefill_worker"
    if landing:
        return best, "landing"
    if decode.can_prefill and _cost(task, decode)[0] <= _cost(task, best)[0]:
        return None, "decode_is_best"
    return best, "remote"


def _sources(task: Task, workers: Sequence[Candidate], computing: Candidate) -> tuple[Source, ...]:
    held = task.matches.get(computing.key, 0)
    longer = [
        Source(worker, task.matches[worker.key])
        for worker in workers
        if worker.key != computing.key and task.matches.get(worker.key, 0) > held
    ]
    longer.sort(key=lambda source: (-source.num_blocks, source.worker.queued_tokens, source.worker.key))
    return tuple(longer[:MAX_SOURCES])
