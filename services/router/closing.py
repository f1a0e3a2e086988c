"""Whether tokens that were sent already end a request, and the text that was still held back.

A worker may die between the last token and the finish. Then nothing is left to generate: the router ends the stream
itself, from the tokens alone, as the worker would have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from common.sched.params import SamplingParams
from common.tokenizer.detokenizer import IncrementalDetokenizer
from common.tokenizer.tokenizer import Tokenizer
from services.router.job import Job


@dataclass(slots=True, frozen=True)
class Closing:
    """How a choice ended.

    Attributes:
        stopped: by a stop token or string; otherwise by length.
        stop_reason: the stop string that matched, or empty.
        text: characters that were not sent yet.
    """

    stopped: bool
    stop_reason: str
    text: str


def detokenizer(params: SamplingParams, tokenizer: Tokenizer) -> IncrementalDetokenizer:
    """A detokenizer as the worker uses it for these parameters."""
    return IncrementalDetokenizer(
        tokenizer,
        skip_special_tokens=params.skip_special_tokens,
        stop=params.stop,
        include_stop_str=params.include_stop_str,
        min_tokens=params.min_tokens,
    )


def closing(job: Job, tokenizer: Tokenizer, token_ids: Sequence[int], text_offset: int) -> Closing | None:
    """How `token_ids` end the job, `text_offset` characters of it sent; None when there is more to generate."""
    detok = detokenizer(job.wish.params, tokenizer)
    whole = detok.feed(token_ids)
    stopped = detok.stop_match is not None or _ends_with_stop_token(job, token_ids)
    if not stopped and len(token_ids) < job.max_tokens:
        return None
    whole += detok.finish()
    return Closing(stopped or detok.stop_match is not None, detok.stop_match or "", whole[text_offset:])


def _ends_with_stop_token(job: Job, token_ids: Sequence[int]) -> bool:
    if len(token_ids) <= job.wish.params.min_tokens:
        return False
    last = token_ids[-1]
    return last in job.wish.params.stop_token_ids or (last in job.eos_ids and not job.wish.params.ignore_eos)
