"""Kill, freeze and end processes under load; then: all answered, nothing leaked, every greedy text as if undisturbed.

`fragile_cluster` has one worker of each kind and a router that lets streams wait for a worker's next life; `duo` has
two decode workers.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.api_cases import COMPLETIONS
from tests.support.cluster import Cluster, poll
from tests.support.load import Load, Reply, make_prompts, undisturbed, until, while_pressed

NOTICE_S = 3.0
STREAMS = 8
MAX_TOKENS = 800


@pytest.fixture(scope="module")
def _duo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("duo"), "--decode-workers", "2") as cluster:
        yield cluster


@pytest.fixture
def duo(_duo: Cluster) -> Iterator[Cluster]:
    """One prefill and two decode workers; whole, serving and idle again after every test."""
    _duo.wait_serving()
    yield _duo
    _duo.wait_serving()
    _duo.check_idle()


def _all_whole_and_equal(replies: list[Reply], texts: list[str]) -> None:
    broken = [reply for reply in replies if not reply.is_whole]
    assert not broken, broken
    assert [reply.text for reply in replies] == texts


def _press_on_prefill(cluster: Cluster, seed: int, hit: Callable[[], None]) -> tuple[list[Reply], float]:
    """Clients that send one long prompt after another; `hit` falls in their midst. Replies, and when it fell."""

    async def run() -> tuple[list[Reply], float]:
        stopping = asyncio.Event()
        async with Load.open(cluster.url, cluster.model) as load:
            pressing = asyncio.ensure_future(load.press(make_prompts(6, seed, num_chars=500), 12, stopping))
            await load.until_started(12)
            hit()
            hit_s = time.monotonic()
            seen = load.started
            await until(lambda: load.started >= seen + 12, 60.0, "12 further answers")
            stopping.set()
            return await pressing, hit_s

    return asyncio.run(run())


def test_killing_the_only_prefill_worker_costs_retries_or_typed_errors(fragile_cluster: Cluster) -> None:
    decode, restarts = fragile_cluster.service("decode-0").process, []
    replies, hit_s = _press_on_prefill(fragile_cluster, 31, lambda: restarts.append(fragile_cluster.kill("prefill-0")))
    assert all(reply.has_typed_end for reply in replies), [reply for reply in replies if not reply.has_typed_end]
    hanging = [reply for reply in replies if reply.began_s < hit_s < reply.ended_s]
    assert hanging, "nothing was under way"
    assert all(reply.ended_s - hit_s < NOTICE_S for reply in hanging), [r.ended_s - hit_s for r in hanging]
    fragile_cluster.wait_restarted("prefill-0", restarts[0])
    fragile_cluster.wait_serving()
    before = _handoffs(fragile_cluster)
    undisturbed(fragile_cluster.url, fragile_cluster.model, make_prompts(2, 32, num_chars=500), 4)
    poll(lambda: _handoffs(fragile_cluster) - before, 2, 2.0, "handoffs of prefill's next life")
    assert fragile_cluster.service("decode-0").process == decode, "decode was restarted"


def _handoffs(cluster: Cluster) -> float:
    return cluster.metric("prefill-0", "pando_worker_handoffs_total", outcome="ok")


@pytest.mark.chaos
def test_freezing_the_only_prefill_worker_costs_retries_or_typed_errors(fragile_cluster: Cluster) -> None:
    prompts = [f"{prompt} round 0" for prompt in make_prompts(6, 33, num_chars=500)]
    texts = undisturbed(fragile_cluster.url, fragile_cluster.model, prompts, 12)
    try:
        replies, hit_s = _press_on_prefill(
            fragile_cluster, 33, lambda: fragile_cluster.signal("prefill-0", signal.SIGSTOP) and None
        )
    finally:
        fragile_cluster.signal("prefill-0", signal.SIGCONT)
    assert all(reply.has_typed_end for reply in replies), [reply for reply in replies if not reply.has_typed_end]
    hanging = [reply for reply in replies if reply.began_s < hit_s < reply.ended_s]
    assert hanging, "nothing was under way"
    assert all(reply.ended_s - hit_s < NOTICE_S + 1 for reply in hanging), [r.ended_s - hit_s for r in hanging]
    fragile_cluster.wait_serving()
    known = dict(zip(prompts, texts, strict=True))
    again = undisturbed(fragile_cluster.url, fragile_cluster.model, prompts, 12)
    assert again == texts, "the thaw corrupted what was cached"
    assert all(reply.text == known.get(reply.prompt, reply.text) for reply in replies if reply.is_whole)


@pytest.mark.chaos
def test_killing_one_of_two_decode_workers_fails_no_stream(duo: Cluster) -> None:
    prompts = make_prompts(STREAMS, 34)
    texts = undisturbed(duo.url, duo.model, prompts, MAX_TOKENS)

    async def kill(load: Load) -> None:
        await load.until_started(STREAMS)
        running = {name: duo.stats(name).num_running for name in ("decode-0", "decode-1")}
        assert all(running.values()), f"one decode worker is idle: {running}"
        duo.kill("decode-1")

    replies = while_pressed(duo.url, duo.model, prompts, MAX_TOKENS, kill)
    _all_whole_and_equal(replies, texts)
    assert duo.metric("router", "pando_router_migrations_total") > 0


@pytest.mark.chaos
def test_freezing_one_of_two_decode_workers_fails_no_stream(duo: Cluster) -> None:
    prompts = make_prompts(STREAMS, 35)
    texts = undisturbed(duo.url, duo.model, prompts, MAX_TOKENS)

    async def freeze(load: Load) -> None:
        await load.until_started(STREAMS)
        duo.signal("decode-0", signal.SIGSTOP)

    try:
        replies = while_pressed(duo.url, duo.model, prompts, MAX_TOKENS, freeze)
    finally:
        duo.signal("decode-0", signal.SIGCONT)
    _all_whole_and_equal(replies, texts)
    duo.wait_serving()
    assert undisturbed(duo.url, duo.model, prompts, MAX_TOKENS) == texts, "the thaw corrupted what was cached"


@pytest.mark.chaos
def test_streams_outlive_the_only_decode_worker(fragile_cluster: Cluster) -> None:
    prompts = make_prompts(4, 36)
    texts = undisturbed(fragile_cluster.url, fragile_cluster.model, prompts, MAX_TOKENS)

    async def kill(load: Load) -> None:
        await load.until_started(4)
        fragile_cluster.kill("decode-0")

    replies = while_pressed(fragile_cluster.url, fragile_cluster.model, prompts, MAX_TOKENS, kill)
    _all_whole_and_equal(replies, texts)


@pytest.mark.chaos
def test_streams_outlive_the_only_router(fragile_cluster: Cluster) -> None:
    prompts = make_prompts(4, 37)
    texts = undisturbed(fragile_cluster.url, fragile_cluster.model, prompts, MAX_TOKENS)

    async def kill(load: Load) -> None:
        await load.until_started(4)
        restarts = fragile_cluster.kill("router")
        await asyncio.to_thread(fragile_cluster.wait_restarted, "router", restarts)

    replies = while_pressed(fragile_cluster.url, fragile_cluster.model, prompts, MAX_TOKENS, kill)
    _all_whole_and_equal(replies, texts)
    fragile_cluster.check_idle()
    fragile_cluster.wait_serving()
    body = {"model": fragile_cluster.model, "prompt": prompts[0], "max_tokens": 4}
    usage = fragile_cluster.target.ok(COMPLETIONS, body)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0, "the prefix view was not relearned"


@pytest.mark.chaos
def test_losing_the_registry_costs_no_request(fragile_cluster: Cluster) -> None:
    prompts = make_prompts(4, 38)
    texts = undisturbed(fragile_cluster.url, fragile_cluster.model, prompts, 400)

    async def kill(load: Load) -> None:
        await load.until_started(2)
        restarts = fragile_cluster.kill("registry")
        await asyncio.to_thread(fragile_cluster.wait_restarted, "registry", restarts)

    _all_whole_and_equal(while_pressed(fragile_cluster.url, fragile_cluster.model, prompts, 400, kill), texts)
    fragile_cluster.wait_serving()
    assert undisturbed(fragile_cluster.url, fragile_cluster.model, prompts, 400) == texts


@pytest.mark.chaos
def test_a_worker_that_is_asked_to_end_finishes_or_hands_over_its_streams(duo: Cluster) -> None:
    prompts = make_prompts(STREAMS, 39)
    texts = undisturbed(duo.url, duo.model, prompts, MAX_TOKENS)
    restarts = duo.service("decode-0").restarts

    async def terminate(load: Load) -> None:
        await load.until_started(STREAMS)
        duo.signal("decode-0", signal.SIGTERM)

    replies = while_pressed(duo.url, duo.model, prompts, MAX_TOKENS, terminate)
    _all_whole_and_equal(replies, texts)
    duo.wait_restarted("decode-0", restarts)
    assert duo.service("decode-0").last_exit == "ended with status 0"
