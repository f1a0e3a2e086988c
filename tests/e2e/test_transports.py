"""The same requests over each KV transport: the bytes moved by the one that was meant, and the text does not change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.api_cases import COMPLETIONS
from tests.support.cluster import UNHURRIED, Cluster, poll
from tests.support.load import make_prompts

DRIVERS = ("shm", "ucx", "tcp")
PROMPTS = make_prompts(3, seed=9, num_chars=700)
Json = dict[str, Any]


@pytest.fixture(scope="module", params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> str:
    """The transport that is meant."""
    return str(request.param)


@pytest.fixture(scope="module")
def cluster(driver: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that has only this transport; for shm the shared one, which prefers it."""
    if driver == "shm":
        yield request.getfixturevalue("_tiny_cluster")
        return
    with Cluster(tmp_path_factory.mktemp(driver), *UNHURRIED, "--transport", driver) as started:
        yield started


@pytest.fixture(scope="module")
def texts() -> dict[str, list[str]]:
    """What each cluster answered."""
    return {}


def _answer(cluster: Cluster, prompt: str | list[int], max_tokens: int = 40) -> Json:
    body = {"model": cluster.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    return cluster.target.ok(COMPLETIONS, {**body, "return_token_ids": True})


def _bytes_read(cluster: Cluster, worker: str, **labels: str) -> float:
    return cluster.metric(worker, "pando_worker_transfer_bytes_total", **labels)


def _handoffs(cluster: Cluster, worker: str) -> float:
    return cluster.metric(worker, "pando_worker_handoffs_total", outcome="ok")


def test_prompts_are_computed_on_prefill_and_cross_by_the_driver_meant(
    cluster: Cluster, driver: str, texts: dict[str, list[str]]
) -> None:
    assert driver in cluster.known_workers()[0].transports
    before = {name: _handoffs(cluster, name) for name in cluster.workers}
    by_driver, by_any = _bytes_read(cluster, "decode-0", driver=driver), _bytes_read(cluster, "decode-0")
    answers = [_answer(cluster, prompt) for prompt in PROMPTS]
    usages = [answer["usage"]["pando"] for answer in answers]
    assert all(usage["prefill_workers"] == ["prefill-0"] for usage in usages)
    num_bytes = sum(usage["transfer_bytes"] for usage in usages)
    assert _bytes_read(cluster, "decode-0", driver=driver) - by_driver == num_bytes > 0
    assert _bytes_read(cluster, "decode-0") - by_any == num_bytes, "another driver moved bytes"
    for name, count in before.items():
        poll(lambda name=name: _handoffs(cluster, name), count + 3, 30.0, f"handoffs of {name}")  # type: ignore[misc]
    texts[driver] = [answer["choices"][0]["text"] for answer in answers]
    assert len({tuple(answer) for answer in texts.values()}) == 1, "the transport changed the text"


def test_what_decode_holds_is_fetched_back_by_prefill(cluster: Cluster, driver: str) -> None:
    """A second turn: prefill reads the previous answer's blocks from decode instead of computing them."""
    first = _answer(cluster, f"turn {PROMPTS[0]}")
    before = _bytes_read(cluster, "prefill-0", driver=driver)
    choice = first["choices"][0]
    known = choice["prompt_token_ids"] + choice["token_ids"]
    usage = _answer(cluster, [*known, *(100 + index % 150 for index in range(200))])["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= (len(known) - 1) // 16 * 16
    assert usage["pando"]["prefill_workers"] == ["prefill-0"]
    assert _bytes_read(cluster, "prefill-0", driver=driver) > before, "recomputed, not fetched"
