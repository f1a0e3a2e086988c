"""The reusable API cases against a real gateway over a fake router."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.api_cases import CASES, Target, check_broken_stream, load_cases
from tests.support.fake_inference import MODEL
from tests.support.gateway_thread import GatewayThread


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayThread]:
    with GatewayThread() as running:
        yield running
        running.settle()


@pytest.mark.parametrize("name", CASES)
def test_case(gateway: GatewayThread, name: str) -> None:
    CASES[name](Target(gateway.url, MODEL))


def test_every_row_has_a_check_and_names_its_source() -> None:
    rows = load_cases()
    assert set(rows) == set(CASES)
    assert all(row["source"] for row in rows.values())


def _lose_usage(value: Any) -> Any:
    return value[:-1] if isinstance(value, list) else value


def _finish_twice(value: Any) -> Any:
    return [*value, value[-1]] if isinstance(value, list) else value


def _repeat_first_row(value: Any) -> Any:
    logprobs = value["choices"][0]["logprobs"]
    logprobs["top_logprobs"] = [None] + logprobs["top_logprobs"][1:2] * (len(logprobs["tokens"]) - 1)
    return value


def _forget_cached(value: Any) -> Any:
    usage = (value[-1] if isinstance(value, list) else value)["usage"]
    usage["prompt_tokens_details"]["cached_tokens"] = None
    return value


def _same_text(value: Any) -> Any:
    value["choices"][0]["text"] = "same"
    return value


def _null_arguments(value: Any) -> Any:
    for event in value:
        for choice in event["choices"]:
            for call in choice["delta"].get("tool_calls", ()):
                call["function"]["arguments"] = None
    return value


def _shout(value: Any) -> Any:
    if isinstance(value, dict):
        value["choices"][0]["message"]["content"] += "!"
    return value


@dataclass(frozen=True)
class Spoilt(Target):
    """A server with a defect."""

    defect: Callable[[Any], Any] = lambda value: value

    def ok(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        spoilt: dict[str, Any] = self.defect(super().ok(path, body))
        return spoilt

    def stream(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        spoilt: list[dict[str, Any]] = self.defect(super().stream(path, body))
        return spoilt


@pytest.mark.parametrize(
    ("name", "defect"),
    [
        ("stream-usage-last-chunk-only", _lose_usage),
        ("stream-chunk-object-field", _finish_twice),
        ("echo-logprobs-per-position", _repeat_first_row),
        ("cached-tokens-never-null", _forget_cached),
        ("seed-is-used", _same_text),
        ("stop-string-over-token-boundary-stream", _shout),
        ("json-schema-is-enforced", _shout),
        ("tool-call-deltas-well-formed", _null_arguments),
    ],
)
def test_case_sees_a_defect(gateway: GatewayThread, name: str, defect: Callable[[Any], Any]) -> None:
    with pytest.raises(AssertionError):
        CASES[name](Spoilt(gateway.url, MODEL, defect=defect))


def test_broken_stream_check_sees_a_made_up_finish() -> None:
    choice = {"index": 0, "delta": {}, "finish_reason": "stop"}
    error = {"error": {"message": "", "type": "", "param": None, "code": ""}}
    check_broken_stream([{"choices": []}, error])
    check_broken_stream([{"choices": [choice]}])
    for bad in ([{"choices": [choice]}, error], [error, {"choices": []}], [{"choices": []}]):
        with pytest.raises(AssertionError):
            check_broken_stream(bad)
