"""What the interpreter asks of a backend, and the position from which it asks.

A backend is used by many threads at once. It keeps nothing per program: what it wants to remember of a prompt (such as
the token ids that were generated) travels in `Position.memo`, which forks share and nobody changes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from common.base.errors import Unsupported
from pando.client.types import Generation, TokenLogprob
from pando.lang.expr import Gen, Select
from pando.lang.script import Script


class Listener(Protocol):
    """Who wants to know how a call goes on."""

    def began(self, cancel: Callable[[], None]) -> None:
        """The call runs; `cancel`, from any thread, ends it."""

    def said(self, text: str) -> None:
        """A piece of the first choice came ("" for a sign of life)."""


@dataclass(slots=True, frozen=True)
class Position:
    """A place in a program: its script, and what the backend remembers of it."""

    script: Script = Script()  # noqa: RUF009 - immutable
    memo: object = None


@dataclass(slots=True, frozen=True)
class Answer:
    """What a call of the model gave.

    Attributes:
        texts: one per choice.
        metas: what is known of each choice, with the keys of SGLang's meta_info.
        position: after the first choice.
    """

    texts: Sequence[str]
    metas: Sequence[Mapping[str, Any]]
    position: Position


class Backend(ABC):
    """Where programs run; a context manager that closes it."""

    @abstractmethod
    def generate(self, at: Position, gen: Gen, listener: Listener) -> Answer:
        """Have the model go on.

        Args:
            at: from here.
            gen: the call, with all its options.
            listener: is told of every piece as it comes; may raise to end the call.

        Raises:
            PandoError: it failed, or the backend cannot do it.
        """

    def select(self, at: Position, select: Select) -> Answer:
        """Pick one of some texts. Raises PandoError."""
        raise Unsupported(f"{type(self).__name__} cannot tell how likely a given text is: select is not available")

    def warm(self, at: Position) -> Position:
        """Have the prompt's KV computed if that saves work; returns the same place."""
        return at

    def close(self) -> None:  # noqa: B027 - nothing to close is the usual case
        """Close what it opened."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def metas_of(whole: Generation) -> list[dict[str, Any]]:
    """meta_info of every choice."""
    metas = []
    for choice in whole.choices:
        finish: dict[str, Any] = {"type": choice.finish_reason}
        if choice.finish_reason == "length":
            finish["length"] = len(choice.token_ids)
        else:
            finish["matched"] = choice.stop_reason or None
        meta: dict[str, Any] = {
            "id": whole.request_id,
            "finish_reason": finish,
            "prompt_tokens": choice.usage.prompt_tokens,
            "completion_tokens": choice.usage.completion_tokens,
            "cached_tokens": choice.usage.cached_tokens,
            "output_ids": list(choice.token_ids),
        }
        if choice.logprobs:
            meta["output_token_logprobs"] = _triples(choice.logprobs)
            meta["output_top_logprobs"] = [_tops(token) for token in choice.logprobs]
        if whole.prompt.logprobs:
            meta["input_token_logprobs"] = _triples(whole.prompt.logprobs)
        metas.append(meta)
    return metas


def _triples(tokens: Sequence[TokenLogprob]) -> list[tuple[float, int, str]]:
    return [(token.logprob, token.token_id, token.token.decode(errors="replace")) for token in tokens]


def _tops(token: TokenLogprob) -> list[tuple[float, int, str]]:
    return [(top.logprob, top.token_id, top.token.decode(errors="replace")) for top in token.top]
