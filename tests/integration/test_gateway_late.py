"""A request that had too little time by its client's own word costs no line of error; any other failure does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from common.base.errors import DeadlineExceeded, Leg, PandoError, PeerLost
from tests.support.api_cases import Target
from tests.support.fake_cluster import eventually
from tests.support.fake_inference import MODEL, Knobs
from tests.support.gateway_thread import GatewayThread

HOPELESS = DeadlineExceeded("too late", reason="deadline_hopeless", leg=Leg.ROUTER)
LOST = PeerLost("decode worker gone", leg=Leg.DECODE)
BODY = {"model": MODEL, "prompt": "hello", "max_tokens": 4}


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayThread]:
    with GatewayThread() as running:
        yield running


@pytest.mark.parametrize(
    ("fields", "error", "level"),
    [
        ({"timeout_s": 30}, HOPELESS, "debug"),
        ({}, HOPELESS, "error"),
        ({"timeout_s": 30}, LOST, "error"),
    ],
    ids=["its own limit", "no limit of its own", "another failure"],
)
@pytest.mark.parametrize("fail_at", [0, 2], ids=["before the first byte", "in midstream"])
def test_who_is_blamed(
    gateway: GatewayThread, fields: dict[str, object], error: PandoError, level: str, fail_at: int
) -> None:
    target = Target(gateway.url, MODEL)
    gateway.set_knobs(Knobs(fail_at=fail_at, error=error))
    failed = target.outcomes("server_error")
    with structlog.testing.capture_logs() as logs, target.client() as client:
        answer = client.post("/v1/completions", json={**BODY, **fields, "stream": bool(fail_at)})
        eventually(lambda: target.outcomes("server_error") == failed + 1, "its count, all the same")
    assert error.reason in answer.text and answer.status_code == (200 if fail_at else error.http_status)
    told = [line["log_level"] for line in logs if line["event"] == "request failed"]
    assert told == [level]
