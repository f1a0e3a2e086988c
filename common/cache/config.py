"""What an operator may set about the tiers below L1, most of it while the worker runs.

Invariant: an instance is valid; a bad value raises `InvalidRequest` that names the field, so a change is checked before
it replaces what is in force. Make a changed copy with `dataclasses.replace`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from common.base.errors import InvalidRequest
from common.kv.eviction import EvictionPolicy


class WritePolicy(StrEnum):
    """When a block of L1 is copied to the tiers below.

    WRITE_THROUGH            as soon as it is complete.
    WRITE_THROUGH_SELECTIVE  when its prefix is used for the second time.
    WRITE_BACK               when L1 evicts it: nothing is copied that L1 still has.
    """

    WRITE_THROUGH = "write_through"
    WRITE_THROUGH_SELECTIVE = "write_through_selective"
    WRITE_BACK = "write_back"


class PrefetchPolicy(StrEnum):
    """How long a queued request waits for what L3 has of its prefix.

    BEST_EFFORT    not at all: what is here when its turn comes is used.
    WAIT_COMPLETE  until all of it is here, or the store's deadline.
    TIMEOUT        until all of it is here, or a time that grows with its length.
    """

    BEST_EFFORT = "best_effort"
    WAIT_COMPLETE = "wait_complete"
    TIMEOUT = "timeout"


@dataclass(slots=True, frozen=True)
class TierPolicies:
    """What can change at run time about L1 and L2.

    Attributes:
        write: when blocks are copied downwards.
        l1_eviction, l2_eviction: which blocks go first.
    """

    write: WritePolicy = WritePolicy.WRITE_THROUGH
    l1_eviction: EvictionPolicy = EvictionPolicy.LRU
    l2_eviction: EvictionPolicy = EvictionPolicy.LRU


def check_policies(policies: TierPolicies, *, has_l2: bool, has_l3: bool) -> None:
    """Raise InvalidRequest for policies that the tiers cannot follow."""
    if policies.write is WritePolicy.WRITE_BACK and has_l3 and not has_l2:
        raise InvalidRequest(
            "write_back writes to L3 what L1 evicts to L2, and there is no L2: write through, "
            "or give L2 a --hicache-ratio",
            reason="bad_cache_config",
            param="hicache_write_policy",
        )


@dataclass(slots=True, frozen=True)
class PrefetchConfig:
    """What can change at run time about reads from L3.

    Attributes:
        policy: how long a request waits.
        min_tokens: a shorter rest is not looked up.
        timeout_base_s, timeout_per_1k_tokens_s: longest wait under TIMEOUT, by the tokens that L3 has.
        patience_ratio: until the store has said what it has, wait at most this share of the time that computing the
            rest would take, so that a slow store that has nothing costs little.
        max_blocks: most blocks that are on the way at a time; beyond, requests go without.
        deadline_s: for one lookup or one batch of reads.
    """

    policy: PrefetchPolicy = PrefetchPolicy.TIMEOUT
    min_tokens: int = 64
    timeout_base_s: float = 0.1
    timeout_per_1k_tokens_s: float = 0.25
    patience_ratio: float = 0.1
    max_blocks: int = 4096
    deadline_s: float = 2.0

    def __post_init__(self) -> None:
        for name in ("min_tokens", "max_blocks"):
            _require(getattr(self, name) >= 1, name, "is at least 1")
        for name in ("timeout_base_s", "timeout_per_1k_tokens_s", "patience_ratio"):
            _require(getattr(self, name) >= 0, name, "is at least 0")
        _require(self.deadline_s > 0, "deadline_s", "is above 0")


@dataclass(slots=True, frozen=True)
class ArchiveConfig:
    """What bounds writes to L3.

    Attributes:
        max_pending_blocks: most names that wait to be written; beyond, blocks are not archived.
        max_known_blocks: names remembered as stored, so that they are not offered again; as many as lacking.
        deadline_s: for one batch of puts.
    """

    max_pending_blocks: int = 65_536
    max_known_blocks: int = 32_768
    deadline_s: float = 10.0


def _require(holds: bool, name: str, rule: str) -> None:
    if not holds:
        raise InvalidRequest(f"{name} {rule}", reason="bad_cache_config", param=name)
