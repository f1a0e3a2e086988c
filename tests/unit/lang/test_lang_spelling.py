"""Ids grow and never change, spell the text exactly, and texts are scored from where all of them agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from common.base.errors import Unsupported
from pando.client.types import (
    Chat,
    Choice,
    FinishReason,
    Generation,
    Prompt,
    PromptInfo,
    Tokenized,
    TokenLogprob,
    Usage,
)
from pando.lang.backend import Position
from pando.lang.scoring import score
from pando.lang.script import Script
from pando.lang.spelling import Spelled, keep, spell, split

VOCAB = ["<s>", "<|end|>", *"abcdefghijklmnopqrstuvwxyz :.\n", "ab", "bc", " c", "cat", " cat"]
IDS = {token: index for index, token in enumerate(VOCAB)}


def ids_of(*tokens: str) -> tuple[int, ...]:
    return tuple(IDS[token] for token in tokens)


class FakeTokenizer:
    """Longest match first, so that a longer text is not cut as its parts are; logprobs are minus the token's id."""

    def __init__(self, strip: bool = False, start: bool = True) -> None:
        self.prompts: list[tuple[int, ...]] = []
        self._strip = strip
        self._start = start

    def tokenize(self, prompt: Prompt, *, add_special_tokens: bool = True) -> Tokenized:
        text = self._render(prompt) if isinstance(prompt, Chat) else str(prompt)
        special = add_special_tokens and self._start and not isinstance(prompt, Chat)
        ids: list[int] = [0] if special else []
        at = 0
        while at < len(text):
            token = max((token for token in VOCAB if text.startswith(token, at)), key=len)
            ids.append(IDS[token])
            at += len(token)
        return Tokenized(tuple(ids), (), text, 100)

    def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return "".join(VOCAB[token] for token in token_ids)

    def generate(self, prompt: Prompt, **options: Any) -> Generation:
        assert isinstance(prompt, tuple) and options["prompt_logprobs"] == 0
        self.prompts.append(prompt)
        scored = prompt[max(options["prompt_logprobs_start"], 1) :]
        logprobs = tuple(TokenLogprob(token, -float(token), VOCAB[token].encode()) for token in scored)
        return Generation("r", (), PromptInfo(len(prompt), prompt, logprobs))

    def _render(self, chat: Chat) -> str:
        texts = [m["content"].strip() if self._strip else m["content"] for m in chat.messages]
        lines = [f"{m['role']}:{text}" for m, text in zip(chat.messages, texts, strict=True)]
        return "\n".join(lines) + ("" if chat.continue_final_message else "\nassistant:")


def choice(*tokens: str, text: str, finish: FinishReason = "length", stop: str = "") -> Choice:
    return Choice(0, text, ids_of(*tokens), finish, stop, (), Usage())


def at(text: str, memo: object = None) -> Position:
    return Position(Script(text=text), memo)


def test_generated_ids_are_kept_though_the_tokenizer_would_cut_otherwise() -> None:
    client = FakeTokenizer()
    prompt = spell(client, at("x"))
    assert prompt == Spelled((0, *ids_of("x")), "x")
    written = keep(client, prompt, choice("a", "b", text="ab"))
    assert written == Spelled((0, *ids_of("x", "a", "b")), "xab")
    assert client.tokenize("xab").token_ids == (0, *ids_of("x", "ab")), "the tokenizer would not have cut it so"
    assert spell(client, at("xabcat", written)).ids == (0, *ids_of("x", "a", "b", "cat"))
    assert spell(client, at("xab", written)) == written


@pytest.mark.parametrize(
    ("tokens", "text", "kept"),
    [
        (("a", "b", "<|end|>"), "ab", ("a", "b")),  # the end token has no text
        (("a", "bc", ".", "\n"), "ab", ("a",)),  # a stop string cut through a token
        (("a", "b", "cat"), "", ()),
        (("<s>", "a"), "a", ()),  # a special token that is not in the text
        (("a", "b"), "ab", ("a", "b")),
    ],
)
def test_only_ids_that_spell_the_text_are_kept(tokens: tuple[str, ...], text: str, kept: tuple[str, ...]) -> None:
    client = FakeTokenizer()
    written = keep(client, Spelled(ids_of("x"), "x"), choice(*tokens, text=text, finish="stop"))
    assert written.ids == ids_of("x", *kept)
    assert written.text == "x" + "".join(kept) and ("x" + text).startswith(written.text)


def conversation(*messages: tuple[str, str], open_end: bool) -> Script:
    script = Script()
    for role, content in messages:
        script = script.begin(role).append(content)
        script = script if open_end and (role, content) == messages[-1] else script.end(role)
    return script


def test_turns_of_a_conversation_go_on_from_the_generated_ids() -> None:
    client = FakeTokenizer()
    first = conversation(("user", "c"), ("assistant", ""), open_end=True)
    prompt = spell(client, Position(first))
    assert client.detokenize(prompt.ids) == "user:c\nassistant:" == prompt.text
    written = keep(client, prompt, choice("a", "b", text="ab"))
    second = conversation(("user", "c"), ("assistant", "ab"), ("user", "c"), ("assistant", "x"), open_end=True)
    longer = spell(client, Position(second, written))
    assert longer.ids[: len(written.ids)] == written.ids
    assert client.detokenize(longer.ids) == "user:c\nassistant:ab\nuser:c\nassistant:x" == longer.text


def test_a_template_that_rewrites_the_past_is_tokenised_anew() -> None:
    client = FakeTokenizer(strip=True)
    prompt = spell(client, Position(conversation(("user", "c"), ("assistant", ""), open_end=True)))
    written = keep(client, prompt, choice(" ", "a", "b", text=" ab"))
    again = conversation(("user", "c"), ("assistant", " ab"), ("user", "c"), ("assistant", ""), open_end=True)
    anew = spell(client, Position(again, written))
    assert anew.text == "user:c\nassistant:ab\nuser:c\nassistant:"
    assert anew.ids == client.tokenize(anew.text, add_special_tokens=False).token_ids


def test_the_model_answers_as_the_assistant_only() -> None:
    client = FakeTokenizer()
    for script in (
        conversation(("user", "c"), open_end=True),
        conversation(("user", "c"), open_end=False),
        conversation(("user", "c"), ("assistant", "x"), open_end=False),
    ):
        with pytest.raises(Unsupported):
            spell(client, Position(script))


def test_scores_begin_where_the_prompt_ends() -> None:
    client = FakeTokenizer()
    kept = Spelled(ids_of("x"), "x")
    scored, prompts, _ = score(client, split(client, at("x:", kept)), ["a", "bc"], unconditional=True)
    assert [one.logprobs for one in scored] == [[-float(IDS["a"])], [-float(IDS["bc"])]]
    assert [one.unconditional for one in scored] == [(None,), (None,)]
    assert [prompt.ids for prompt in prompts] == [ids_of("x", ":", "a"), ids_of("x", ":", "bc")]
    assert prompts[1].text == "x:bc"
    assert sorted(client.prompts) == sorted([*(prompt.ids for prompt in prompts), ids_of("a"), ids_of("bc")])


def test_scores_begin_earlier_for_all_where_a_token_crosses_the_border() -> None:
    client = FakeTokenizer()
    scored, prompts, _ = score(
        client, split(client, at("x ", Spelled(ids_of("x"), "x"))), ["cat", "dog"], unconditional=True
    )
    assert prompts[0].ids == ids_of("x", " cat")
    assert scored[0].logprobs == [-float(IDS[" cat"])]
    assert scored[1].logprobs == [-float(IDS[token]) for token in (" ", "d", "o", "g")]
    assert len(scored[1].unconditional) == 4


def test_the_first_token_of_all_counts_nothing() -> None:
    client = FakeTokenizer(start=False)
    scored, _, _ = score(client, split(client, at("ca")), ["t", "b"], unconditional=True)
    assert scored[0].logprobs == [0.0]
    assert scored[1].logprobs == [0.0, -float(IDS["ab"])]
    assert scored[1].unconditional == (None, -float(IDS["ab"]))


def test_a_start_token_is_before_all_scores() -> None:
    client = FakeTokenizer()
    scored, _, _ = score(client, split(client, at("ca")), ["t", "b"], unconditional=False)
    assert scored[0].logprobs == [-float(IDS["cat"])]
    assert scored[1].logprobs == [-float(IDS["c"]), -float(IDS["ab"])]
