"""The depth of plain data, at both ends of the limit."""

from __future__ import annotations

from typing import Any

import pytest

from common.base.limits import LimitsConfig, is_deeper


def nested(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = {"a": value} if level % 2 else [0, value]
    return value


@pytest.mark.parametrize("limit", [1, 2, 7, 64])
def test_depth_is_exact(limit: int) -> None:
    assert not is_deeper(nested(limit), limit)
    assert is_deeper(nested(limit + 1), limit)


def test_scalars_have_no_level_and_empty_containers_one() -> None:
    assert not is_deeper("text", 0) and is_deeper({}, 0) and not is_deeper([], 1)


def test_deep_data_does_not_recurse() -> None:
    assert is_deeper(nested(100_000), LimitsConfig().max_schema_depth)
