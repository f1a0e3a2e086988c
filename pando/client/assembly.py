"""Chunks -> a whole answer. Pure.

A stream that ends before every choice has its end has failed, whatever its status says.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from common.base.errors import Internal, PeerLost
from pando.client.types import Choice, Chunk, FinishReason, Generation, PromptInfo, TokenLogprob, Usage


@dataclass(slots=True)
class _Part:
    """One choice so far."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str = ""
    usage: Usage = field(default_factory=Usage)


class Assembly:
    """Collects the chunks of one request with `n` choices."""

    def __init__(self, request_id: str, n: int) -> None:
        self._request_id = request_id
        self._parts = [_Part() for _ in range(n)]
        self._prompt = PromptInfo()

    def add(self, chunk: Chunk) -> None:
        """Account for a chunk. Raises Internal when it belongs to no open choice."""
        if chunk.choice >= len(self._parts) or self._parts[chunk.choice].finish_reason is not None:
            raise Internal(f"a chunk for choice {chunk.choice}, which is not open", request_id=self._request_id)
        part = self._parts[chunk.choice]
        part.texts.append(chunk.text)
        part.token_ids.extend(chunk.token_ids)
        part.logprobs.extend(chunk.logprobs)
        if chunk.prompt is not None and chunk.choice == 0:
            self._prompt = chunk.prompt
        if chunk.finish_reason is not None:
            part.finish_reason, part.stop_reason = chunk.finish_reason, chunk.stop_reason
            part.usage = chunk.usage or part.usage

    def check_complete(self) -> None:
        """Raises PeerLost when a choice has no end."""
        for index, part in enumerate(self._parts):
            if part.finish_reason is None:
                raise PeerLost(f"the stream ended before choice {index} did", request_id=self._request_id)

    def result(self) -> Generation:
        """The whole answer. Raises PeerLost when a choice has no end."""
        self.check_complete()
        choices = tuple(_choice(index, part) for index, part in enumerate(self._parts))
        return Generation(self._request_id, choices, self._prompt)


def _choice(index: int, part: _Part) -> Choice:
    assert part.finish_reason is not None, "checked by the caller"
    return Choice(
        index=index,
        text="".join(part.texts),
        token_ids=tuple(part.token_ids),
        finish_reason=part.finish_reason,
        stop_reason=part.stop_reason,
        logprobs=tuple(part.logprobs),
        usage=part.usage,
    )
