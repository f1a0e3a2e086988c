"""The flags of the KV tiers, under the names that SGLang users know, and what they mean to `common.cache`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator

from common.base.config import Section
from common.base.errors import InvalidRequest
from common.cache.config import PrefetchConfig, PrefetchPolicy, TierPolicies, WritePolicy, check_policies
from common.kv.eviction import EvictionPolicy
from common.worker.trust import TagScope

DEFAULT_RATIO = 2.0


class CacheConfig(Section):
    """Tiers below L1: host blocks (L2) and a shared store (L3)."""

    enable_hierarchical_cache: bool = Field(
        False, description=f"keep KV in L2 too, {DEFAULT_RATIO:g} times L1 unless ratio or size says otherwise"
    )
    hicache_ratio: float = Field(0.0, ge=0, le=1024, description="size of L2 as a multiple of L1; 0: no L2")
    hicache_size: float = Field(0.0, ge=0, description="size of L2 in GB (10^9 bytes); overrides the ratio")
    hicache_write_policy: WritePolicy = Field(
        WritePolicy.WRITE_THROUGH,
        description="when L1 blocks go down: write_through (complete), write_through_selective (second use), "
        "write_back (evicted)",
    )
    radix_eviction_policy: EvictionPolicy = Field(EvictionPolicy.LRU, description="who leaves L1 first")
    hicache_eviction_policy: EvictionPolicy = Field(EvictionPolicy.LRU, description="who leaves L2 first")
    hicache_load_back_min_tokens: int = Field(16, ge=1, description="a shorter rest in L2 is computed, not loaded")
    hicache_storage_backend: str = Field(
        "", pattern="^(|file|kvstore|mooncake)$", description="L3: empty for none, file, kvstore or mooncake"
    )
    hicache_storage_dir: Path | None = Field(None, description="folder of the file backend, shared by all workers")
    hicache_storage_address: str = Field(
        "", description="nodes of the kvstore backend, comma list of host:port; empty: found in the registry"
    )
    hicache_storage_size: float = Field(10.0, gt=0, description="cap of the file backend in GB (10^9 bytes)")
    hicache_storage_backend_extra_config: str = Field(
        "",
        description='all settings of the mooncake backend, further ones of the others: a JSON object, {"key": value}',
    )
    hicache_storage_prefetch_policy: PrefetchPolicy = Field(
        PrefetchPolicy.TIMEOUT, description="how long a request waits for L3: best_effort, wait_complete, timeout"
    )
    hicache_prefetch_min_tokens: int = Field(64, ge=1, description="a shorter uncached rest is not looked up in L3")
    hicache_prefetch_timeout_base_s: float = Field(0.1, ge=0, description="longest wait for L3 under timeout, plus:")
    hicache_prefetch_timeout_per_1k_tokens_s: float = Field(0.25, ge=0, description="as much per 1,000 tokens")
    hicache_prefetch_max_tokens: int = Field(65_536, ge=1, description="most tokens on the way from L3 at a time")
    hicache_storage_deadline_s: float = Field(2.0, gt=0, description="seconds for one lookup or batch of reads of L3")
    kv_tag_key_file: Path | None = Field(
        None, description="file with the key, equal on all workers, that tags blocks which leave the host"
    )

    kv_tag_scope: TagScope = Field(
        TagScope.REMOTE, description="blocks that carry tags between workers: remote (those that leave the host) or all"
    )

    def policies(self) -> TierPolicies:
        """The policies of L1 and L2."""
        return TierPolicies(self.hicache_write_policy, self.radix_eviction_policy, self.hicache_eviction_policy)

    @field_validator("hicache_storage_backend_extra_config")
    @classmethod
    def _check_extra(cls, text: str) -> str:
        _extra_settings(text)
        return text

    def storage_settings(self) -> dict[str, str]:
        """What the storage backend wants to know: its own flags, overridden by the extra settings."""
        own = {
            "file": {"path": str(self.hicache_storage_dir or ""), "size_gb": str(self.hicache_storage_size)},
            "kvstore": {"address": self.hicache_storage_address},
        }
        return own.get(self.hicache_storage_backend, {}) | _extra_settings(self.hicache_storage_backend_extra_config)

    def prefetch(self, block_size: int) -> PrefetchConfig:
        """How L3 is read."""
        return PrefetchConfig(
            policy=self.hicache_storage_prefetch_policy,
            min_tokens=self.hicache_prefetch_min_tokens,
            timeout_base_s=self.hicache_prefetch_timeout_base_s,
            timeout_per_1k_tokens_s=self.hicache_prefetch_timeout_per_1k_tokens_s,
            max_blocks=max(1, self.hicache_prefetch_max_tokens // block_size),
            deadline_s=self.hicache_storage_deadline_s,
        )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """Refuse before anything starts what could only fail once the model is loaded."""
        if self.hicache_storage_backend == "file" and not self.storage_settings().get("path"):
            raise ValueError("--hicache-storage-backend file needs --hicache-storage-dir: the folder all workers share")
        has_l2, has_l3 = bool(self.hicache_size or self.l2_ratio), bool(self.hicache_storage_backend)
        try:
            check_policies(self.policies(), has_l2=has_l2, has_l3=has_l3)
        except InvalidRequest as error:
            raise ValueError(error.message) from error
        return self

    @property
    def l2_ratio(self) -> float:
        """Size of L2 as a multiple of L1; 0 where there is no L2, or one of a given size."""
        if self.hicache_size:
            return 0.0
        return self.hicache_ratio or (DEFAULT_RATIO if self.enable_hierarchical_cache else 0.0)

    def l2_blocks(self, l1_blocks: int, block_bytes: int) -> int:
        """Number of L2 blocks, 0 for no L2.

        Raises:
            InvalidRequest: a size was given, and not even one block fits into it.
        """
        sized = int(self.hicache_size * 1e9) // block_bytes
        blocks = sized if self.hicache_size else int(l1_blocks * self.l2_ratio)
        if not blocks and (self.hicache_size or self.hicache_ratio):
            raise InvalidRequest(
                f"L2 would have no block of {block_bytes} bytes: raise --hicache-size or --hicache-ratio",
                param="hicache_size" if self.hicache_size else "hicache_ratio",
            )
        return blocks


def _extra_settings(text: str) -> dict[str, str]:
    """Settings by name; none of an empty text.

    Raises:
        ValueError: not a JSON object of strings and numbers.
    """
    try:
        settings = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(settings, dict) or not all(type(value) in (str, int, float) for value in settings.values()):
        raise ValueError('a JSON object of strings and numbers, such as {"master_server_address": "10.0.0.1:50051"}')
    return {name: str(value) for name, value in settings.items()}
