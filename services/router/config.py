"""What can be set on the router: its own section, the limits on requests, and where the registry is."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from common.base.config import RegistryConfig, Section, Settings
from common.base.limits import LimitsConfig


class RouterConfig(Section):
    """Addresses, planning and bounds of the router."""

    host: str = Field("127.0.0.1", description="address to listen on; loopback unless the network is trusted")
    port: int = Field(50051, ge=0, le=65535, description="port of the gRPC API; 0 picks a free one")
    metrics_port: int = Field(0, ge=0, le=65535, description="port of the Prometheus exporter; 0 picks a free one")
    model_path: Path = Field(
        Path("models/SmolLM2-135M-Instruct"), description="model directory (config.json and tokenizer.json are read)"
    )
    served_model_name: str = Field("", description="name of the model in the API; empty: the folder's name")
    poll_s: float = Field(0.5, gt=0, description="seconds between two looks at the registry and at every worker's load")
    policy: Literal["prefix", "round_robin", "least_loaded", "random"] = Field(
        "prefix", description="how workers are chosen: by estimated time (prefix), or a plain rule to compare it with"
    )
    remote_prefill_min_tokens: int = Field(
        32, ge=1, description="uncached tokens from which a prefill worker computes the prompt; below, decode does"
    )
    expected_output_tokens: int = Field(
        128, ge=1, description="tokens that a request is expected to generate, for the load of its worker"
    )
    max_attempts: int = Field(
        4, ge=1, description="most attempts in a row at one choice that bring no token, first try included"
    )
    retry_ratio: float = Field(
        0.2, ge=0, le=1, description="retries before the first token that every request allows the router as a whole"
    )
    retry_burst: int = Field(256, ge=1, description="retries that may be saved up, for the moment when a worker dies")
    breaker_failures: int = Field(
        3, ge=1, description="failures in a row after which a worker gets no work of that role for a while"
    )
    breaker_pause_s: float = Field(1.0, gt=0, description="seconds of the first such while; each further one doubles")
    breaker_max_pause_s: float = Field(30.0, gt=0, description="seconds of the longest such while")
    migration_wait_s: float = Field(
        30.0, ge=0, description="seconds that a stream which lost its worker waits for another one to appear"
    )
    max_concurrent_requests: int = Field(
        1024, ge=1, description="most requests in the router, waiting ones included; more are refused with 429"
    )
    max_running_requests: int = Field(
        0, ge=0, description="most requests at the workers at a time, others wait; 0: what the workers take"
    )
    max_queued_requests: int = Field(512, ge=1, description="most requests that wait; more are refused with 429")
    max_queued_tokens: int = Field(
        1_000_000, ge=1, description="most uncached prompt tokens of requests that wait; more are refused with 429"
    )
    max_queue_s: float = Field(
        60.0, gt=0, description="seconds of waiting, by the measured rate, beyond which requests are refused with 429"
    )
    dispatch_min_tokens: int = Field(
        2048, ge=1, description="uncached tokens per worker that may await a first token whatever its speed"
    )
    dispatch_ahead_s: float = Field(
        1.0, ge=0, description="seconds of prefill, by the measured speed, that workers are given ahead; the rest waits"
    )
    priority_ageing_s: float = Field(
        5.0, gt=0, description="seconds of waiting that count as much as one point of priority"
    )
    max_view_blocks: int = Field(4_000_000, ge=1, description="most KV blocks in the prefix view, about 300 bytes each")
    view_ready_s: float = Field(
        3.0,
        ge=0,
        description="seconds after a start that the first workers have to tell their blocks, before requests go",
    )
    speculative_s: float = Field(
        2.0, ge=0, description="seconds that a prompt's blocks count as held after its first token, before events come"
    )
    max_speculations: int = Field(4096, ge=0, description="most prompts remembered so; 0 turns it off")
    min_match_tokens: int = Field(
        64, ge=0, description="a worker that holds less of a prompt than this earns no credit for it"
    )
    tie_ratio: float = Field(
        0.02, ge=0, le=1, description="workers whose cost is within this part of the best time to a first token tie"
    )
    decode_horizon_tokens: int = Field(
        16,
        ge=1,
        description="output tokens whose time counts in a placement; what runs beside later ones is not known yet",
    )
    disturbed_ratio: float = Field(
        0.1,
        ge=0,
        description="what of a prompt's time counts as a cost for each request that generates on the same worker",
    )
    max_sources: int = Field(
        2, ge=0, description="most other workers named as holders of a longer prefix; 0: they do not fetch from others"
    )
    max_sessions: int = Field(10_000, ge=0, description="most sessions whose last worker is remembered; a hint only")
    speed_half_life_s: float = Field(
        30.0, gt=0, description="seconds without news after which a worker measured as slow has half its bad name left"
    )
    explain_requests: int = Field(
        1000, ge=0, description="last requests whose placement Explain can tell, about 5 kB each; 0 turns it off"
    )
    context_policy: Literal["clamp", "strict"] = Field(
        "clamp", description="max_tokens beyond the context: clamp cuts it to what is left, strict refuses the request"
    )
    role_controller: Literal["off", "advise", "act"] = Field(
        "off", description="move workers between prefill and decode by load: off, advise (tell only), act"
    )
    role_ttft_target_s: float = Field(1.0, gt=0, description="seconds to a first token that prefill workers shall keep")
    role_tpot_target_s: float = Field(0.1, gt=0, description="seconds per output token that decode workers shall keep")
    role_sustain_s: float = Field(20.0, ge=0, description="seconds that a role must want for a worker before one moves")
    role_cooldown_s: float = Field(120.0, ge=0, description="seconds without a move after any change of the roles")
    admin_token_file: Path | None = Field(
        None, description="file with the workers' operator token, for role_controller act; empty: they want none"
    )
    tokenizer_threads: int = Field(2, ge=1, description="threads that render and tokenise prompts")
    grammar_trial_s: float = Field(0.7, gt=0, le=10, description="CPU seconds that a new grammar may take in its trial")
    inline_prompt_chars: int = Field(
        256,
        ge=0,
        description="prompts up to this length are read on the event loop, others in a thread; an id counts 1/16",
    )


class RouterSettings(Settings):
    """Everything `python -m services.router` reads."""

    flat_section: ClassVar[str] = "router"

    router: RouterConfig = RouterConfig()
    limits: LimitsConfig = LimitsConfig()
    registry: RegistryConfig = RegistryConfig()
