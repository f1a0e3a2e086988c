"""Token ids -> streamed text, a few new bytes at a time.

    token ids --token_bytes--> bytes --UTF-8 decoder--> characters --stop scanner--> text that may be sent

Invariants: what was returned is never taken back; all pieces joined equal the decoding of all tokens, cut at the first
stop string; no character is ever split; no piece contains a beginning of a stop string that later completes. What is
emitted is a pure function of the tokens fed so far, so another worker that is fed the same tokens stands at the same
text offset (resume). Work per token is proportional to its bytes. It knows nothing of end-of-sequence ids.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from common.tokenizer.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """The text of one output choice. Not thread-safe; one instance per choice.

    Args:
        tokenizer: shared, not owned.
        skip_special_tokens: leave special tokens out of the text.
        stop: non-empty stop strings. The one whose last character comes first wins; of those the longest.
        include_stop_str: keep the stop string that matched at the end of the text.
        min_tokens: a stop string that is complete before this many tokens is plain text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        stop: Sequence[str] = (),
        include_stop_str: bool = False,
        min_tokens: int = 0,
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._scanner = _StopScanner(stop)
        self._include_stop_str = include_stop_str
        self._min_tokens = min_tokens
        self._held = ""
        self._num_tokens = 0
        self._text_offset = 0
        self._stop_match: str | None = None
        self._finished = False

    @property
    def stop_match(self) -> str | None:
        """The stop string that ended the text, or None."""
        return self._stop_match

    @property
    def num_tokens(self) -> int:
        """Tokens consumed; the one that completed a stop string is the last."""
        return self._num_tokens

    @property
    def text_offset(self) -> int:
        """Characters emitted so far."""
        return self._text_offset

    def feed(self, token_ids: Iterable[int]) -> str:
        """Consume tokens and return the text that became safe; tokens after a stop match are not consumed."""
        assert not self._finished, "fed after finish"
        pieces = []
        for token in token_ids:
            if self._stop_match is not None:
                break
            self._num_tokens += 1
            if token not in self._skipped:
                pieces.append(self._advance(self._decoder.decode(self._tokenizer.token_bytes(token))))
        return self._emitted("".join(pieces))

    def finish(self) -> str:
        """End the output and return what was held back; an incomplete character becomes U+FFFD."""
        self._finished = True
        if self._stop_match is not None:
            return ""
        text = self._advance(self._decoder.decode(b"", final=True))
        if self._stop_match is None:
            text += self._held
        self._held = ""
        return self._emitted(text)

    def _emitted(self, text: str) -> str:
        self._text_offset += len(text)
        return text

    def _advance(self, chars: str) -> str:
        """Scan new characters; return what may be sent and keep the rest in `_held`."""
        pending = self._held + chars
        allowed = self._num_tokens >= self._min_tokens
        match = self._scanner.scan(chars, allowed)
        if match is None:
            safe = len(pending) - self._scanner.num_held
        else:
            stop, num_chars = match
            end = len(self._held) + num_chars
            safe = end if self._include_stop_str else end - len(stop)
            self._stop_match = stop
        self._held = pending[safe:] if match is None else ""
        return pending[:safe]


class _StopScanner:
    """Finds stop strings in a stream of characters (Knuth-Morris-Pratt, one automaton per string)."""

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "empty stop string"
        self._stops = sorted(stops, key=len, reverse=True)
        self._borders = [_border_table(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)

    @property
    def num_held(self) -> int:
        """Length of the longest end of the stream that begins a stop string."""
        return max(self._matched, default=0)

    def scan(self, chars: str, allowed: bool) -> tuple[str, int] | None:
        """Consume `chars` up to the first match.

        Args:
            chars: the next characters of the stream.
            allowed: report matches; otherwise they pass as plain text.

        Returns:
            (stop string, number of `chars` up to and including its last character), or None.
        """
        if not self._stops:
            return None
        for position, char in enumerate(chars):
            match = self._step(char)
            if match is not None and allowed:
                return match, position + 1
        return None

    def _step(self, char: str) -> str | None:
        found = None
        for index, (stop, borders) in enumerate(zip(self._stops, self._borders, strict=True)):
            matched = self._matched[index]
            while matched and stop[matched] != char:
                matched = borders[matched - 1]
            matched += stop[matched] == char
            if matched == len(stop):
                found = found or stop
                matched = borders[-1]
            self._matched[index] = matched
        return found


def _border_table(pattern: str) -> list[int]:
    """For each end position: length of the longest proper prefix of `pattern` that is also a suffix up to there."""
    borders = [0] * len(pattern)
    length = 0
    for position in range(1, len(pattern)):
        while length and pattern[position] != pattern[length]:
            length = borders[length - 1]
        length += pattern[position] == pattern[length]
        borders[position] = length
    return borders
