"""What the scheduler asks of the engine in one step, and what comes back.

Plain data, no torch: the scheduler builds a `StepPlan`, the engine thread runs it, the scheduler folds the
`StepResult` back in. A plan names requests, tokens, positions and block ids only; the engine keeps no state of its
own between steps except the bytes of the KV pool.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from common.grammar.constraint import Constraint
from common.sched.params import SamplingParams


@dataclass(slots=True, frozen=True)
class SampleSpec:
    """How to draw the token that follows the last token of a sequence step.

    Attributes:
        params: temperature and the rest.
        seed: 64-bit seed of the request (already filled in when the client gave none).
        choice: index of the choice (n > 1), part of the random counter.
        position: output position of the token to draw: number of output tokens before it.
        prompt_ids: the prompt's tokens (for repetition penalty).
        output_ids: the output tokens so far (for all penalties); its length equals `position`.
        constraint: which tokens may come, or None for all.
        may_jump: tokens that the constraint forces may follow the drawn one unseen.
    """

    params: SamplingParams
    seed: int
    choice: int
    position: int
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    constraint: Constraint | None = None
    may_jump: bool = False


@dataclass(slots=True, frozen=True)
class SequenceStep:
    """The share of one request in a step: compute KV of `token_ids` at positions `start...`.

    Attributes:
        request_id: key of the result.
        token_ids: the tokens to compute, at positions `start .. start + len(token_ids)`.
        start: position of the first one; all positions before have their KV in the blocks already.
        block_table: physical block ids that cover positions `0 .. start + len(token_ids)`.
        sample: draw the next token from the logits of the last position; None for a chunk that is not the last.
        prompt_logprobs: number of top alternatives wanted for each prompt token *following* a computed position,
            or None. `targets` then has the ids of those following tokens (0 or 1 shorter than token_ids).
        targets: see prompt_logprobs.
        digest: report the SHA-256 of each fp32 logits row that is sampled from (debugging).
    """

    request_id: str
    token_ids: Sequence[int]
    start: int
    block_table: Sequence[int]
    sample: SampleSpec | None = None
    prompt_logprobs: int | None = None
    targets: Sequence[int] = ()
    digest: bool = False


@dataclass(slots=True, frozen=True)
class StepPlan:
    """One forward pass over several requests, prefill chunks and decode rows mixed."""

    step_id: int
    sequences: Sequence[SequenceStep]

    @property
    def num_tokens(self) -> int:
        """Number of rows the model computes in this step."""
        return sum(len(s.token_ids) for s in self.sequences)


@dataclass(slots=True, frozen=True)
class TokenLogprobs:
    """Log-probabilities of one token. `top`: (token id, logprob) of the best ones, best first, ties by lowest id.

    Logprobs are natural logs of the softmax of the raw fp32 logits (before temperature, penalties and masks).
    """

    token_id: int
    logprob: float
    rank: int
    top: Sequence[tuple[int, float]] = ()


@dataclass(slots=True, frozen=True)
class SampledToken:
    """The token drawn for one request. `logprobs` when the parameters ask for it; `digest`: 32 bytes or None.

    Attributes:
        forced_ids: tokens that follow it because the constraint allows no other.
        complete: the constraint allows nothing after all these: the output is over.
    """

    token_id: int
    logprobs: TokenLogprobs | None = None
    digest: bytes | None = None
    forced_ids: Sequence[int] = ()
    complete: bool = False


@dataclass(slots=True, frozen=True)
class StepResult:
    """What the engine returns for a `StepPlan`.

    Attributes:
        sampled: request id -> drawn token, for every sequence whose `sample` was set and that is nowhere below.
        prompt_logprobs: request id -> one entry per target, for sequences that asked.
        failed: request id -> reason, for sequences whose logits were not finite, or whose constraint broke.
        refused: request id -> reason, for sequences whose own parameters leave nothing to draw.
        late: sequences whose constraint was not ready in time: their last token is to be computed again.
        elapsed_s: wall time of the step in the engine thread.
    """

    step_id: int
    sampled: Mapping[str, SampledToken]
    prompt_logprobs: Mapping[str, Sequence[TokenLogprobs]] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    late: Collection[str] = ()
    elapsed_s: float = 0.0
