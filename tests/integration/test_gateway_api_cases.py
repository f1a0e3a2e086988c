"""The reusable API cases against a real gateway over a fake router."""

from __future__ import annotations

from collections.abc import Iterator

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


def test_broken_stream_check_sees_a_made_up_finish() -> None:
    choice = {"index": 0, "delta": {}, "finish_reason": "stop"}
    error = {"error": {"message": "", "type": "", "param": None, "code": ""}}
    check_broken_stream([{"choices": []}, error])
    check_broken_stream([{"choices": [choice]}])
    for bad in ([{"choices": [choice]}, error], [error, {"choices": []}], [{"choices": []}]):
        with pytest.raises(AssertionError):
            check_broken_stream(bad)
