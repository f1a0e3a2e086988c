"""The configuration: every bad value is refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from common.base.errors import InvalidRequest
from common.sched.config import Policy, SchedulerConfig


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("block_size", 0),
        ("max_num_seqs", 0),
        ("max_batch_tokens", 63),
        ("chunked_prefill_size", 0),
        ("chunked_prefill_size", -2),
        ("policy", "random"),
        ("growth_reserve_blocks", -1),
        ("max_model_len", 0),
        ("max_waiting_tokens", 0),
        ("max_landing_blocks", 0),
        ("high_water_ratio", 0.0),
        ("high_water_ratio", 1.01),
        ("lpm_ageing_tokens_per_s", 0.0),
    ],
)
def test_a_bad_value_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=name) as caught:
        replace(SchedulerConfig(), **{name: value})
    assert caught.value.param == name


def test_the_bounds_themselves_are_fine() -> None:
    config = SchedulerConfig(max_num_seqs=8, max_batch_tokens=8, chunked_prefill_size=-1, high_water_ratio=1.0)
    assert replace(config, chunked_prefill_size=1).chunked_prefill_size == 1


def test_a_policy_may_be_given_by_name() -> None:
    assert SchedulerConfig(policy="lpm").policy is Policy.LPM  # type: ignore[arg-type]
