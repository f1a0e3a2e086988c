"""Split rules of imported tokenizers, tested on ids (the text round-trips whatever the rule)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from common.base.model_config import ModelError
from common.tokenizer.gguf_vocab import tokenizer_config_json, tokenizer_json
from tests.support.tiny_vocab import spelled, tiny_tokenizer, tiny_vocab


def pieces(path: Path, pre: str, text: str) -> list[bytes]:
    tokenizer = tiny_tokenizer(path, pre)
    return [tokenizer.token_bytes(index) for index in tokenizer.encode(text, False)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\n\n2", ["\n\n", "2"]),
        ("a  5", ["a", "  ", "5"]),
        ("2024", ["2", "0", "2", "4"]),
        ("x  y", ["x", " ", " ", "y"]),
    ],
)
def test_smollm_splits_digits_before_the_regex(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert pieces(tmp_path, "smollm", text) == [piece.encode() for piece in expected]


def test_digits_after_byte_level_would_give_other_ids(tmp_path: Path) -> None:
    """Negative control: the wrong order is seen by ids, and not by round trips."""
    raw: dict[str, Any] = tokenizer_json(tiny_vocab("smollm"))
    right = tokenizers.Tokenizer.from_str(json.dumps(raw))
    raw["pre_tokenizer"]["pretokenizers"].reverse()
    wrong = tokenizers.Tokenizer.from_str(json.dumps(raw))
    for text in ("\n\n2", "a  5"):
        assert right.encode(text).ids != wrong.encode(text).ids
        assert right.decode(right.encode(text).ids) == wrong.decode(wrong.encode(text).ids) == text


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["abc", " 1234", "'s", " ", " x"]),
        ("qwen2", ["abc", " ", "1", "2", "3", "4", "'s", " ", " x"]),
        ("llama-bpe", ["abc", " ", "123", "4", "'s", " ", " x"]),
        ("smollm", ["abc", " ", "1", "2", "3", "4", "'s", " ", " x"]),
    ],
)
def test_words_of_each_rule(pre: str, expected: list[str]) -> None:
    inner = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json(tiny_vocab(pre))))
    words = [word for word, _ in inner.pre_tokenizer.pre_tokenize_str("abc 1234's  x")]
    assert words == [spelled(word) for word in expected]


def test_qwen2_composes_characters(tmp_path: Path) -> None:
    assert pieces(tmp_path, "qwen2", "e\u0301") == ["é".encode()]
    assert pieces(tmp_path, "gpt-2", "e\u0301") == [b"e", b"\xcc", b"\x81"]


def test_unused_tokens_are_left_out() -> None:
    vocab = tiny_vocab()
    padded = replace(vocab, tokens=[*vocab.tokens, "[PAD9]"], kinds=[*vocab.kinds, 5])
    assert "[PAD9]" not in tokenizer_json(padded)["model"]["vocab"]


def test_config_carries_special_tokens_and_template() -> None:
    config = tokenizer_config_json(tiny_vocab())
    assert (config["bos_token"], config["eos_token"]) == ("<|start|>", "<|end|>")
    assert "unk_token" not in config
    assert config["added_tokens_decoder"]["0"]["special"] is True
    user_defined = [token for token in config["added_tokens_decoder"].values() if not token["special"]]
    assert [token["content"] for token in user_defined] == ["<tool>"]
    assert "add_generation_prompt" in config["chat_template"]
    assert "chat_template" not in tokenizer_config_json(replace(tiny_vocab(), chat_template=None))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "llama"}, "tokenizer model 'llama'"),
        ({"pre": "deepseek-llm"}, "pre-tokenizer 'deepseek-llm'"),
        ({"pre": ""}, "pre-tokenizer ''"),
        ({"kinds": [1]}, "token types"),
        ({"merges": ["a zz"]}, "merge 'a zz'"),
        ({"special": {"eos": 10_000}}, "outside the vocabulary"),
        ({"special": {}, "add_bos": True}, "BOS"),
        ({"tokens": ["a", "a"], "kinds": [1, 1]}, "twice"),
    ],
)
def test_what_is_not_understood_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError) as caught:
        tokenizer_json(replace(tiny_vocab(), **changes))
    assert words in caught.value.message
