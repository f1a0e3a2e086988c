"""What a client reads is exact: text to the last combining mark, logprobs of every choice as by teacher forcing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Generator
from typing import Any

import httpx
import pytest
import torch
from torch import Tensor

from tests.support.api_cases import CHAT, COMPLETIONS
from tests.support.cluster import SMOLLM2, UNHURRIED, Cluster
from tests.support.exact_text import DOORS, ZWJ, Told, faults, random_text
from tests.support.naive_forward import NaiveModel
from tests.support.tiny_model import tiny_model_dir

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
NUM_TEXTS = 120
AT_ONCE = 12
PROMPT = "The quick brown fox jumps over the lazy dog because"
TOLERANCE = 1e-3
SMOLLM2_FLAGS = (*UNHURRIED, "--profile", "unified", "--worker.dtype", "fp32", "--worker.max-total-tokens", "8192")


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Generator[Cluster, None, None]:
    with Cluster(tmp_path_factory.mktemp("smollm2"), *SMOLLM2_FLAGS, model=SMOLLM2) as cluster:
        yield cluster


async def check_texts(url: str, texts: list[str]) -> None:
    """Every text comes through one of the doors, the next one for each, as it should, and in parts."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(client: httpx.AsyncClient, number: int, text: str) -> Told:
        async with places:
            return await DOORS[number % len(DOORS)](client, text)

    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        found = await asyncio.gather(*(one(client, number, text) for number, text in enumerate(texts)))
    assert {text: wrong for text, told in zip(texts, found, strict=True) if (wrong := faults(told, text))} == {}
    assert sum(1 for told in found for delta in told.deltas if delta) > 3 * len(texts)


def random_texts(count: int, seed: int) -> list[str]:
    """Different texts."""
    choice = random.Random(seed)
    texts = [random_text(choice, choice.randint(2, 6)) for _ in range(count)]
    assert len(set(texts)) > 0.9 * count and any(ZWJ in text for text in texts)
    return texts


def test_a_hundred_texts_come_through_the_tiny_cluster(tiny_cluster: Cluster) -> None:
    asyncio.run(check_texts(tiny_cluster.url, random_texts(NUM_TEXTS, seed=1)))


def test_texts_come_through_the_tokenizer_of_smollm2(smollm2: Cluster) -> None:
    asyncio.run(check_texts(smollm2.url, random_texts(12, seed=2)))


@pytest.mark.parametrize(
    "told",
    [
        Told("é🙂", ["é", "🙂"], "e🙂".encode()),
        Told("é🙂", ["é"]),
        Told("é🙂", ["é", "\ufffd"]),
        Told("é\ufffd", ["é\ufffd"]),
        Told("é", ["é"]),
    ],
)
def test_a_wrong_text_is_seen(told: Told) -> None:
    assert faults(Told("é🙂", ["é", "", "🙂"], "é🙂".encode()), "é🙂") == []
    assert faults(told, "é🙂") != []


def forced(model: NaiveModel, prompt: list[int], output: list[int]) -> Tensor:
    """Logprobs [len(output), vocab] before each output token, by one pass over the whole sequence."""
    return torch.log_softmax(model.logits([*prompt, *output[:-1]], last=len(output)), dim=-1)


def largest_gap(logprobs: Tensor, ids: list[int], told: list[float], best: list[list[float]]) -> float:
    """Most that a told logprob differs, be it of a token or of its alternatives, the best first."""
    own = logprobs[torch.arange(len(ids)), torch.tensor(ids)] - torch.tensor(told)
    alternatives = logprobs.topk(len(best[0]), dim=-1).values - torch.tensor(best)
    return max(own.abs().max().item(), alternatives.abs().max().item())


def completions(cluster: Cluster, **ask: Any) -> list[tuple[list[int], list[float], list[list[float]]]]:
    """Token ids, logprobs and alternatives of each choice; and the same ids streamed."""
    body = {"prompt": PROMPT, "n": 3, "temperature": 1.0, "seed": 5, "max_tokens": 24, "logprobs": 4} | ask
    body |= {"return_token_ids": True, "ignore_eos": True}
    choices = cluster.target.ok(COMPLETIONS, body)["choices"]
    streamed: dict[int, list[float]] = {choice["index"]: [] for choice in choices}
    for event in cluster.target.stream(COMPLETIONS, body):
        for choice in event["choices"]:
            streamed[choice["index"]] += (choice["logprobs"] or {"token_logprobs": []})["token_logprobs"]
    assert [streamed[choice["index"]] for choice in choices] == [c["logprobs"]["token_logprobs"] for c in choices]
    return [
        (
            choice["token_ids"],
            choice["logprobs"]["token_logprobs"],
            [sorted(top.values(), reverse=True)[:4] for top in choice["logprobs"]["top_logprobs"]],
        )
        for choice in choices
    ]


def chat(cluster: Cluster) -> tuple[list[int], list[tuple[list[int], list[float], list[list[float]]]]]:
    """The prompt's ids; token ids, logprobs and alternatives of each choice."""
    body = {"messages": [{"role": "user", "content": PROMPT}], "n": 3, "temperature": 1.2, "top_p": 0.9, "seed": 6}
    body |= {"max_tokens": 24, "logprobs": True, "top_logprobs": 4, "return_token_ids": True, "ignore_eos": True}
    answer = cluster.target.ok(CHAT, body)
    rows = []
    for choice in answer["choices"]:
        tokens = choice["logprobs"]["content"]
        best = [[top["logprob"] for top in token["top_logprobs"]] for token in tokens]
        rows.append((choice["token_ids"], [token["logprob"] for token in tokens], best))
    return answer["prompt_token_ids"], rows


def prompt_ids(cluster: Cluster) -> list[int]:
    """Ids of `PROMPT`."""
    ids: list[int] = cluster.target.post("/tokenize", {"prompt": PROMPT}).json()["tokens"]
    return ids


def check_choices(cluster: Cluster, model: NaiveModel) -> None:
    """Every door, three choices that differ, each by teacher forcing on its own ids, and not on its neighbour's."""
    prompt = prompt_ids(cluster)
    rows = completions(cluster)
    chat_prompt, chat_rows = chat(cluster)
    for before, found in ((prompt, rows), (chat_prompt, chat_rows)):
        assert len({tuple(ids) for ids, _, _ in found}) == 3
        for ids, told, best in found:
            assert len(ids) == len(told) == len(best) == 24
            assert largest_gap(forced(model, before, ids), ids, told, best) < TOLERANCE
    (ids, _, _), (_, told, best), _ = rows
    assert largest_gap(forced(model, prompt, ids), ids, told, best) > 0.1


def check_echo(cluster: Cluster, model: NaiveModel) -> None:
    """The prompt, scored."""
    ids = prompt_ids(cluster)
    body = {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 1}
    told = cluster.target.ok(COMPLETIONS, body)["choices"][0]["logprobs"]["token_logprobs"]
    assert told[0] is None and len(told) == len(ids)
    best = forced(model, ids[:1], ids[1:])
    own = best[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
    assert (own - torch.tensor(told[1:])).abs().max().item() < TOLERANCE


def test_logprobs_of_every_choice_are_those_of_teacher_forcing(tiny_cluster: Cluster) -> None:
    model = NaiveModel(tiny_model_dir())
    check_choices(tiny_cluster, model)
    check_echo(tiny_cluster, model)


def test_logprobs_of_every_choice_on_real_weights(smollm2: Cluster) -> None:
    model = NaiveModel(SMOLLM2)
    check_choices(smollm2, model)
    check_echo(smollm2, model)
