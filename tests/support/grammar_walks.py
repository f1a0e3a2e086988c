"""Grammars without a model: the tiny vocabulary for the engine, and outputs drawn at random from the masks."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence

from common.grammar.llg import Automaton, Vocabulary
from common.grammar.spec import GrammarKind, GrammarSpec
from common.tokenizer.tokenizer import Tokenizer
from tests.support.tiny_model import END, tiny_model_dir


@functools.cache
def tiny_tokenizer() -> Tokenizer:
    """The tokenizer of the tiny model."""
    return Tokenizer.load(tiny_model_dir())


@functools.cache
def tiny_grammar_vocabulary() -> Vocabulary:
    """The tiny model's vocabulary as the grammar engine has it."""
    return Vocabulary.load(tiny_model_dir(), tiny_tokenizer().vocab_size, (END,))


def allowed(mask: bytes) -> list[int]:
    """The ids in a mask."""
    return [place * 8 + bit for place, byte in enumerate(mask) if byte for bit in range(8) if byte >> bit & 1]


def text_of(token_ids: Sequence[int]) -> str:
    """The text of an output, without its end token; raises when it is not UTF-8."""
    return b"".join(tiny_tokenizer().token_bytes(token) for token in token_ids if token != END).decode()


def fork(kind: str, text: str) -> Automaton:
    """A fresh automaton of a grammar."""
    return tiny_grammar_vocabulary().compile(GrammarSpec(GrammarKind(kind), text)).fork()


def walk(automaton: Automaton, seed: int, max_tokens: int = 400, hurry: int = 60) -> list[int] | None:
    """Draw tokens until the output ends, after `hurry` of them rather what closes; None: it did not end."""
    draw, output = random.Random(seed), list[int]()
    while not automaton.complete and len(output) < max_tokens:
        ids = allowed(automaton.mask())
        token = END if END in ids and len(output) > 8 else _pick(ids, draw, len(output) > hurry)
        automaton.advance([token])
        output.append(token)
        if token == END:
            return output
    return output if automaton.complete else None


def _pick(ids: Sequence[int], draw: random.Random, hurry: bool) -> int:
    closing = [token for token in ids if tiny_tokenizer().token_bytes(token) in (b'"', b"]", b"}", b")")]
    return draw.choice(closing if hurry and closing else ids)
