"""Configuration of a worker: what is refused, and how many blocks come out of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from common.base.comma_list import split_list
from common.base.errors import InvalidRequest
from common.worker.config import WorkerConfig
from common.worker.memory import available_bytes, check_l2_fits, pool_blocks
from common.worker.worker import scheduler_config

MIB = 1 << 20


def config(**fields: Any) -> WorkerConfig:
    return WorkerConfig(model_path=Path("model"), **fields)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("roles", "prefill,router"),
        ("transport", ""),
        ("transport", "shm,rdma"),
        ("worker_id", "a b"),
        ("mem_fraction_static", 0),
        ("mem_fraction_static", 1.0),
        ("chunked_prefill_size", -2),
        ("schedule_policy", "lifo"),
        ("max_landing_ratio", 0),
        ("surprise", 1),
    ],
)
def test_a_bad_value_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ValidationError, match=name):
        config(**{name: value})


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        ({"hicache_storage_dir": "/kv"}, {"path": "/kv", "size_gb": "10.0"}),
        ({"hicache_storage_backend_extra_config": '{"path": "/kv", "size_gb": 3}'}, {"path": "/kv", "size_gb": "3"}),
    ],
)
def test_extra_settings_override_the_flags_of_the_storage(fields: dict[str, Any], settings: dict[str, str]) -> None:
    assert config(hicache_storage_backend="file", **fields).storage_settings() == settings


def test_mooncake_has_extra_settings_only() -> None:
    extra = '{"master_server_address": "10.0.0.1:50051", "master_metrics_port": 9003}'
    settings = config(
        hicache_storage_backend="mooncake", hicache_storage_backend_extra_config=extra, hicache_storage_dir="/kv"
    ).storage_settings()
    assert settings == {"master_server_address": "10.0.0.1:50051", "master_metrics_port": "9003"}


@pytest.mark.parametrize("text", ["{", "[]", "3", '{"a": {}}', '{"a": true}', '{"a": null}'])
def test_extra_settings_are_flat_json(text: str) -> None:
    with pytest.raises(ValidationError, match="hicache_storage_backend_extra_config"):
        config(hicache_storage_backend_extra_config=text)


def test_every_field_says_what_it_is() -> None:
    assert all(field.description for field in WorkerConfig.model_fields.values())


def test_lists() -> None:
    assert split_list(" a, b ,,c") == ["a", "b", "c"]


def test_the_pool_is_a_fair_share_of_what_is_available() -> None:
    assert pool_blocks(config(mem_fraction_static=0.5), MIB, 1000 * MIB) == 500
    assert pool_blocks(config(mem_fraction_static=0.5, workers_on_host=2), MIB, 1000 * MIB) == 250


@pytest.mark.parametrize("flags", [{"hicache_ratio": 3.0}, {"enable_hierarchical_cache": True}])
def test_an_l2_that_is_a_multiple_of_l1_shares_its_memory(flags: dict[str, object]) -> None:
    made = config(mem_fraction_static=0.6, **flags)
    l1 = pool_blocks(made, MIB, 1000 * MIB)
    assert l1 == int(600 / (1 + made.l2_ratio))
    assert 590 <= l1 + made.l2_blocks(l1, MIB) <= 600
    check_l2_fits(made, l1, made.l2_blocks(l1, MIB), MIB, 1000 * MIB)


def test_an_l2_of_a_given_size_must_fit_beside_l1() -> None:
    made = config(mem_fraction_static=0.5, hicache_size=1.0)
    with pytest.raises(InvalidRequest, match="--hicache-size") as refused:
        check_l2_fits(made, 500, made.l2_blocks(500, MIB), MIB, 1000 * MIB)
    assert refused.value.param == "hicache_size"
    check_l2_fits(made, 500, 450, MIB, 1000 * MIB)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"hicache_storage_backend": "file"}, "needs --hicache-storage-dir"),
        ({"hicache_storage_backend": "kvstore", "hicache_write_policy": "write_back"}, "give L2 a --hicache-ratio"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(flags: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        config(**flags)


def test_the_pool_is_cut_to_what_was_asked_for() -> None:
    assert pool_blocks(config(max_total_tokens=1000, block_size=16), MIB, 1000 * MIB) == 63
    assert pool_blocks(config(max_total_tokens=10**9), MIB, 1000 * MIB) == 400


def test_a_pool_that_is_too_small_says_what_to_do() -> None:
    with pytest.raises(InvalidRequest, match="--mem-fraction-static") as refused:
        pool_blocks(config(growth_reserve_blocks=8), MIB, 20 * MIB)
    assert refused.value.param == "mem_fraction_static"
    assert pool_blocks(config(growth_reserve_blocks=8), MIB, 25 * MIB) == 10


def test_available_memory_is_known() -> None:
    assert MIB < available_bytes() < 1 << 50


def test_what_may_land_at_a_time_is_a_share_of_the_pool() -> None:
    made = scheduler_config(config(max_landing_ratio=0.25, high_water_ratio=0.9), 512, num_blocks=100)
    assert (made.max_landing_blocks, made.high_water_ratio, made.max_model_len) == (25, 0.9, 512)
