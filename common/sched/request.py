"""A request as the scheduler sees it: known tokens, computed tokens, blocks, and when it is over.

The one rule everything follows from: **computed tokens catch up with known tokens.** Known are the prompt and the
output so far; computed are those whose KV lies in the request's blocks. A prefix hit, blocks that landed from a peer, a
chunk of prefill and a decode step all only move `num_computed`; preemption sets it back to zero, and so does starting
again on another worker, where the output so far is known but not computed.

::

    WAITING --admit--> RUNNING --> FINISHED          LANDING --resume--> RUNNING
       ^                  | preempt                     (decode or prefill reserved blocks; their bytes arrive)
       +-- PREEMPTED <----+

Invariants: ``0 <= num_computed < num_tokens`` outside of an update, so at least the last known token is always
computed; the block table of a RUNNING or LANDING request covers its computed tokens, and is only ever appended to until
it is given back as a whole. The scheduler owns all mutable fields; others read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from common.grammar.constraint import Constraint
from common.kv.hashing import HashChain, partial_name
from common.sched.params import SamplingParams
from common.sched.plan import TokenLogprobs


class Status(StrEnum):
    """Where a request stands."""

    WAITING = "waiting"
    LANDING = "landing"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class FinishReason(StrEnum):
    """Why a request is over."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(slots=True, eq=False)
class Request:
    """One sequence to compute. The first block of fields is the caller's and does not change, but for `output_ids`.

    Attributes:
        request_id: unique on this worker.
        prompt_ids: at least one token.
        params: `stop_token_ids` has the end-of-sequence ids already, unless they are ignored.
        root: the prefix root of its tenant and adapter.
        block_size: tokens per block.
        output_ids: output so far, copied; not empty when it goes on from another worker. Grows with each drawn token.
        prompt_hashes: hashes of leading full blocks of the prompt that are computed already; trusted.
        seed, choice: see `SampleSpec`.
        priority: higher goes first.
        arrival_s: when it arrived, on the clock of the `now_s` arguments.
        digest: report the digest of each logits row.
        keep_blocks: keep its blocks held when it ends well, until the scheduler's `release`.
        constraint: which tokens its output may have; follows `output_ids` by itself.
        chain: hashes of the full blocks of all known tokens.
        num_computed: tokens whose KV lies in the blocks.
        num_landed: of a LANDING request: leading tokens whose KV is here.
        block_table: block ids, in order of the tokens they hold.
        num_cached_tokens: prompt tokens that nobody computed for this request, by the tier they came from.
        num_prompt_logprobs: how many prompt logprobs have been reported, or are not wanted and lie before those.
        num_preemptions: how often it lost its blocks.
        first_scheduled_s, first_token_s: None until it happened.
        error: why it failed, for a person.
        refused: it failed for what it asks, not for what happened here.
        awaits_kv: KV of its prefix is on the way into a tier here, and it is worth waiting for: it is not admitted yet.
        fetched_from: (tier, first block, end block): blocks that were brought here for this request while it waited.
        order: order of arrival among equals; given by the scheduler.
        in_flight: it is part of the plan that runs now.
    """

    request_id: str
    prompt_ids: Sequence[int]
    params: SamplingParams
    root: bytes
    block_size: int
    output_ids: list[int] = field(default_factory=list)
    prompt_hashes: Sequence[bytes] = ()
    seed: int = 0
    choice: int = 0
    priority: int = 0
    arrival_s: float = 0.0
    digest: bool = False
    keep_blocks: bool = False
    constraint: Constraint | None = None

    chain: HashChain = field(init=False)
    status: Status = field(init=False, default=Status.WAITING)
    num_computed: int = field(init=False, default=0)
    num_landed: int = field(init=False, default=0)
    block_table: list[int] = field(init=False, default_factory=list)
    num_cached_tokens: dict[str, int] = field(init=False, default_factory=dict)
    num_prompt_logprobs: int = field(init=False, default=0)
    num_preemptions: int = field(init=False, default=0)
    first_scheduled_s: float | None = field(init=False, default=None)
    first_token_s: float | None = field(init=False, default=None)
    finish_reason: FinishReason | None = field(init=False, default=None)
    error: str = field(init=False, default="")
    refused: bool = field(init=False, default=False)
    awaits_kv: bool = field(init=False, default=False)
    fetched_from: tuple[str, int, int] = field(init=False, default=("", 0, 0))
    order: int = field(init=False, default=0)
    in_flight: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        assert self.prompt_ids, f"request {self.request_id} has an empty prompt"
        self.output_ids = list(self.output_ids)
        self.chain = HashChain(self.root, self.block_size, self.prompt_ids, self.prompt_hashes)
        self.chain.extend(self.output_ids)
        if self.params.prompt_logprobs is not None:
            self.num_prompt_logprobs = min(max(self.params.prompt_logprobs_start, 1), len(self.prompt_ids)) - 1

    @property
    def num_tokens(self) -> int:
        """Number of known tokens."""
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def num_uncomputed(self) -> int:
        """Number of known tokens that are still to compute."""
        return len(self.prompt_ids) + len(self.output_ids) - self.num_computed

    @property
    def rank(self) -> tuple[int, float, int]:
        """Sort key: who keeps its blocks when they run short. Smallest first: high priority, early arrival."""
        return (-self.priority, self.arrival_s, self.order)

    @property
    def num_missing_prompt_logprobs(self) -> int:
        """Number of prompt logprobs that are asked for and not reported yet."""
        return 0 if self.params.prompt_logprobs is None else len(self.prompt_ids) - 1 - self.num_prompt_logprobs

    def num_blocks_for(self, num_tokens: int) -> int:
        """Number of blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def reusable_hashes(self) -> Sequence[bytes]:
        """Hashes of the leading blocks that need not be computed if they are found somewhere.

        The last known token is always computed, and so is every prompt position whose logprobs are missing.
        """
        limit = self.num_tokens - 1
        if self.num_missing_prompt_logprobs:
            limit = min(limit, self.num_prompt_logprobs)
        return self.chain.hashes[: limit // self.block_size]

    def block_name(self, index: int, num_tokens: int) -> bytes:
        """Name of block `index` of the table while it holds KV of the first `num_tokens` known tokens only."""
        end = (index + 1) * self.block_size
        if end <= num_tokens:
            return self.chain.hashes[index]
        parent = self.chain.hashes[index - 1] if index else self.root
        return partial_name(parent, self.tokens(index * self.block_size, num_tokens))

    def tokens(self, start: int, stop: int) -> Sequence[int]:
        """Return the known tokens at positions start .. stop - 1."""
        num_prompt = len(self.prompt_ids)
        if stop <= num_prompt:
            return self.prompt_ids[start:stop]
        if start >= num_prompt:
            return self.output_ids[start - num_prompt : stop - num_prompt]
        return [*self.prompt_ids[start:], *self.output_ids[: stop - num_prompt]]

    def note_cached(self, tier: str, first_block: int, end_block: int) -> None:
        """Count the prompt tokens of blocks `first_block .. end_block - 1` as cached in a tier.

        Those that were brought to that tier for this request count for the tier they came from. What it finds again
        after a preemption it computed itself.
        """
        if self.num_preemptions:
            return
        origin, fetched, fetched_end = self.fetched_from
        first_own, end_own = max(first_block, fetched), min(end_block, fetched_end)
        num_own = max(0, self._num_prompt_tokens(first_own, end_own))
        num_tokens = self._num_prompt_tokens(first_block, end_block) - num_own
        for name, count in ((tier, num_tokens), (origin, num_own)):
            if count:
                self.num_cached_tokens[name] = self.num_cached_tokens.get(name, 0) + count

    def append(self, token_id: int) -> None:
        """Add a drawn token to the known ones."""
        self.output_ids.append(token_id)
        self.chain.append(token_id)

    def due_finish(self, max_known_tokens: int) -> FinishReason | None:
        """Tell whether the output so far ends the request; pure.

        Args:
            max_known_tokens: most known tokens a request may have here.
        """
        params, num_output = self.params, len(self.output_ids)
        if num_output > params.min_tokens and self.output_ids[-1] in params.stop_token_ids:
            return FinishReason.STOP
        if num_output >= params.max_tokens or (num_output and self.num_tokens >= max_known_tokens):
            return FinishReason.LENGTH
        return None

    def _num_prompt_tokens(self, first_block: int, end_block: int) -> int:
        num_prompt, size = len(self.prompt_ids), self.block_size
        return min(end_block * size, num_prompt) - min(first_block * size, num_prompt)


@dataclass(slots=True, frozen=True)
class RequestUpdate:
    """What one step did to one request.

    Attributes:
        request: the request, already up to date.
        token_id: the token that was drawn, None for a chunk that is not the last or a request that failed.
        position: output position of that token.
        logprobs, digest: of that token, when asked for.
        forced_ids: tokens that were appended after it because its constraint allows no other.
        prompt_logprobs: those of the next prompt tokens, in order, when asked for.
        num_computed: tokens whose KV is in the blocks after the step: the full ones among them can be announced.
        finish_reason: set in the last update of a request.
    """

    request: Request
    token_id: int | None = None
    position: int = 0
    logprobs: TokenLogprobs | None = None
    digest: bytes | None = None
    forced_ids: Sequence[int] = ()
    prompt_logprobs: Sequence[TokenLogprobs] = ()
    num_computed: int = 0
    finish_reason: FinishReason | None = None

    @property
    def request_id(self) -> str:
        """Id of the request."""
        return self.request.request_id
