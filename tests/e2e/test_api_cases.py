"""The API cases against a whole cluster over HTTP, and those that need its counters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.api_cases import CASES, CHAT, COMPLETIONS, Target, text_of
from tests.support.cluster import Cluster, poll

LONG = "one two three four five six seven eight nine ten " * 8
WORKERS = ("prefill-0", "decode-0")
SOON_S = 30.0
Json = dict[str, Any]


@pytest.mark.parametrize("name", CASES)
def test_case(tiny_cluster: Cluster, name: str) -> None:
    CASES[name](tiny_cluster.target)


def _cached(usage: Json) -> int:
    count: int = usage["prompt_tokens_details"]["cached_tokens"]
    return count


def _rise(read: Callable[[], float]) -> Callable[[], float]:
    """How much a counter rose since now."""
    before = read()
    return lambda: read() - before


def test_cached_tokens_of_the_answers_add_up_to_the_counters(tiny_cluster: Cluster) -> None:
    router = _rise(lambda: tiny_cluster.metric("router", "pando_router_cached_tokens_total"))
    workers = _rise(lambda: sum(tiny_cluster.metric(name, "pando_worker_cached_tokens_total") for name in WORKERS))
    body: Json = {"model": tiny_cluster.model, "max_tokens": 4, "messages": [{"role": "user", "content": LONG}]}
    streamed = {**body, "stream_options": {"include_usage": True}}
    usages = [tiny_cluster.target.ok(CHAT, body)["usage"] for _ in range(2)]
    usages += [tiny_cluster.target.stream(CHAT, streamed)[-1]["usage"] for _ in range(2)]
    assert _cached(usages[0]) == 0 and all(_cached(usage) > 0 for usage in usages[1:])
    total = sum(map(_cached, usages))
    poll(router, total, SOON_S, "the router's cached tokens")
    poll(workers, total, SOON_S, "the workers' cached tokens")


def test_tokens_of_the_answers_add_up_to_the_counters(tiny_cluster: Cluster) -> None:
    drawn = _rise(lambda: sum(tiny_cluster.metric(name, "pando_worker_generated_tokens_total") for name in WORKERS))
    sent = _rise(lambda: tiny_cluster.metric("router", "pando_router_generated_tokens_total"))
    counted = _rise(lambda: tiny_cluster.metric("gateway", "pando_gateway_tokens_total", kind="generated"))
    body: Json = {"model": tiny_cluster.model, "seed": 5}
    asks = [{"prompt": "short", "max_tokens": 9, "n": 2}, {"prompt": f"a {LONG}", "max_tokens": 1}]
    asks += [{"prompt": f"b {LONG}", "max_tokens": 20}]
    total = sum(tiny_cluster.target.ok(COMPLETIONS, body | ask)["usage"]["completion_tokens"] for ask in asks)
    assert total == 9 * 2 + 1 + 20
    for name, read in (("workers", drawn), ("router", sent), ("gateway", counted)):
        poll(read, total, SOON_S, f"generated tokens of the {name}")


def test_a_client_that_leaves_stops_the_work_on_both_sides(tiny_cluster: Cluster) -> None:
    """disconnect-frees-prefill-kv and the workers' side of aborted-requests-are-counted."""
    before = {name: tiny_cluster.stats(name) for name in WORKERS}
    drawn = _rise(lambda: tiny_cluster.metric("decode-0", "pando_worker_generated_tokens_total"))
    aborted = _rise(lambda: tiny_cluster.metric("decode-0", "pando_worker_requests_total", outcome="abort"))
    routed = _rise(lambda: tiny_cluster.metric("router", "pando_router_requests_total", outcome="abort"))
    handed = _rise(lambda: tiny_cluster.metric("prefill-0", "pando_worker_handoffs_total", outcome="ok"))
    body = {"model": tiny_cluster.model, "max_tokens": 3000, "ignore_eos": True, "stream": True}
    body["messages"] = [{"role": "user", "content": "long " * 150}]
    with tiny_cluster.target.client() as client, client.stream("POST", CHAT, json=body) as response:
        next(line for line in response.iter_lines() if '"content":"' in line and '"content":""' not in line)
    tiny_cluster.check_idle()
    for name, stats in before.items():
        after = tiny_cluster.stats(name)
        assert after.blocks_free + after.blocks_cached == stats.blocks_free + stats.blocks_cached, name
    poll(aborted, 1, SOON_S, "aborted requests of decode")
    poll(routed, 1, SOON_S, "aborted requests of the router")
    assert handed() == 1, "the prompt did not come from prefill"
    num_drawn = drawn()
    assert num_drawn < 2500, "decode went on for nobody"
    tiny_cluster.target.get("/health")
    assert drawn() == num_drawn


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1.0, "seed": 11}])
@pytest.mark.parametrize("prompt", ["hi", LONG])
def test_a_stream_is_the_whole_answer_in_pieces(tiny_cluster: Cluster, prompt: str, sampling: Json) -> None:
    target = tiny_cluster.target
    chat = {"model": target.model, "max_tokens": 30, "messages": [{"role": "user", "content": prompt}], **sampling}
    assert text_of(target.stream(CHAT, chat)) == target.ok(CHAT, chat)["choices"][0]["message"]["content"]
    plain = {"model": target.model, "max_tokens": 30, "prompt": prompt, **sampling}
    assert text_of(target.stream(COMPLETIONS, plain)) == target.ok(COMPLETIONS, plain)["choices"][0]["text"]


def test_three_choices_cost_one_prompt(tiny_cluster: Cluster) -> None:
    prompt = f"three of {LONG}"
    body: Json = {"model": tiny_cluster.model, "prompt": prompt, "n": 3, "seed": 3, "max_tokens": 12}
    computed = _rise(lambda: sum(tiny_cluster.metric(n, "pando_worker_engine_tokens_total") for n in WORKERS))
    answer = tiny_cluster.target.ok(COMPLETIONS, body)
    texts = [choice["text"] for choice in answer["choices"]]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2] and len(set(texts)) == 3
    num_prompt = answer["usage"]["prompt_tokens"]
    assert num_prompt > 300 and computed() < 1.5 * num_prompt
    assert [choice["text"] for choice in tiny_cluster.target.ok(COMPLETIONS, body)["choices"]] == texts


def test_the_cases_see_a_server_that_is_not_there() -> None:
    with pytest.raises(Exception, match="refused"):
        CASES["n2-at-temperature-zero"](Target("http://127.0.0.1:1", "tiny"))
