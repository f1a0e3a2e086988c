"""The grammar engine, llguidance: the only file that imports it.

A `Vocabulary` is built once per process from the model's tokenizer.json; it compiles a `GrammarSpec` into a `Grammar`,
from which every request forks its own `Automaton`. Forks share what they learn about the lexer, so that the masks of a
grammar get cheaper with use (7 ms for the first of a JSON schema, 0.02 ms later, 49,152 tokens).

Nothing here bounds time: llguidance's own limits do not cover all it does (``multipleOf: 99999999`` never compiles).
Compiling and masks let other threads run meanwhile; building the vocabulary (0.5 s) does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, grammar_from

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

from common.grammar.source import JSON_OPTIONS, choices_lark, json_schema, structural_tag_lark
from common.grammar.spec import GrammarKind, GrammarSpec, invalid_grammar, too_complex

MAX_LEXER_STATES = 20_000
"""Bounds the memory of a grammar: 1 to 2 kB a state."""

_MESSAGE_CHARS = 300
DEAD_END = "no text can satisfy the grammar"
_DEAD_END = ("NoExtension", "NoExtensionBias")
_COMPLEX = ("too many", "too big", "too large", "too complex", "fuel", "limit", "max is", "Unable to determine")


class Vocabulary:
    """The tokens of one model, as the grammar engine needs them. Immutable; shared between threads."""

    def __init__(self, tokenizer_json: str, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """Blocks for up to a second, other threads too."""
        self._tokenizer = LLTokenizer(tokenizer_json, n_vocab=vocab_size, eos_token=list(eos_token_ids))
        self._limits = LLParserLimits(max_lexer_states=MAX_LEXER_STATES, verbose_errors=False)
        self.eos_token_ids = tuple(eos_token_ids)

    @classmethod
    def load(cls, model_path: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> Vocabulary:
        """Read tokenizer.json of a model directory that was found good before."""
        return cls((model_path / "tokenizer.json").read_text("utf-8"), vocab_size, eos_token_ids)

    def compile(self, spec: GrammarSpec) -> Grammar:
        """Compile a grammar; may take long, or for ever.

        Raises:
            InvalidRequest: it is no grammar, nothing matches it, or it is beyond the engine's limits.
        """
        matcher = LLMatcher(self._tokenizer, self._source(spec), log_level=0, limits=self._limits)
        _check(matcher)
        return Grammar(matcher, self.eos_token_ids)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, as the engine would force them."""
        return self._tokenizer.tokenize_str(text)

    def _source(self, spec: GrammarSpec) -> str:
        if spec.kind is GrammarKind.REGEX:
            return LLMatcher.grammar_from_regex(spec.text)
        if spec.kind is GrammarKind.JSON_SCHEMA:
            options: JsonCompileOptions = {**JSON_OPTIONS}  # type: ignore[typeddict-item]
            return LLMatcher.grammar_from_json_schema(json_schema(spec), overrides=options)
        if spec.kind is GrammarKind.CHOICES:
            return LLMatcher.grammar_from_lark(choices_lark(spec))
        if spec.kind is GrammarKind.STRUCTURAL_TAG:
            return LLMatcher.grammar_from_lark(structural_tag_lark(spec, self._is_special))
        try:
            return grammar_from("ebnf", spec.text)
        except ValueError as error:
            raise invalid_grammar(_short(str(error))) from error

    def _is_special(self, text: str) -> bool:
        ids = self._tokenizer.tokenize_str(text, parse_special=True)
        is_name = text.startswith("<") and text.endswith(">")
        return is_name and len(ids) == 1 and self._tokenizer.is_special_token(ids[0])


class Grammar:
    """A compiled grammar at its start; `fork` it for every output."""

    def __init__(self, matcher: LLMatcher, eos_token_ids: Sequence[int]) -> None:
        self._matcher = matcher
        self._eos_token_ids = eos_token_ids

    def fork(self) -> Automaton:
        """A state of its own, before the first token. Takes microseconds."""
        return Automaton(self._matcher.deep_copy(), self._eos_token_ids)


class Automaton:
    """Where one output stands in its grammar. For one thread at a time.

    An error ends it: every later call raises the same.
    """

    def __init__(self, matcher: LLMatcher, eos_token_ids: Sequence[int]) -> None:
        self._matcher = matcher
        self._eos_token_ids = eos_token_ids

    @property
    def accepting(self) -> bool:
        """The output so far satisfies the grammar."""
        return self._matcher.is_accepting()

    @property
    def complete(self) -> bool:
        """The output satisfies the grammar and nothing can follow it."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def advance(self, token_ids: Sequence[int]) -> None:
        """Go on by tokens of the output. Raises InvalidRequest: the grammar forbids them, or is too complex."""
        if token_ids and not self._matcher.consume_tokens(list(token_ids)):
            _check(self._matcher)

    def mask(self) -> bytes:
        """One bit per token id, the lowest first: which may come next; at least one. Padded to whole 32 bits.

        End-of-sequence tokens are among them exactly if the output may end here.

        Raises:
            InvalidRequest: the grammar is too complex, or leads nowhere.
        """
        mask = bytearray(self._matcher.compute_bitmask())
        _check(self._matcher)
        if not self.accepting:
            for token in self._eos_token_ids:
                mask[token // 8] &= ~(1 << token % 8)
        if not any(mask):
            raise invalid_grammar(DEAD_END)
        return bytes(mask)

    def forced(self) -> list[int]:
        """The tokens that come next whatever is drawn: at each of them the mask has this one bit. May be empty."""
        tokens: list[int] = self._matcher.compute_ff_tokens()
        _check(self._matcher)
        return tokens


def _check(matcher: LLMatcher) -> None:
    if matcher.is_error():
        message = " ".join(matcher.get_error().split("\n<", maxsplit=1)[0].split())
        if message in _DEAD_END:
            raise invalid_grammar(DEAD_END)
        error = too_complex if any(word in message for word in _COMPLEX) else invalid_grammar
        raise error(f"grammar: {_short(message)}")


def _short(message: str) -> str:
    return message if len(message) <= _MESSAGE_CHARS else message[:_MESSAGE_CHARS] + "..."
