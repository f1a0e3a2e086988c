"""Prompts of the language, against a tokenizer that cuts a longer text otherwise than its parts: whatever is written,
generated and cut, the ids spell the text, and ids that were kept never change."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from pando.client.types import Choice, Prompt, Tokenized, Usage
from pando.lang.backend import Position
from pando.lang.script import Script
from pando.lang.spelling import Spelled, keep, spell

VOCAB = ("", "a", "b", "c", "é", "ab", "bc", "abc", "ca", "aé")
END = 0


class LongestMatch:
    """Greedy from the left; token 0 is an end token without text in an answer, but with one when it is decoded."""

    def tokenize(self, prompt: Prompt, *, add_special_tokens: bool = True) -> Tokenized:
        text, ids = str(prompt), []
        while text:
            token = max((t for t in VOCAB[1:] if text.startswith(t)), key=len)
            ids.append(VOCAB.index(token))
            text = text[len(token) :]
        return Tokenized(tuple(ids), (), str(prompt), 1000)

    def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return "".join("<end>" if token == END else VOCAB[token] for token in token_ids)


texts = st.text("abcé", max_size=6)
answers = st.lists(st.integers(0, len(VOCAB) - 1), max_size=6)
turns = st.lists(st.tuples(texts, answers, st.integers(0, 12)), min_size=1, max_size=6)


@given(turns)
def test_ids_spell_the_text_and_never_change(turns: list[tuple[str, list[int], int]]) -> None:
    client = LongestMatch()
    at, kept = Position(), Spelled()
    for text, ids, cut in turns:
        at = Position(at.script.append(text), at.memo)
        prompt = spell(client, at)
        assert client.detokenize(prompt.ids) == prompt.text == at.script.text
        assert prompt.ids[: len(kept.ids)] == kept.ids
        said = "".join(VOCAB[token] for token in ids)[:cut]  # cut as by a stop string
        kept = keep(client, prompt, Choice(0, said, tuple(ids), "stop", "", (), Usage()))
        assert client.detokenize(kept.ids) == kept.text
        assert (prompt.text + said).startswith(kept.text) and kept.text.startswith(prompt.text)
        at = Position(at.script.append(said), kept)


@given(texts, st.lists(st.integers(1, len(VOCAB) - 1), min_size=1, max_size=6))
def test_whole_answers_are_kept_whole(text: str, ids: list[int]) -> None:
    client = LongestMatch()
    prompt = spell(client, Position(Script(text=text)))
    said = client.detokenize(ids)
    ended = Choice(0, said, (*ids, END), "stop", "", (), Usage())
    assert keep(client, prompt, ended).ids == (*prompt.ids, *ids)
    assert keep(client, prompt, Choice(0, said, tuple(ids), "length", "", (), Usage())).ids == (*prompt.ids, *ids)
