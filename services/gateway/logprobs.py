"""Logprobs in both OpenAI styles. Pure.

A token may be part of a character. Chat shows it with U+FFFD and its exact `bytes`; completions, which have no bytes
field and use tokens as keys, show it as OpenAI did: `bytes:\\xf0\\x9f`.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from pando.v1.inference_pb2 import PromptInfo
from pando.v1.types_pb2 import TokenLogprob

LEAST = -9999.0
"""Stands for minus infinity, which JSON has not."""


def finite(logprob: float) -> float:
    """A number that JSON can carry."""
    return logprob if logprob > LEAST else LEAST


def chat_logprobs(entries: Sequence[TokenLogprob]) -> dict[str, Any]:
    """`choices[].logprobs` of a chat answer."""
    return {"content": [_chat_entry(entry) for entry in entries], "refusal": None}


def _chat_entry(entry: TokenLogprob) -> dict[str, Any]:
    top = [_chat_token(other.token, other.logprob) for other in entry.top]
    return {**_chat_token(entry.token, entry.logprob), "top_logprobs": top}


def _chat_token(token: bytes, logprob: float) -> dict[str, Any]:
    return {"token": token.decode(errors="replace"), "logprob": finite(logprob), "bytes": list(token)}


def prompt_logprobs(prompt: PromptInfo) -> list[dict[str, Any] | None]:
    """The extension `prompt_logprobs`: None for the first token, then the token and its alternatives by id."""
    return [None, *(_by_id(entry) for entry in prompt.logprobs)]


def _by_id(entry: TokenLogprob) -> dict[str, Any]:
    others = enumerate(entry.top, 1)
    top = {other.token_id: _ranked(other.logprob, rank, other.token) for rank, other in others}
    return {str(key): value for key, value in {**top, entry.token_id: _own(entry)}.items()}


def _own(entry: TokenLogprob) -> dict[str, Any]:
    return _ranked(entry.logprob, entry.rank, entry.token)


def _ranked(logprob: float, rank: int, token: bytes) -> dict[str, Any]:
    return {"logprob": finite(logprob), "rank": rank, "decoded_token": token_string(token)}


def token_string(token: bytes) -> str:
    """A token as completions show it."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


class CompletionLogprobs:
    """Builds `choices[].logprobs` of one completions choice, piece by piece, keeping text offsets (code points).

    A token inside a character has the offset at which that character begins.
    """

    def __init__(self) -> None:
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def start_at(self, offset: int) -> None:
        """The next token begins at this offset, on a character's border."""
        self._offset = offset
        self._decoder.reset()

    def piece(self, entries: Sequence[TokenLogprob], first: bytes | None = None) -> dict[str, Any]:
        """The next tokens.

        Args:
            entries: their logprobs.
            first: a token before them that has no logprob (the first of a prompt).
        """
        tokens = ([] if first is None else [first]) + [entry.token for entry in entries]
        blank: list[None] = [] if first is None else [None]
        return {
            "tokens": [token_string(token) for token in tokens],
            "token_logprobs": blank + [finite(entry.logprob) for entry in entries],
            "top_logprobs": blank + [_top(entry) for entry in entries],
            "text_offset": [self._advance(token) for token in tokens],
        }

    def _advance(self, token: bytes) -> int:
        offset = self._offset
        self._offset += len(self._decoder.decode(token))
        return offset


def _top(entry: TokenLogprob) -> dict[str, float]:
    """The alternatives and the token itself, best first; of two that look alike the better one stays."""
    top: dict[str, float] = {}
    for other in entry.top:
        top.setdefault(token_string(other.token), finite(other.logprob))
    top.setdefault(token_string(entry.token), finite(entry.logprob))
    return top


def joined(pieces: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Several pieces as one."""
    keys = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return {key: [value for piece in pieces for value in piece[key]] for key in keys}
