"""How `select` picks one of several texts from the logprobs of their tokens. Pure.

Three methods, with the names and results of SGLang's front end:

- `token_length_normalized` (the default): the best mean logprob. Fair between texts of different length, but a long
  text whose tail is certain after its head has an easy mean.
- `greedy_token_selection`: the best first token; among equals the best second one, and so on. A text that has ended
  goes on with its own mean.
- `unconditional_likelihood_normalized`: the best mean of logprob minus logprob without the prompt, so that a text that
  is likely anywhere has no head start. The first token has no logprob without a prompt; it counts as 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pando.client.types import TokenLogprob


@dataclass(slots=True, frozen=True)
class Scored:
    """One of the texts.

    Attributes:
        tokens: its tokens' logprobs after the prompt, at least one.
        unconditional: the same without the prompt, None for the first; empty unless the method needs it.
    """

    text: str
    tokens: tuple[TokenLogprob, ...]
    unconditional: tuple[float | None, ...] = ()

    @property
    def logprobs(self) -> list[float]:
        """Of its tokens."""
        return [token.logprob for token in self.tokens]


@dataclass(slots=True, frozen=True)
class Pick:
    """The index of the text that won, and the numbers that decided."""

    index: int
    meta: Mapping[str, Any] = field(default_factory=dict)


class ChoicesMethod(Protocol):
    """A way to pick.

    Attributes:
        name: for messages.
        needs_unconditional: whether it looks at `Scored.unconditional`.
    """

    @property
    def name(self) -> str:
        """See the class."""

    @property
    def needs_unconditional(self) -> bool:
        """See the class."""

    def pick(self, scored: Sequence[Scored]) -> Pick:
        """Pick one of at least one; of equals the first."""


@dataclass(slots=True, frozen=True)
class TokenLengthNormalized:
    """See the module."""

    name: str = "token_length_normalized"
    needs_unconditional: bool = False

    def pick(self, scored: Sequence[Scored]) -> Pick:
        """The best mean logprob."""
        return Pick(_best(_means(scored)), _common(scored))


@dataclass(slots=True, frozen=True)
class GreedyTokenSelection:
    """See the module."""

    name: str = "greedy_token_selection"
    needs_unconditional: bool = False

    def pick(self, scored: Sequence[Scored]) -> Pick:
        """The best token at the first position where they differ."""
        width = max(len(one.tokens) for one in scored)
        rows = [_extended(one.logprobs, width) for one in scored]
        # Rows compare position by position, as the method asks; of equal rows the first wins.
        best = max(range(len(rows)), key=lambda index: rows[index])
        return Pick(best, {**_common(scored), "greedy_logprob_matrix": rows})


@dataclass(slots=True, frozen=True)
class UnconditionalLikelihoodNormalized:
    """See the module."""

    name: str = "unconditional_likelihood_normalized"
    needs_unconditional: bool = True

    def pick(self, scored: Sequence[Scored]) -> Pick:
        """The best mean of what the prompt adds."""
        gains = [_gain(one) for one in scored]
        meta = {
            **_common(scored),
            "unconditional_token_logprobs": [list(one.unconditional) for one in scored],
            "normalized_unconditional_prompt_logprobs": gains,
        }
        return Pick(_best(gains), meta)


token_length_normalized = TokenLengthNormalized()
greedy_token_selection = GreedyTokenSelection()
unconditional_likelihood_normalized = UnconditionalLikelihoodNormalized()


def _gain(one: Scored) -> float:
    pairs = zip(one.logprobs, one.unconditional, strict=True)
    return _mean([logprob - (alone or 0.0) for logprob, alone in pairs])


def _extended(logprobs: list[float], width: int) -> list[float]:
    return logprobs + [_mean(logprobs)] * (width - len(logprobs))


def _common(scored: Sequence[Scored]) -> dict[str, Any]:
    tokens = [[_triple(token) for token in one.tokens] for one in scored]
    return {"normalized_prompt_logprobs": _means(scored), "input_token_logprobs": tokens}


def _triple(token: TokenLogprob) -> tuple[float, int, str]:
    return token.logprob, token.token_id, token.token.decode(errors="replace")


def _means(scored: Sequence[Scored]) -> list[float]:
    return [_mean(one.logprobs) for one in scored]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _best(values: Sequence[float]) -> int:
    return max(range(len(values)), key=values.__getitem__)
