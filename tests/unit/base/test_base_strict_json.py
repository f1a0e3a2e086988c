"""JSON inside requests: what the standard has, and nothing else."""

from __future__ import annotations

import json

import pytest

from common.base.strict_json import load_strict


@pytest.mark.parametrize("text", ['{"a": [1, -2.5e3, "\\ud83d\\ude00", null]}', "12345678901234567890123", '"\\u00e9"'])
def test_what_is_json_is_read_as_it_is(text: str) -> None:
    assert load_strict(text) == json.loads(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "NaN",
        '{"a": -Infinity}',
        '"\\ud83d"',
        '{"\\udc00": 1}',
        '["\\uD83D"]',
        "[" * 100_000,
        '"\ud800\\u0041"',
    ],
)
def test_what_nobody_can_write_again_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        load_strict(text)
