"""`pando launch`: one unified worker, router and gateway in the foreground, with the flags of SGLang's launch_server.

A flag that is accepted reaches the process it concerns; one that Pando cannot honour is refused with the reason, never
ignored. The translation is pure; only `launch_command` starts anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from pando.cli.errors import BAD_INPUT, CliError

DTYPES = {
    **dict.fromkeys(("bf16", "bfloat16"), "bf16"),
    **dict.fromkeys(("fp16", "half", "float16"), "fp16"),
    **dict.fromkeys(("fp32", "float", "float32"), "fp32"),
    "auto": "auto",
}
KV_DTYPES = DTYPES | {"int8": "int8"}
POLICIES = ("fcfs", "lpm", "priority")
REFUSED = {
    "quantization": "weights are served in bf16, fp16 or fp32",
    "trust-remote-code": "code from a model folder is never run",
    "random-seed": "seeds belong to requests: send `seed` in the request body",
    "api-key": "there is no authentication yet: put a proxy in front",
    "chat-template": "the template comes from the model folder: chat_template.jinja or tokenizer_config.json",
    "tokenizer-path": "the tokenizer comes from the model folder",
    "disable-radix-cache": "prefix reuse is always on; send different `cache_salt` values to keep requests apart",
    "dp-size": "start more workers with pando up --profile unified --decode-workers N",
    "pp-size": "pipeline parallelism is not there",
    "hicache-io-backend": "host memory is copied in one way only",
    "hicache-mem-layout": "blocks have one layout in every tier",
}
CACHE_SWITCH = "enable-hierarchical-cache"
CACHE_FLAGS = (
    "hicache-ratio",
    "hicache-size",
    "hicache-write-policy",
    "hicache-eviction-policy",
    "hicache-load-back-min-tokens",
    "hicache-storage-backend",
    "hicache-storage-backend-extra-config",
    "hicache-storage-dir",
    "hicache-storage-size",
    "hicache-storage-prefetch-policy",
    "radix-eviction-policy",
)
"""Flags of the KV tiers: the worker has the same and checks their values."""
REFUSED_PREFIXES = {
    "speculative-": "speculative decoding is not there",
    "lora-": "LoRA adapters are not there",
    "hicache-": "the tiers do not know it, see python -m services.decode --help",
    "disaggregation-": "pando up --profile pd starts prefill and decode workers",
    "nnodes": "several machines: start the services themselves, see deploy/",
}


@dataclass(slots=True, frozen=True)
class LaunchFlags:
    """The flags as given; None: not given, the service's own default holds."""

    tp_size: int = 1
    device: str | None = None
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    mem_fraction_static: float | None = None
    max_total_tokens: int | None = None
    max_num_seqs: int | None = None
    max_prefill_tokens: int | None = None
    chunked_prefill_size: int | None = None
    schedule_policy: str | None = None
    context_length: int | None = None
    attention_backend: str | None = None
    page_size: int | None = None


def worker_flags(flags: LaunchFlags) -> tuple[str, ...]:
    """The worker's flags for what was asked.

    Raises:
        CliError: a value that Pando does not have, with those it has.
    """
    if flags.tp_size != 1:
        raise _refused("--tp-size", str(flags.tp_size), "tensor parallelism is not there; only 1")
    if flags.device not in (None, "auto", "cpu"):
        raise _refused("--device", str(flags.device), "only cpu")
    if flags.schedule_policy is not None and flags.schedule_policy not in POLICIES:
        raise _refused("--schedule-policy", flags.schedule_policy, f"one of {', '.join(POLICIES)}")
    values = {
        "--dtype": _dtype("--dtype", flags.dtype, DTYPES),
        "--kv-cache-dtype": _dtype("--kv-cache-dtype", flags.kv_cache_dtype, KV_DTYPES),
        "--mem-fraction-static": flags.mem_fraction_static,
        "--max-total-tokens": flags.max_total_tokens,
        "--max-num-seqs": flags.max_num_seqs,
        "--max-batch-tokens": flags.max_prefill_tokens,
        "--chunked-prefill-size": flags.chunked_prefill_size,
        "--schedule-policy": flags.schedule_policy,
        "--context-length": flags.context_length,
        "--attention-backend": flags.attention_backend,
        "--block-size": flags.page_size,
    }
    # One argument each: a value such as -1 would be read as a flag.
    return tuple(f"{name}={value}" for name, value in values.items() if value is not None)


def take_cache_flags(arguments: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """The worker's flags of the KV tiers among the arguments, one argument each, and all other arguments.

    Raises:
        CliError: one that needs a value has none.
    """
    flags: list[str] = []
    rest: list[str] = []
    left = list(arguments)
    while left:
        argument = left.pop(0)
        name, separator, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or name not in (CACHE_SWITCH, *CACHE_FLAGS):
            rest.append(argument)
        elif separator or name == CACHE_SWITCH:
            flags.append(argument)
        elif not left or left[0].startswith("--"):
            raise CliError(f"--{name} needs a value", code=BAD_INPUT)
        else:
            value = left.pop(0)
            flags.append(f"--{name}={value}")
    return tuple(flags), rest


def refuse_unknown(arguments: Sequence[str]) -> None:
    """Raise CliError for the first flag that `pando launch` does not take, with the reason where there is one."""
    for argument in arguments:
        if not argument.startswith("--"):
            continue
        name = argument[2:].partition("=")[0]
        prefixed = [reason for prefix, reason in REFUSED_PREFIXES.items() if name.startswith(prefix)]
        reason = REFUSED.get(name) or (prefixed[0] if prefixed else "unknown flag, see pando launch --help")
        raise CliError(f"--{name} is not supported: {reason}", code=BAD_INPUT)
    if arguments:
        raise CliError(f"unexpected argument {arguments[0]!r}", fix="see pando launch --help", code=BAD_INPUT)


def _dtype(flag: str, value: str | None, known: Mapping[str, str]) -> str | None:
    if value is None or value in known:
        return known[value] if value else None
    raise _refused(flag, value, f"one of {', '.join(known)}")


def _refused(flag: str, value: str, reason: str) -> CliError:
    return CliError(f"{flag} {value} is not supported: {reason}", code=BAD_INPUT)


def launch_command(
    context: typer.Context,
    *,
    model_path: Annotated[Path, typer.Option("--model-path", "--model", help="model folder")],
    host: Annotated[str, typer.Option(help="address of the HTTP server; loopback only")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="HTTP port; 0 picks a free one")] = 30000,
    router_port: Annotated[int, typer.Option(help="gRPC port of the router; 0 picks a free one")] = 0,
    served_model_name: Annotated[str | None, typer.Option(help="name of the model in the API")] = None,
    tp_size: Annotated[int, typer.Option("--tp-size", "--tp", "--tensor-parallel-size", help="only 1")] = 1,
    device: Annotated[str | None, typer.Option(help="auto or cpu")] = None,
    dtype: Annotated[str | None, typer.Option(help="compute dtype: auto, bfloat16, float16, float32")] = None,
    kv_cache_dtype: Annotated[str | None, typer.Option(help="dtype of cached KV: auto, bf16, fp16, fp32, int8")] = None,
    mem_fraction_static: Annotated[float | None, typer.Option(help="share of free memory for the KV pool")] = None,
    max_total_tokens: Annotated[int | None, typer.Option(help="most tokens in the KV pool")] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option("--max-num-seqs", "--max-running-requests", help="most requests in one step")
    ] = None,
    max_prefill_tokens: Annotated[int | None, typer.Option(help="most tokens in one step")] = None,
    chunked_prefill_size: Annotated[
        int | None, typer.Option(help="prompt tokens of a request per step; -1: all")
    ] = None,
    schedule_policy: Annotated[str | None, typer.Option(help="fcfs, lpm or priority")] = None,
    context_length: Annotated[int | None, typer.Option(help="longest prompt + output in tokens")] = None,
    attention_backend: Annotated[str | None, typer.Option(help="auto, cpu, torch_ref")] = None,
    page_size: Annotated[int | None, typer.Option(help="tokens per KV block")] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error")] = "info",
    enable_metrics: Annotated[bool, typer.Option("--enable-metrics", help="metrics are always exported")] = False,
    run_dir: Annotated[Path, typer.Option(help="folder for logs, state and lock")] = Path("run"),
) -> None:
    """Serve one model with one worker in the foreground; the flags are those of SGLang's launch_server."""
    from rich.console import Console

    from pando.cli.up import UpRequest, up

    cache_flags, rest = take_cache_flags(context.args)
    refuse_unknown(rest)
    flags = LaunchFlags(
        tp_size=tp_size,
        device=device,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        mem_fraction_static=mem_fraction_static,
        max_total_tokens=max_total_tokens,
        max_num_seqs=max_num_seqs,
        max_prefill_tokens=max_prefill_tokens,
        chunked_prefill_size=chunked_prefill_size,
        schedule_policy=schedule_policy,
        context_length=context_length,
        attention_backend=attention_backend,
        page_size=page_size,
    )
    request = UpRequest(
        model_path=model_path,
        run_dir=run_dir,
        profile="unified",
        host=host,
        port=port,
        router_port=router_port,
        store="--hicache-storage-backend=kvstore" in cache_flags,
        worker_flags=(*worker_flags(flags), *cache_flags),
        router_flags=("--served-model-name", served_model_name) if served_model_name else (),
        settings=(("log", "level", log_level),),
    )
    raise typer.Exit(up(request, Console(soft_wrap=True), detach=False))
