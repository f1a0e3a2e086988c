"""Text <-> token ids of one model directory, over the `tokenizers` library alone.

Only byte-level BPE is served (Llama 3, Qwen, SmolLM, GPT-2 style): there every token *is* a fixed string of bytes, so
the text of any token sequence is the concatenation of `token_bytes`, decoded. Streaming, logprobs and grammar masks
rest on that. Other decoders (Metaspace, WordPiece) give a token a text that depends on its neighbours and are refused
at load. Instances are immutable and may be used from several threads at once; a long text keeps nobody else from
running meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

import tokenizers

from common.base.errors import InvalidRequest
from common.base.model_config import ModelError


class Tokenizer:
    """The tokenizer of a model; make one with `Tokenizer.load`."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        """Take ownership of `inner`; raises ModelError if it is not byte-level."""
        if not isinstance(inner.decoder, tokenizers.decoders.ByteLevel):
            raise ModelError("the tokenizer is not byte-level BPE (decoder ByteLevel): not supported")
        inner.no_truncation()
        inner.no_padding()
        self._inner = inner
        added = inner.get_added_tokens_decoder()
        self._special_ids = frozenset(index for index, token in added.items() if token.special)
        self._bytes = _token_table(inner, added.keys())
        self._max_token_bytes = max(map(len, self._bytes), default=0) if _keeps_text(inner) else None
        alphabet = _byte_level_alphabet().items()
        self._lost_bytes = bytes(byte for char, byte in alphabet if inner.token_to_id(char) is None)

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Read tokenizer.json of the model directory `path`.

        Raises:
            ModelError: the file is missing, damaged, or of an unsupported kind.
        """
        file = path / "tokenizer.json"
        try:
            content = file.read_text("utf-8")
        except FileNotFoundError as error:
            raise ModelError(f"{file} is missing") from error
        except (OSError, ValueError) as error:
            raise ModelError(f"cannot read {file}: {error}") from error
        try:
            inner = tokenizers.Tokenizer.from_str(content)
        except Exception as error:  # the library raises plain Exception for damaged files
            raise ModelError(f"{file} is no valid tokenizer: {error}") from error
        return cls(inner)

    @property
    def vocab_size(self) -> int:
        """One more than the highest token id. The model's own vocabulary may be padded beyond it."""
        return len(self._bytes)

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of the control tokens that `skip_special` leaves out."""
        return self._special_ids

    def encode(self, text: str, add_special: bool) -> list[int]:
        """Return the ids of `text`; spelled-out special tokens in it become their ids.

        Args:
            text: any Unicode string; a rendered chat is encoded with `add_special=False`.
            add_special: let the tokenizer add its own BOS or EOS.

        Raises:
            InvalidRequest: the text holds lone surrogates, which no encoding can carry.
        """
        try:
            # the plain `encode` would hold the interpreter's lock to the end
            ids: list[int] = self._inner.encode_batch_fast([text], add_special_tokens=add_special)[0].ids
        except (UnicodeEncodeError, TypeError) as error:
            raise InvalidRequest("the text is not valid Unicode", reason="invalid_unicode", param="prompt") from error
        return ids

    def min_tokens(self, text: str) -> int:
        """A number of tokens that `text` surely has at least, found without encoding it; may be 0."""
        if not self._max_token_bytes:
            return 0
        return -(-len(text.encode().translate(None, self._lost_bytes)) // self._max_token_bytes)

    def decode(self, ids: Iterable[int], skip_special: bool) -> str:
        """Return the text of `ids`; bytes that are no valid UTF-8 become U+FFFD, unknown ids nothing."""
        kept = (index for index in ids if not (skip_special and index in self._special_ids))
        return b"".join(map(self.token_bytes, kept)).decode("utf-8", errors="replace")

    def token_bytes(self, index: int) -> bytes:
        """Return the exact bytes of token `index` (UTF-8 of an added token's spelling; empty for an unknown id)."""
        return self._bytes[index] if 0 <= index < len(self._bytes) else b""


def _keeps_text(inner: tokenizers.Tokenizer) -> bool:
    """Whether every byte of a text that has a token of its own ends up in some token: nothing normalises or strips."""
    strips = any(token.lstrip or token.rstrip for token in inner.get_added_tokens_decoder().values())
    return inner.normalizer is None and not strips


def _token_table(inner: tokenizers.Tokenizer, added: Collection[int]) -> list[bytes]:
    """Return the bytes of each id; a token with a character outside the byte-level alphabet means its own UTF-8."""
    outside = dict.fromkeys(range(0x100), "\uffff")
    to_latin_1 = outside | {ord(char): chr(byte) for char, byte in _byte_level_alphabet().items()}
    vocab = inner.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocab.values(), default=-1) + 1)
    for token, index in vocab.items():
        try:
            table[index] = token.encode() if index in added else token.translate(to_latin_1).encode("latin-1")
        except UnicodeEncodeError:
            table[index] = token.encode()
    return table


def _byte_level_alphabet() -> dict[str, int]:
    """Return the GPT-2 alphabet, character -> byte.

    Printable Latin-1 bytes stand for themselves; the other 68 are U+0100, U+0101, ... in order of their value.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}
