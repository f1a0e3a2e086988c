"""Programs and clients on a whole cluster: prefixes are shared token for token, and nothing of a program is left."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

import pando
from common.base.errors import Cancelled
from pando.client.http import HttpClient
from pando.client.sync_client import Client
from pando.lang import (
    RuntimeEndpoint,
    assistant,
    function,
    gen,
    greedy_token_selection,
    select,
    token_length_normalized,
    unconditional_likelihood_normalized,
    user,
)
from tests.support.cluster import Cluster

BLOCK = 16
LONG = "The quick brown fox jumps over the lazy dog while the band plays on and on. "


@pytest.fixture(params=["grpc", "http"])
def endpoint(request: pytest.FixtureRequest, tiny_cluster: Cluster) -> Iterator[RuntimeEndpoint]:
    with RuntimeEndpoint(tiny_cluster.url if request.param == "http" else tiny_cluster.router) as made:
        yield made


def full_blocks(num_tokens: int) -> int:
    """Cached tokens that a longer prompt finds: all full blocks; the KV of the last drawn token was never computed."""
    return (num_tokens - 1) // BLOCK * BLOCK


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_conversation_finds_all_of_its_past(endpoint: RuntimeEndpoint, seed: int) -> None:
    """At temperature 1 a random model writes tokens that no tokenizer would choose for the same text."""

    @function
    def program(s: Any) -> None:
        for turn in range(3):
            s += user(f"{seed} {turn} {LONG}")
            s += assistant(gen(f"answer {turn}", max_tokens=40, ignore_eos=True))

    state = program.run(seed=seed, temperature=1.0, backend=endpoint)
    metas = [state.get_meta_info(f"answer {turn}") for turn in range(3)]
    for before, after in itertools.pairwise(metas):
        assert after["cached_tokens"] >= full_blocks(before["prompt_tokens"] + before["completion_tokens"])
    text = state["answer 0"]
    anew = endpoint.client.tokenize(text, add_special_tokens=False).token_ids
    assert list(anew) != metas[0]["output_ids"], "the tokens were those of the tokenizer: this shows nothing"


def test_forks_find_their_parent(endpoint: RuntimeEndpoint) -> None:
    @function
    def program(s: Any, question: str) -> None:
        s += user(question)
        forks = s.fork(3)
        forks += assistant(gen("x", max_tokens=8))
        forks.join()
        for fork in forks:
            meta = fork.get_meta_info("x")
            assert meta["cached_tokens"] >= full_blocks(meta["prompt_tokens"])
        assert len(s["x"]) == 3

    program.run(question=f"fork {endpoint.client.__class__.__name__} {LONG}", backend=endpoint)


def test_batches_find_what_their_leader_computed(endpoint: RuntimeEndpoint) -> None:
    shared = f"batch {endpoint.client.__class__.__name__} {LONG * 2}"

    @function
    def program(s: Any, index: int) -> None:
        s += shared + f"And then {index}: " + gen("x", max_tokens=4)

    states = program.run_batch([{"index": index} for index in range(6)], num_threads=4, backend=endpoint)
    num_shared = len(endpoint.client.tokenize(shared).token_ids)
    cached = [state.get_meta_info("x")["cached_tokens"] for state in states]
    assert min(cached[1:]) >= full_blocks(num_shared), cached


@pytest.mark.parametrize(
    "method", [token_length_normalized, greedy_token_selection, unconditional_likelihood_normalized]
)
def test_select_scores_are_those_of_the_whole_prompt(endpoint: RuntimeEndpoint, method: Any) -> None:
    choices = ["yes indeed", "no", "not at all"]

    @function
    def program(s: Any) -> None:
        s += f"{method.name} {LONG}Is it so? " + select("x", choices, choices_method=method)
        s += ". " + gen("y", max_tokens=2)

    state = program.run(backend=endpoint)
    meta = state.get_meta_info("x")
    prompt = f"{method.name} {LONG}Is it so? "
    for choice, tokens in zip(choices, meta["input_token_logprobs"], strict=True):
        whole = endpoint.client.generate(prompt + choice, max_tokens=1, prompt_logprobs=0).prompt.logprobs
        expected = [(entry.token_id, entry.logprob) for entry in whole[-len(tokens) :]]
        assert [(token_id, logprob) for logprob, token_id, _ in tokens] == [
            (token_id, pytest.approx(logprob)) for token_id, logprob in expected
        ]
    assert state["x"] in choices and state.text().startswith(prompt + state["x"] + ". ")
    num_shared = len(endpoint.client.tokenize(prompt).token_ids)
    assert min(meta["cached_tokens_by_choice"][1:]) >= full_blocks(num_shared - 1)


def test_constraints(endpoint: RuntimeEndpoint) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    schema["additionalProperties"] = False

    @function
    def program(s: Any) -> None:
        s += "A number: " + gen("number", regex="[1-9][0-9]{2}", max_tokens=8)
        s += " and JSON: " + gen("json", json_schema=schema, max_tokens=32)
        s += " and " + gen("whole", dtype=int, max_tokens=4)

    state = program.run(backend=endpoint, temperature=1.0, seed=3)
    assert re.fullmatch("[1-9][0-9]{2}", state["number"]) and re.fullmatch("[-+]?[0-9]+", state["whole"])
    assert json.loads(state["json"]).keys() == {"a"}


def test_stop_strings_cut_the_prompt_as_they_cut_the_text(endpoint: RuntimeEndpoint) -> None:
    @function
    def program(s: Any) -> None:
        s += LONG + gen("free", max_tokens=30, temperature=0.0)
        stop = s["free"][10:13]
        with s.copy() as again:
            again += "!"  # noqa: PLW2901 - appends in place
            again += gen("other", max_tokens=30, temperature=0.0, stop=stop) + gen("rest", max_tokens=4)  # noqa: PLW2901
        assert again.text() == LONG + s["free"] + "!" + again["other"] + again["rest"]
        assert stop not in again["other"]

    program.run(backend=endpoint)


def test_clients_see_the_same_cluster(tiny_cluster: Cluster) -> None:
    with Client(tiny_cluster.router) as client, HttpClient(tiny_cluster.url) as http:
        options: Any = {"max_tokens": 12, "temperature": 1.0, "seed": 5, "logprobs": 2, "prompt_logprobs": 1}
        ours, theirs = client.generate(LONG, **options), http.generate(LONG, **options)
        assert (ours.text, ours.token_ids) == (theirs.text, theirs.token_ids)
        for one, other in zip(ours.choices[0].logprobs, theirs.choices[0].logprobs, strict=True):
            assert (one.token_id, one.token) == (other.token_id, other.token)
            assert one.logprob == pytest.approx(other.logprob)
        assert len(ours.prompt.logprobs) == len(theirs.prompt.logprobs) == ours.prompt.num_tokens - 1
        workers = client.workers()
        assert {worker.worker_id: worker.state for worker in workers} == {"prefill-0": "ready", "decode-0": "ready"}
        model = client.model()
        assert (model.name, model.block_size, model.has_chat_template) == (tiny_cluster.model, BLOCK, True)
        assert http.model().name == model.name


def test_abort_and_leave(tiny_cluster: Cluster) -> None:
    with Client(tiny_cluster.router) as client:
        with client.stream(LONG, max_tokens=3000, ignore_eos=True) as stream:
            chunks = iter(stream)
            next(chunks)
            assert client.abort(stream.request_id)
            with pytest.raises(Cancelled):
                list(chunks)
        assert not client.abort(stream.request_id)
        with client.stream(LONG, max_tokens=3000, ignore_eos=True) as stream:
            next(iter(stream))


async def test_async_client(tiny_cluster: Cluster) -> None:
    async with pando.AsyncClient(tiny_cluster.router) as client:
        whole = await client.generate(LONG, max_tokens=8, temperature=0.0, n=2)
        assert whole.choices[0].text == whole.choices[1].text and whole.usage.completion_tokens == 16
        async with client.stream(LONG, max_tokens=3000, ignore_eos=True) as stream:
            async for _ in stream:
                break
