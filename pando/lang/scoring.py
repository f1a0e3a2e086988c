"""How likely given texts are after a prompt, by the prompt logprobs of a cluster.

All texts are scored from the same character on. That is where the prompt ends, unless the tokenizer joins the prompt's
last characters with the texts' first ones (a space before a word): then scoring begins before the token that they
share, for every text. What comes before is not scored, so it may come from the cache; the first text goes alone and
fills it for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, Unpack

from pando.client.types import Generation, Options, Prompt, TokenLogprob
from pando.lang.choices import Scored
from pando.lang.spelling import Spelled, Speller, Split, tail_ids

_MAX_PARALLEL = 8


class Scorer(Speller, Protocol):
    """The part of a client that is needed here."""

    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Generation:
        """See `pando.Client.generate`."""


def score(
    client: Scorer, parts: Split, choices: Sequence[str], *, unconditional: bool
) -> tuple[list[Scored], list[Spelled], list[Generation]]:
    """Score every choice.

    Returns:
        The scores, the prompt with each choice, and the answers that the scores are from.

    Raises:
        PandoError: a request failed.
    """
    plain = tail_ids(client, parts)
    tails = [tail_ids(client, parts, choice) for choice in choices]
    start = min(_num_common(plain, tail) for tail in tails)
    prompts = [parts.kept.extended(tail, parts.rest + choice) for tail, choice in zip(tails, choices, strict=True)]
    first = len(parts.kept.ids) + start
    asking = [_asking(client, prompt.ids, first) for prompt in prompts]
    answers = [asking[0](), *_in_parallel(asking[1:])]
    tokens = [_scored(answer, first, prompt.ids) for answer, prompt in zip(answers, prompts, strict=True)]
    alone: list[tuple[float | None, ...]] = [()] * len(choices)
    if unconditional:
        without = _in_parallel([_asking(client, tail[start:], 0) for tail in tails])
        alone = [(None, *(token.logprob for token in answer.prompt.logprobs)) for answer in without]
    scored = [Scored(*one) for one in zip(choices, tokens, alone, strict=True)]
    return scored, prompts, answers


def _scored(answer: Generation, first: int, ids: Sequence[int]) -> tuple[TokenLogprob, ...]:
    """Logprobs of the prompt tokens from `first` on. The very first token of a prompt has none: it counts as 0."""
    return answer.prompt.logprobs if first > 0 else (TokenLogprob(ids[0], 0.0, b""), *answer.prompt.logprobs)


def _asking(client: Scorer, ids: Sequence[int], first: int) -> Callable[[], Generation]:
    return lambda: client.generate(
        tuple(ids), max_tokens=1, temperature=0.0, prompt_logprobs=0, prompt_logprobs_start=first
    )


def _in_parallel(calls: Sequence[Callable[[], Generation]]) -> list[Generation]:
    if not calls:
        return []
    with ThreadPoolExecutor(min(len(calls), _MAX_PARALLEL), thread_name_prefix="pando-score") as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def _num_common(one: Sequence[int], other: Sequence[int]) -> int:
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count
