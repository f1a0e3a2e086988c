"""A tiny byte-level BPE vocabulary and the model directory files around it, for tests without real weights."""

from __future__ import annotations

import json
from pathlib import Path

from common.tokenizer.gguf_vocab import GgufVocab, tokenizer_config_json, tokenizer_json
from common.tokenizer.tokenizer import Tokenizer

SPECIAL = ("<|end|>", "<|start|>")
WORDS = ("  ", "\n\n", "he", "hel", "lo", "the", " a", " b", "é", "日", "🙂")
TEMPLATE = (
    "{% for message in messages %}{{ '<|start|>' + message['role'] + '\n' + message['content'] + '<|end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"
)


def alphabet() -> dict[int, str]:
    """Byte -> character of the GPT-2 alphabet, written down independently of the code under test."""
    table: dict[int, str] = {}
    next_free = 0x100
    for byte in range(256):
        char = chr(byte)
        if char.isprintable() and char not in (" ", "\xa0", "\xad"):
            table[byte] = char
        else:
            table[byte] = chr(next_free)
            next_free += 1
    return table


def spelled(text: str) -> str:
    """`text` in the byte-level alphabet."""
    table = alphabet()
    return "".join(table[byte] for byte in text.encode())


def tiny_vocab(pre: str = "smollm", add_bos: bool | None = None) -> GgufVocab:
    """256 bytes, two control tokens, one user-defined token, and merges that build `WORDS`."""
    tokens = [*SPECIAL, *alphabet().values()]
    merges: list[str] = []
    for word in WORDS:
        chars = spelled(word)
        for length in range(2, len(chars) + 1):
            if chars[:length] not in tokens:
                merges.append(f"{chars[: length - 1]} {chars[length - 1]}")
                tokens.append(chars[:length])
    kinds = [3, 3, *([1] * (len(tokens) - 2)), 4]
    tokens.append("<tool>")
    special = {"bos": 1, "eos": 0}
    return GgufVocab("gpt2", pre, tokens, kinds, merges, add_bos, special, TEMPLATE, 128)


def write_tokenizer(path: Path, vocab: GgufVocab) -> None:
    """Write tokenizer.json and tokenizer_config.json of `vocab` into the folder `path`."""
    (path / "tokenizer.json").write_text(json.dumps(tokenizer_json(vocab)), encoding="utf-8")
    (path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config_json(vocab)), encoding="utf-8")


def tiny_tokenizer(path: Path, pre: str = "smollm", add_bos: bool | None = None) -> Tokenizer:
    """A loaded tokenizer of `tiny_vocab`, its files in the existing folder `path`."""
    write_tokenizer(path, tiny_vocab(pre, add_bos))
    return Tokenizer.load(path)
