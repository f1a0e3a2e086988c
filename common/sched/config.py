"""What an operator may set about scheduling, most of it while the worker runs.

Invariant: an instance is valid; a bad value raises `InvalidRequest` that names the field, so a change is checked before
it replaces what is in force. Make a changed copy with `dataclasses.replace`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from common.base.errors import InvalidRequest

WHOLE_PROMPT = -1


class Policy(StrEnum):
    """In which order waiting requests are admitted."""

    FCFS = "fcfs"
    LPM = "lpm"
    PRIORITY = "priority"


@dataclass(slots=True, frozen=True)
class SchedulerConfig:
    """Limits and policy of one scheduler.

    Attributes:
        block_size: tokens per block; cannot change while the scheduler lives.
        max_num_seqs: most requests that run or land at the same time.
        max_batch_tokens: most tokens computed in one step; at least max_num_seqs, so that every row can decode.
        chunked_prefill_size: most prefill tokens of one request in one step; -1 never splits a prompt, and the first
            one of a step may then exceed max_batch_tokens.
        policy: fcfs, lpm (longest prefix match first, with ageing) or priority (which may preempt).
        growth_reserve_blocks: blocks left for running requests to grow into when another one is admitted.
        max_model_len: most tokens of a request, prompt and output.
        max_waiting_tokens: most tokens that wait; beyond, new requests are refused.
        max_landing_blocks: most blocks that are reserved for bytes which have not landed yet.
        high_water_ratio: no admission that would leave more than this share of all blocks held.
        load_back_min_tokens: a shorter continuation in L2 is computed rather than loaded.
        shared_prefill_min_tokens: a waiting request lets one that runs compute this many tokens or more of the prefix
            that they share, and goes on from there.
        lpm_ageing_tokens_per_s: what a second of waiting counts under lpm, in tokens of prefix match. A request is
            overtaken by none that arrives more than max_model_len / this later.
    """

    block_size: int = 16
    max_num_seqs: int = 64
    max_batch_tokens: int = 2048
    chunked_prefill_size: int = 512
    policy: Policy = Policy.FCFS
    growth_reserve_blocks: int = 0
    max_model_len: int = 8192
    max_waiting_tokens: int = 262144
    max_landing_blocks: int = 1 << 31
    high_water_ratio: float = 1.0
    load_back_min_tokens: int = 16
    shared_prefill_min_tokens: int = 32
    lpm_ageing_tokens_per_s: float = 500.0

    def __post_init__(self) -> None:
        for name in ("block_size", "max_num_seqs", "max_model_len", "max_waiting_tokens", "max_landing_blocks"):
            _require(getattr(self, name) >= 1, name, "is at least 1")
        _require(self.max_batch_tokens >= self.max_num_seqs, "max_batch_tokens", "is at least max_num_seqs")
        chunk = self.chunked_prefill_size
        _require(chunk >= 1 or chunk == WHOLE_PROMPT, "chunked_prefill_size", "is at least 1, or -1 for whole prompts")
        _require(self.policy in list(Policy), "policy", f"is one of {', '.join(Policy)}")
        _require(self.load_back_min_tokens >= 1, "load_back_min_tokens", "is at least 1")
        _require(self.shared_prefill_min_tokens >= 1, "shared_prefill_min_tokens", "is at least 1")
        _require(self.growth_reserve_blocks >= 0, "growth_reserve_blocks", "is at least 0")
        _require(0 < self.high_water_ratio <= 1, "high_water_ratio", "lies in (0, 1]")
        _require(self.lpm_ageing_tokens_per_s > 0, "lpm_ageing_tokens_per_s", "is above 0: ageing bounds the wait")
        object.__setattr__(self, "policy", Policy(self.policy))


def step_budget(max_batch_tokens: int, chunked_prefill_size: int, max_num_seqs: int) -> int:
    """The tokens of a step: as asked, and enough for one whole chunk and for a token of every request."""
    return max(max_batch_tokens, chunked_prefill_size, max_num_seqs)


def _require(holds: bool, name: str, rule: str) -> None:
    if not holds:
        raise InvalidRequest(f"{name} {rule}", reason="bad_scheduler_config", param=name)
