"""Text -> token ids that grow and never change, so that a prompt's KV is found again token for token.

Tokenising a longer text anew may cut its old part differently (the model need not have written what the tokenizer
would), and then nothing behind the difference is found in the cache. So the ids of what was asked and answered are
kept, and only what came after them is tokenised::

    spelled.ids   |p p p p p|g g g|          ids that were in the cluster: prompt, generated
    text          |.........|.....|~~~~~|    spelled.text, then new text: tokenised alone

The text is the truth and the ids are a way to spell it: ids that do not spell the text exactly are not kept. A template
that rewrites what came before (strips white space, drops thoughts) makes a text that does not begin with the old one;
then everything is tokenised anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pando.client.types import Choice, Prompt, Tokenized
from pando.lang.backend import Position

_MAX_TRIES = 16


class Speller(Protocol):
    """The part of a client that is needed here."""

    def tokenize(self, prompt: Prompt, *, add_special_tokens: bool = True) -> Tokenized:
        """See `pando.Client.tokenize`."""

    def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """See `pando.Client.detokenize`."""


@dataclass(slots=True, frozen=True)
class Spelled:
    """Ids, and the text that they spell."""

    ids: tuple[int, ...] = ()
    text: str = ""

    def extended(self, ids: Sequence[int], text: str) -> Spelled:
        """With more of both."""
        return Spelled((*self.ids, *ids), self.text + text)


@dataclass(slots=True, frozen=True)
class Split:
    """A prompt as ids that are kept and text that is not tokenised yet.

    Attributes:
        kept: ids that must not change.
        rest: text after them.
        whole: ids of the whole text where they are known; only when nothing is kept.
    """

    kept: Spelled
    rest: str
    whole: tuple[int, ...] | None = None


def split(client: Speller, at: Position) -> Split:
    """Find what is kept of a position's prompt. Asks the cluster to render a conversation. Raises PandoError."""
    known = at.memo if isinstance(at.memo, Spelled) else Spelled()
    if not at.script.is_chat:
        return _after(known, at.script.text, None)
    rendered = client.tokenize(at.script.chat())
    return _after(known, rendered.text, rendered.token_ids)


def _after(known: Spelled, text: str, whole: tuple[int, ...] | None) -> Split:
    if known.ids and text.startswith(known.text):
        return Split(known, text[len(known.text) :])
    return Split(Spelled(), text, whole)


def tail_ids(client: Speller, parts: Split, more: str = "") -> tuple[int, ...]:
    """Ids of a split's rest with more text behind it. Raises PandoError."""
    if parts.whole is not None and not more:
        return parts.whole
    text = parts.rest + more
    if not text:
        return ()
    is_start = not parts.kept.ids and parts.whole is None  # a rendered template brings its own special tokens
    return client.tokenize(text, add_special_tokens=is_start).token_ids


def spell(client: Speller, at: Position) -> Spelled:
    """All ids of a position's prompt. Raises PandoError."""
    parts = split(client, at)
    return parts.kept.extended(tail_ids(client, parts), parts.rest)


def keep(client: Speller, prompt: Spelled, choice: Choice) -> Spelled:
    """The prompt with as many generated ids as spell the beginning of the generated text.

    The last ones may not: an end token has no text, and a stop string may cut through a token.
    """
    ids = choice.token_ids
    for count in range(len(ids), max(len(ids) - _MAX_TRIES, 0), -1):
        text = client.detokenize(ids[:count])
        if choice.text.startswith(text):
            return prompt.extended(ids[:count], text)
    return prompt
