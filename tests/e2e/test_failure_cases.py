"""The API cases in which something happens to the cluster: it idles, it loses a process, a process freezes."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from tests.support.api_cases import CHAT, COMPLETIONS, check_broken_stream, events_of
from tests.support.cluster import Cluster, poll
from tests.support.load import make_prompts
from tests.support.workers import wait_until

IDLE_GAP_S = 3.0
ANSWER_S = 45.0
"""Less than a call may take that waits for a process which does not answer; what is noticed, is noticed in 3 s."""
Json = dict[str, Any]


@contextmanager
def frozen(cluster: Cluster, name: str) -> Iterator[None]:
    """A process that is stopped for the body and goes on after it."""
    cluster.signal(name, signal.SIGSTOP)
    try:
        yield
    finally:
        cluster.signal(name, signal.SIGCONT)


def _chat(cluster: Cluster, content: str, **fields: Any) -> Json:
    return {"model": cluster.model, "messages": [{"role": "user", "content": content}], **fields}


def test_the_first_request_after_an_idle_gap_works(fragile_cluster: Cluster) -> None:
    """idle-then-request: silence for longer than every keepalive and registration; only time can bring that."""
    body = _chat(fragile_cluster, "long " * 100, max_tokens=8)
    fragile_cluster.target.ok(CHAT, body)
    time.sleep(IDLE_GAP_S)
    began_s = time.monotonic()
    fragile_cluster.target.ok(CHAT, {**body, "cache_salt": "another"})
    assert time.monotonic() - began_s < ANSWER_S


def test_a_prefill_that_fails_does_not_hang_decode(fragile_cluster: Cluster) -> None:
    """prefill-failure-ends-decode: frozen prefill; an answer or a 503 in seconds, decode's blocks come back."""
    (prompt,) = make_prompts(1, seed=21)
    body = {"model": fragile_cluster.model, "prompt": prompt, "max_tokens": 8}
    with frozen(fragile_cluster, "prefill-0"):
        began_s = time.monotonic()
        response = fragile_cluster.target.post(COMPLETIONS, body)
        took_s = time.monotonic() - began_s
        assert response.status_code in (200, 503) and took_s < ANSWER_S, f"{response.status_code} after {took_s:.1f} s"
        poll(lambda: fragile_cluster.stats("decode-0").blocks_held, 0, ANSWER_S, "blocks held by decode")


def test_a_stream_whose_decode_worker_dies_is_visibly_broken_or_whole(fragile_cluster: Cluster) -> None:
    """midstream-failure-is-visible, with nobody else to move to but the same worker's next life."""
    body = _chat(fragile_cluster, "write a long story", max_tokens=1500, ignore_eos=True, stream=True)
    with fragile_cluster.target.client() as client, client.stream("POST", CHAT, json=body) as response:
        pieces: list[str] = []
        for number, piece in enumerate(response.iter_text()):
            if number == 5:
                fragile_cluster.kill("decode-0")
            pieces.append(piece)
    events = events_of("".join(pieces).encode())
    check_broken_stream(events)
    assert any("error" in event for event in events) or len(events) > 500


def test_ready_follows_the_workers_and_health_does_not(fragile_cluster: Cluster) -> None:
    """health-while-loading-and-when-dead: frozen decode is 503 within the probe period, dead too; live stays 200."""

    def becomes(status: int, within_s: float) -> None:
        def answer() -> int:
            return httpx.get(f"{fragile_cluster.url}/health/ready", timeout=20).status_code

        wait_until(lambda: answer() == status, within_s, lambda: f"/health/ready is {answer()}, not {status}")
        assert httpx.get(f"{fragile_cluster.url}/health/live", timeout=20).status_code == 200

    with frozen(fragile_cluster, "decode-0"):
        becomes(503, ANSWER_S)
    becomes(200, ANSWER_S)
    restarts = fragile_cluster.kill("decode-0")
    becomes(503, ANSWER_S)
    fragile_cluster.wait_restarted("decode-0", restarts)
    becomes(200, ANSWER_S)


def test_a_restarted_router_relearns_what_the_workers_hold(fragile_cluster: Cluster) -> None:
    """router-restart-relearns."""
    prompts = make_prompts(6, seed=22)
    bodies = [{"model": fragile_cluster.model, "prompt": prompt, "max_tokens": 2} for prompt in prompts]

    def num_cached() -> int:
        usages = [fragile_cluster.target.ok(COMPLETIONS, body)["usage"] for body in bodies]
        return sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)

    num_cached()
    before = num_cached()
    assert before > 0
    fragile_cluster.wait_restarted("router", fragile_cluster.kill("router"))
    fragile_cluster.wait_serving()
    # A router that serves has its view: no time is given to it here.
    assert num_cached() >= 0.95 * before
