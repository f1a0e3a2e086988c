"""The words of a plan: what is to be placed, on whom it may be, and what was decided.

Plain data, shared by the planner, the router around it and the simulator. Knows nothing about how a choice is made.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from services.router.prefix_view import WorkerKey


@dataclass(slots=True, frozen=True)
class Candidate:
    """A worker that may be chosen; `address` is its gRPC host:port."""

    key: WorkerKey
    address: str
    can_decode: bool
    can_prefill: bool


@dataclass(slots=True)
class Task:
    """What is to be placed.

    Attributes:
        hashes: prefix hashes of the prompt's full blocks; they are kept, so nobody changes the list.
        num_tokens: known tokens, prompt and output so far, >= 1.
        block_size: tokens per block.
        expected_output_tokens: tokens that it will probably generate.
        session_id: requests with the same one belong together; empty: none.
        block_bytes: KV bytes of a block; 0: unknown, then moving blocks is never taken to be quicker than computing.
        known: blocks of the prompt that a worker holds beyond what the view says.
        landing: workers some of whose blocks in `known` may still be on their way to them.
    """

    hashes: Sequence[bytes]
    num_tokens: int
    block_size: int
    expected_output_tokens: int
    session_id: str = ""
    block_bytes: int = 0
    known: Mapping[WorkerKey, int] = field(default_factory=dict)
    landing: Collection[WorkerKey] = ()


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


@dataclass(slots=True, eq=False)
class Quote:
    """What one worker in one role would cost, in seconds.

    Attributes:
        cached_tokens: prompt tokens that it holds, by the view.
        compute_tokens: prompt tokens that nobody in reach holds.
        queue_s: work before this request.
        prefill_s: computing `compute_tokens`.
        load_s: loading what it holds in host memory, and what it would fetch from others.
        transfer_s: moving the KV from the prefill worker to decode.
        decode_s: generating beside its other requests.
        is_remote: another worker would compute the prompt.
        effort_s: what the computing costs others, by how busy the fleet is.
        credit_s: part of the prompt's cost that running requests with the same prefix share in.
        last_used: when it was chosen last, as `Load.last_used`.
        first_token_s: the expected time to the first token.
        total_s: what candidates are compared by: the sum of all terms, less the credit.
    """

    candidate: Candidate
    cached_tokens: int
    compute_tokens: int
    queue_s: float
    prefill_s: float
    load_s: float
    effort_s: float
    credit_s: float
    last_used: int
    first_token_s: float
    total_s: float
    transfer_s: float = 0.0
    decode_s: float = 0.0
    is_remote: bool = False


@dataclass(slots=True)
class Plan:
    """Where one choice runs.

    Attributes:
        prefill: computes what decode lacks; None: decode itself does.
        sources: workers that hold more than the one who computes, longest first.
        prompt_tokens: what to charge to the one who computes the prompt.
        output_tokens: what to charge to decode beside.
        reason: why the prompt is computed where it is: short_suffix, no_prefill_worker, decode_is_best,
            remote, landing (decode fetches what has not come yet).
        first_token_s: the expected time to the first token.
        decode_quotes, prefill_quotes: what the candidates would cost, for explanations.
    """

    decode: Candidate
    prefill: Candidate | None
    sources: tuple[Source, ...]
    prompt_tokens: int
    output_tokens: int
    reason: str
    first_token_s: float = 0.0
    decode_quotes: Sequence[Quote] = ()
    prefill_quotes: Sequence[Quote] = ()

    @property
    def computing(self) -> Candidate:
        """The worker that computes the prompt."""
        return self.prefill or self.decode
