"""tokenizer.json and tokenizer_config.json for the vocabulary of a GGUF file.

Pure: takes the lists and strings a GGUF stores, returns JSON values. Only byte-level BPE ("gpt2" model) is known, with
the pre-tokenizers below; the split rule decides token ids, so an unknown one is refused instead of guessed.

The `smollm` rule splits every digit off *before* the GPT-2 regex sees the text. `Digits` must therefore come before
`ByteLevel`: otherwise the regex would join white space with what follows the digit, and "\\n\\n2" or "a  5" get other
ids although they decode to the same text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from common.base.model_config import ModelError

Json = dict[str, Any]

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5
_KINDS = (_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED)

_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3_SPLIT = _QWEN2_SPLIT.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


@dataclass(slots=True, frozen=True)
class GgufVocab:
    """The tokenizer part of a GGUF file.

    Attributes:
        model: tokenizer.ggml.model.
        pre: tokenizer.ggml.pre, the name of the split rule.
        tokens: text of each id, in the byte-level alphabet.
        kinds: token_type of each id.
        merges: "left right" in order of priority.
        add_bos: put BOS before encoded text; None means the split rule's habit.
        special: bos, eos, unk, pad -> id, where the file names one.
        chat_template: Jinja source or None.
        context_tokens: longest sequence.
    """

    model: str
    pre: str
    tokens: list[str]
    kinds: list[int]
    merges: list[str]
    add_bos: bool | None
    special: dict[str, int]
    chat_template: str | None
    context_tokens: int


def tokenizer_json(vocab: GgufVocab) -> Json:
    """Return the content of a tokenizer.json that gives the ids the GGUF's own runtime gives.

    Raises:
        ModelError: the vocabulary is inconsistent or of a kind that is not supported.
    """
    _check(vocab)
    normalizer, pre_tokenizer, ignore_merges = _split_rule(vocab.pre)
    used = {token: index for index, token in enumerate(vocab.tokens) if vocab.kinds[index] != _UNUSED}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(vocab),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": _post_processor(vocab),
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": ignore_merges,
            "vocab": used,
            "merges": [merge.split(" ", 1) for merge in vocab.merges],
        },
    }


def tokenizer_config_json(vocab: GgufVocab) -> Json:
    """Return the content of tokenizer_config.json: special tokens, context length and chat template."""
    config: Json = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": vocab.context_tokens,
        "added_tokens_decoder": {str(token.pop("id")): token for token in _added_tokens(vocab)},
    }
    for name in ("bos", "eos", "unk", "pad"):
        if name in vocab.special:
            config[f"{name}_token"] = vocab.tokens[vocab.special[name]]
    if vocab.chat_template is not None:
        config["chat_template"] = vocab.chat_template
    return config


def _check(vocab: GgufVocab) -> None:
    if vocab.model != "gpt2":
        raise ModelError(f"GGUF tokenizer model {vocab.model!r} is not supported (known: gpt2)")
    if len(vocab.kinds) != len(vocab.tokens) or any(kind not in _KINDS for kind in vocab.kinds):
        raise ModelError("GGUF token types do not fit the token list")
    if any(not 0 <= index < len(vocab.tokens) for index in vocab.special.values()):
        raise ModelError("GGUF special token id is outside the vocabulary")
    known = set(vocab.tokens)
    if len(known) != len(vocab.tokens):
        raise ModelError("GGUF vocabulary names a token twice")
    for merge in vocab.merges:
        left, _, right = merge.partition(" ")
        if left not in known or right not in known or left + right not in known:
            raise ModelError(f"GGUF merge {merge!r} does not fit the vocabulary")


def _added_tokens(vocab: GgufVocab) -> list[Json]:
    """Tokens matched in the text before splitting; control tokens are special (skipped on decoding when asked)."""
    return [
        {
            "id": index,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": vocab.kinds[index] == _CONTROL,
        }
        for index, token in enumerate(vocab.tokens)
        if vocab.kinds[index] in (_CONTROL, _USER_DEFINED)
    ]


def _split_rule(pre: str) -> tuple[Json | None, Json, bool]:
    """Return (normalizer, pre-tokenizer, whether whole words in the vocabulary bypass merging) of a split rule."""
    match pre:
        case "smollm":
            return None, _sequence({"type": "Digits", "individual_digits": True}, _byte_level(use_regex=True)), False
        case "gpt-2" | "gpt2":
            return None, _byte_level(use_regex=True), False
        case "qwen2":
            return {"type": "NFC"}, _sequence(_split(_QWEN2_SPLIT), _byte_level(use_regex=False)), False
        case "llama-bpe" | "llama3" | "llama-v3":
            return None, _sequence(_split(_LLAMA3_SPLIT), _byte_level(use_regex=False)), True
        case _:
            known = "smollm, gpt-2, qwen2, llama-bpe"
            raise ModelError(f"GGUF pre-tokenizer {pre!r} is not supported (known: {known})")


def _post_processor(vocab: GgufVocab) -> Json:
    add_bos = vocab.pre.startswith("llama") if vocab.add_bos is None else vocab.add_bos
    if not add_bos:
        return {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    if "bos" not in vocab.special:
        raise ModelError("GGUF asks for a BOS token but names none")
    index = vocab.special["bos"]
    bos = vocab.tokens[index]
    prefix: Json = {"SpecialToken": {"id": bos, "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [prefix, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [prefix, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {bos: {"id": bos, "ids": [index], "tokens": [bos]}},
    }


def _sequence(*steps: Json) -> Json:
    return {"type": "Sequence", "pretokenizers": list(steps)}


def _split(pattern: str) -> Json:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _byte_level(*, use_regex: bool) -> Json:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": use_regex}
