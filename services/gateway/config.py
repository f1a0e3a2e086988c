"""Configuration of the gateway: section `gateway` plus the shared ones."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field, field_validator

from common.base.config import Section, Settings
from common.base.limits import LimitsConfig
from services.gateway.rewrite_pattern import compile_pattern


class RewriteRule(Section):
    """One rule of prompt normalisation; see `rewrite_pattern` for the language of patterns."""

    name: str = Field(pattern="^[a-z0-9_-]{1,32}$", description="name in headers, answers and metrics")
    pattern: str = Field(min_length=1, description="what the first user message must begin with")
    text: str = Field("", max_length=512, description="what takes its place")
    ignore_case: bool = Field(True, description="upper and lower case are the same")

    @field_validator("pattern")
    @classmethod
    def _check_pattern(cls, pattern: str) -> str:
        compile_pattern(pattern)
        return pattern


class GatewayConfig(Section):
    """Where the gateway listens, where its router is, and how long it waits for clients."""

    host: str = Field("127.0.0.1", description="address to listen on; anything but loopback needs a proxy with TLS")
    port: int = Field(30000, ge=0, le=65535, description="HTTP port; 0 picks a free one")
    router_address: str = Field(
        "127.0.0.1:50051",
        min_length=1,
        description="host:port of the router's gRPC; a comma list names several routers",
    )
    router_wait_s: float = Field(
        10.0, ge=0, description="seconds that requests wait for a router that serves when theirs is gone"
    )
    api_keys_file: Path | None = Field(
        None, description="file of API keys, a line each: tenant, key or sha256:digest, weight; none: no key is needed"
    )
    max_running_requests: int = Field(1024, gt=0, description="HTTP generations at a time; over it: 429")
    max_parallel_prompts: int = Field(32, gt=0, description="prompts of one request that run at the same time")
    head_timeout_s: float = Field(
        10.0,
        gt=0,
        description="seconds a request's line and headers may take, from the connection or first byte",
    )
    body_timeout_s: float = Field(
        300.0, gt=0, description="seconds that a request's body may take; then 408 and the connection ends"
    )
    keep_alive_s: int = Field(75, gt=0, description="seconds an idle HTTP connection stays open")
    max_stored_responses: int = Field(
        1024, ge=0, description="responses of /v1/responses that are kept in memory; the least recently used goes first"
    )
    max_stored_bytes: int = Field(
        64 * 2**20, ge=0, description="bytes of these responses, each with its conversation; 0: none are kept"
    )
    rewrites: tuple[RewriteRule, ...] = Field(
        (), max_length=32, description="rules that rewrite the start of the first user message; none: prompts stay"
    )
    probe_s: float = Field(1.0, gt=0, description="seconds the router has to answer a readiness probe")


class GatewaySettings(Settings):
    """All settings of `python -m services.gateway`."""

    flat_section: ClassVar[str] = "gateway"

    gateway: GatewayConfig = GatewayConfig()
    limits: LimitsConfig = LimitsConfig()
