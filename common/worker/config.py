"""Configuration of a worker, whatever its roles."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field, field_validator

from common.base.comma_list import comma_list
from common.base.config import RegistryConfig, Settings
from common.base.roles import ROLES
from common.transport.base import DRIVER_NAMES
from common.worker.cache_config import CacheConfig


class WorkerConfig(CacheConfig):
    """One worker process: model, pool and tiers, scheduling, transport."""

    model_path: Path = Field(description="model directory: config.json, safetensors, tokenizer.json")
    host: str = Field("127.0.0.1", description="address to listen on and to be reached at")
    port: int = Field(0, ge=0, le=65535, description="gRPC port; 0 picks a free one")
    metrics_port: int = Field(0, ge=0, le=65535, description="Prometheus port; 0 picks a free one")
    worker_id: str = Field("", pattern="^[a-zA-Z0-9_-]*$", description="name in logs and registry; empty: made up")
    roles: str = Field("", description="comma list of prefill, decode at the start; empty: the service's own")
    dtype: str = Field("auto", pattern="^(auto|bf16|fp16|fp32)$", description="compute dtype; auto: the model's")
    kv_cache_dtype: str = Field(
        "auto", description="dtype of cached KV: auto (the compute dtype), or one of bf16, fp16, fp32, int8"
    )
    attention_backend: str = Field("auto", description="auto (cpu where its kernels are built), cpu or torch_ref")
    block_size: int = Field(16, ge=1, le=256, description="tokens per KV block")
    mem_fraction_static: float = Field(
        0.4, gt=0, le=0.95, description="share of the memory available at start that KV pools may take on this host"
    )
    workers_on_host: int = Field(1, ge=1, description="workers that share this host's memory and cores fairly")
    max_total_tokens: int = Field(0, ge=0, description="most tokens in the KV pool; 0: as many as memory allows")
    context_length: int = Field(0, ge=0, description="longest prompt + output in tokens; 0: the model's own limit")
    chunked_prefill_size: int = Field(256, ge=-1, description="prompt tokens of one request per step; -1: whole prompt")
    max_num_seqs: int = Field(64, ge=1, description="most requests in one step")
    max_batch_tokens: int = Field(
        256,
        ge=1,
        description="most tokens in one step; what is cut or aborted waits for a step's end, so keep it short",
    )
    schedule_policy: str = Field("fcfs", pattern="^(fcfs|lpm|priority)$", description="order of waiting requests")
    shared_prefill_min_tokens: int = Field(
        32, ge=1, description="a request lets another one compute a shared prefix for it, from this many tokens on"
    )
    growth_reserve_blocks: int = Field(8, ge=0, description="blocks that admission leaves to running requests")
    max_landing_ratio: float = Field(
        0.5, gt=0, le=1, description="share of the pool that may wait for KV from other workers at a time"
    )
    high_water_ratio: float = Field(
        1.0, gt=0, le=1, description="share of the pool beyond which no further request is admitted"
    )
    max_waiting_tokens: int = Field(262_144, ge=1, description="bound of the queue, in uncomputed tokens")
    max_lent_blocks: int = Field(65_536, ge=1, description="most blocks lent to peers at a time")
    num_threads: int = Field(0, ge=0, description="compute threads; 0: this worker's share of the cores")
    transport: str = Field("shm,ucx,tcp", description="KV transports in order of preference, comma list")
    local_prefill_tokens: int = Field(31, ge=0, description="decode computes a prompt rest up to this size itself")
    jump_forward: bool = Field(True, description="append tokens that a grammar forces without a step of the model each")
    debug_logits_digest: bool = Field(False, description="put the SHA-256 of each logits row into the frames")
    enable_failpoints: bool = Field(False, description="let operators arm failpoints by the admin RPC")
    failpoints_dir: Path | None = Field(None, description="folder whose files arm failpoints; empty: none")
    admin_token_file: Path | None = Field(
        None, description="file with the token that admin RPCs need; empty: only this host may call them"
    )
    report_memory_info: bool = Field(False, description="log hit rate, index and memory every 10 s")

    @field_validator("roles")
    @classmethod
    def _known_roles(cls, value: str) -> str:
        return comma_list(value, ROLES)

    @field_validator("transport")
    @classmethod
    def _known_transports(cls, value: str) -> str:
        if not value:
            raise ValueError("name at least one transport")
        return comma_list(value, DRIVER_NAMES)


class WorkerSettings(Settings):
    """Everything a prefill or decode process reads at start."""

    flat_section: ClassVar[str] = "worker"

    worker: WorkerConfig
    registry: RegistryConfig = RegistryConfig()
