"""The output of one request as it goes up to the caller: tokens, the text that became final with them, the end.

Fed synchronously after each step, read by one coroutine. Whatever was not read yet is merged into the next piece, so a
slow reader costs memory for its own tokens only, never a step.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field

from common.base.errors import InvalidRequest, PandoError
from common.sched.plan import TokenLogprobs
from common.sched.request import FinishReason, Request, RequestUpdate
from common.tokenizer.detokenizer import IncrementalDetokenizer


@dataclass(slots=True)
class Piece:
    """What became known since the last piece.

    Attributes:
        token_index: output position of the first of `token_ids`.
        text_offset: offset of `text` in the output text, in characters.
        prompt_logprobs: all of the prompt's, once, with the first token.
        finish_reason: set in the last piece; `stop_reason` is the stop string that matched.
    """

    token_index: int
    text_offset: int
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str = ""


class OutputStream:
    """A sink that turns a request's tokens into pieces.

    Args:
        request: may have output already (a resumed request): its tokens are not told again.
        detokenizer: fresh.
        sent_chars: characters of text that were sent before.
        on_stop: called when a stop string matched, to end the request.
        on_first_token: told the time of the first token here.
        observe_gap: told the seconds between two tokens.
        clock: monotonic seconds.

    Raises:
        InvalidRequest: more text was sent than the output so far has.
    """

    def __init__(
        self,
        request: Request,
        *,
        detokenizer: IncrementalDetokenizer,
        sent_chars: int,
        on_stop: Callable[[], None],
        on_first_token: Callable[[float], None],
        observe_gap: Callable[[float], None],
        clock: Callable[[], float],
    ) -> None:
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self._detokenizer = detokenizer
        self._on_stop = on_stop
        self._on_first_token = on_first_token
        self._clock = clock
        self._observe_gap = observe_gap
        self._pending = Piece(len(request.output_ids), sent_chars)
        self._error: PandoError | None = None
        self._ended = False
        self._news = asyncio.Event()
        self._prime(request.output_ids, sent_chars)

    def on_update(self, update: RequestUpdate) -> None:
        """Take in a step's outcome."""
        self._pending.prompt_logprobs.extend(update.prompt_logprobs)
        if update.token_id is not None:
            self.push(update.token_id, update.logprobs, update.digest)
            for token_id in update.forced_ids:
                self.push(token_id, None, None)
        if update.finish_reason is not None:
            self.end(update.finish_reason)

    def on_error(self, error: PandoError) -> None:
        """The request failed; the reader gets what was pending, then the error."""
        self._error = error
        self._news.set()

    def push(self, token_id: int, logprobs: TokenLogprobs | None, digest: bytes | None) -> None:
        """Take in one drawn token; ends the request when it completes a stop string."""
        if self.ended:
            return
        pending = self._pending
        pending.token_ids.append(token_id)
        if logprobs is not None:
            pending.logprobs.append(logprobs)
        if digest is not None:
            pending.digests.append(digest)
        self._note_time(self._clock())
        pending.text += self._detokenizer.feed((token_id,))
        self._news.set()
        if self._end_at_stop_string():
            self._on_stop()

    def push_prompt_logprobs(self, logprobs: Sequence[TokenLogprobs]) -> None:
        """Take in the prompt's logprobs from the worker that computed it."""
        self._pending.prompt_logprobs.extend(logprobs)

    def end(self, reason: FinishReason) -> None:
        """Close the output; text that was held back becomes final. The first reason stays."""
        if self.ended:
            return
        self._ended = True
        self._pending.text += self._detokenizer.finish()
        self._pending.finish_reason = reason
        self._news.set()

    @property
    def ended(self) -> bool:
        """Whether the output is complete, read or not."""
        return self._ended

    @property
    def num_tokens(self) -> int:
        """Output tokens so far, those of earlier attempts included."""
        return self._pending.token_index + len(self._pending.token_ids)

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """Yield pieces as they come; the last one has a finish reason. Raises the request's error."""
        while True:
            await self._news.wait()
            self._news.clear()
            piece = self._pending
            if piece.token_ids or piece.finish_reason is not None:
                self._pending = Piece(piece.token_index + len(piece.token_ids), piece.text_offset + len(piece.text))
                yield piece
                if piece.finish_reason is not None:
                    return
            if self._error is not None:
                raise self._error

    def _prime(self, output_ids: Sequence[int], sent_chars: int) -> None:
        """Bring the detokenizer to where the earlier attempt was; keep text that it had not sent yet."""
        text = self._detokenizer.feed(output_ids)
        if sent_chars > len(text):
            raise InvalidRequest(
                f"{sent_chars} characters were sent of an output that has {len(text)}", param="text_offset"
            )
        self._pending.text = text[sent_chars:]
        self._end_at_stop_string()

    def _end_at_stop_string(self) -> bool:
        if self._detokenizer.stop_match is None:
            return False
        self._pending.stop_reason = self._detokenizer.stop_match
        self.end(FinishReason.STOP)
        return True

    def _note_time(self, now_s: float) -> None:
        if self.last_token_s is not None:
            self._observe_gap(now_s - self.last_token_s)
        self.last_token_s = now_s
        if self.first_token_s is None:
            self.first_token_s = now_s
            self._on_first_token(now_s)
