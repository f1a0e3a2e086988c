"""`pando launch`: each flag of SGLang's launch_server reaches its process with its value, or is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from common.base.config import load
from common.worker.config import WorkerSettings
from pando.cli import launch, main
from pando.cli.errors import BAD_INPUT, CliError
from pando.cli.launch import LaunchFlags, refuse_unknown, worker_flags
from pando.cli.up import UpRequest

BASE = ["launch", "--model-path", "models/x"]


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[UpRequest]]:
    """What `pando launch` would start; nothing is started."""
    seen: list[UpRequest] = []

    def up(request: UpRequest, console: object, *, detach: bool) -> int:
        assert not detach
        seen.append(request)
        return 0

    monkeypatch.setattr("pando.cli.up.up", up)
    yield seen


def launched(requests: list[UpRequest], *flags: str) -> UpRequest:
    result = CliRunner().invoke(main.app, [*BASE, *flags], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return requests[-1]


def worker_settings(request: UpRequest) -> Any:
    """What the worker reads from the flags it gets."""
    return load(WorkerSettings, ["--model-path", "m", *request.worker_flags], "worker").worker


@pytest.mark.parametrize(
    ("flags", "field", "value"),
    [
        (["--dtype", "bfloat16"], "dtype", "bf16"),
        (["--dtype", "half"], "dtype", "fp16"),
        (["--dtype", "float32"], "dtype", "fp32"),
        (["--kv-cache-dtype", "bf16"], "kv_cache_dtype", "bf16"),
        (["--mem-fraction-static", "0.7"], "mem_fraction_static", 0.7),
        (["--max-total-tokens", "4096"], "max_total_tokens", 4096),
        (["--max-num-seqs", "3"], "max_num_seqs", 3),
        (["--max-running-requests", "3"], "max_num_seqs", 3),
        (["--max-prefill-tokens", "100"], "max_batch_tokens", 100),
        (["--chunked-prefill-size", "64"], "chunked_prefill_size", 64),
        (["--chunked-prefill-size", "-1"], "chunked_prefill_size", -1),
        (["--schedule-policy", "lpm"], "schedule_policy", "lpm"),
        (["--context-length", "1000"], "context_length", 1000),
        (["--attention-backend", "torch_ref"], "attention_backend", "torch_ref"),
        (["--page-size", "32"], "block_size", 32),
        (["--kv-cache-dtype", "int8"], "kv_cache_dtype", "int8"),
        (["--enable-hierarchical-cache"], "enable_hierarchical_cache", True),
        (["--hicache-ratio", "3"], "hicache_ratio", 3.0),
        (["--hicache-size=2.5"], "hicache_size", 2.5),
        (["--hicache-write-policy", "write_back"], "hicache_write_policy", "write_back"),
        (["--hicache-eviction-policy", "slru"], "hicache_eviction_policy", "slru"),
        (["--hicache-load-back-min-tokens", "64"], "hicache_load_back_min_tokens", 64),
        (["--hicache-storage-backend", "kvstore"], "hicache_storage_backend", "kvstore"),
        (["--hicache-storage-backend", "mooncake"], "hicache_storage_backend", "mooncake"),
        (["--hicache-storage-backend-extra-config", '{"a": 1}'], "hicache_storage_backend_extra_config", '{"a": 1}'),
        (["--hicache-storage-dir", "/tmp/kv"], "hicache_storage_dir", Path("/tmp/kv")),
        (["--hicache-storage-size", "1"], "hicache_storage_size", 1.0),
        (["--hicache-storage-prefetch-policy", "best_effort"], "hicache_storage_prefetch_policy", "best_effort"),
        (["--radix-eviction-policy", "lfu"], "radix_eviction_policy", "lfu"),
    ],
)
def test_worker_flags_reach_the_worker(requests: list[UpRequest], flags: list[str], field: str, value: object):
    plain = worker_settings(launched(requests))
    changed = worker_settings(launched(requests, *flags))
    assert getattr(changed, field) == value
    assert getattr(plain, field) != value
    differing = {name for name in type(plain).model_fields if getattr(plain, name) != getattr(changed, name)}
    assert differing == {field}


@pytest.mark.parametrize(
    ("flags", "field", "value"),
    [
        (["--host", "localhost"], "host", "localhost"),
        (["--port", "1234"], "port", 1234),
        (["--router-port", "1235"], "router_port", 1235),
        (["--served-model-name", "tiny"], "router_flags", ("--served-model-name", "tiny")),
        (["--log-level", "debug"], "settings", (("log", "level", "debug"),)),
        (["--run-dir", "elsewhere"], "run_dir", Path("elsewhere")),
    ],
)
def test_other_flags_reach_their_process(requests: list[UpRequest], flags: list[str], field: str, value: object):
    assert getattr(launched(requests), field) != value
    assert getattr(launched(requests, *flags), field) == value


def test_it_is_one_unified_worker(requests: list[UpRequest]):
    request = launched(requests, "--tp-size", "1", "--device", "cpu", "--enable-metrics")
    assert (request.profile, request.decode_workers, request.model_path) == ("unified", 1, Path("models/x"))


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (LaunchFlags(tp_size=2), "--tp-size 2 is not supported"),
        (LaunchFlags(device="cuda"), "--device cuda is not supported"),
        (LaunchFlags(dtype="int8"), "--dtype int8 is not supported: one of bf16"),
        (LaunchFlags(kv_cache_dtype="fp8_e5m2"), "--kv-cache-dtype fp8_e5m2 is not supported"),
        (LaunchFlags(schedule_policy="dfs-weight"), "--schedule-policy dfs-weight is not supported: one of fcfs"),
    ],
)
def test_values_that_are_not_there_are_refused(flags: LaunchFlags, reason: str):
    with pytest.raises(CliError, match=reason) as caught:
        worker_flags(flags)
    assert caught.value.code == BAD_INPUT


@pytest.mark.parametrize("name", [*launch.REFUSED, *(f"{prefix}x" for prefix in launch.REFUSED_PREFIXES), "no-such"])
def test_flags_that_are_not_there_are_refused(requests: list[UpRequest], name: str):
    with pytest.raises(CliError, match=f"--{name} is not supported: ") as caught:
        CliRunner().invoke(main.app, [*BASE, f"--{name}", "1"], catch_exceptions=False)
    assert caught.value.code == BAD_INPUT
    assert requests == []


def test_a_cache_flag_without_its_value_is_refused(requests: list[UpRequest]):
    with pytest.raises(CliError, match="--hicache-ratio needs a value"):
        CliRunner().invoke(main.app, [*BASE, "--hicache-ratio", "--hicache-size", "1"], catch_exceptions=False)
    assert requests == []


def test_nothing_unknown_is_fine_and_a_stray_word_is_not():
    refuse_unknown([])
    with pytest.raises(CliError, match="unexpected argument 'now'"):
        refuse_unknown(["now"])
