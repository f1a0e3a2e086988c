"""`usage` of an answer, from the cost of its choices. Pure.

The prompt counts once per prompt, however many choices there are, and so do its cached tokens: of the choices of one
prompt the one that found least counts, because what one of them computed was computed for this request. What was
computed is written to the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pando.v1.types_pb2 import CachedTokens, Usage
from services.gateway.transcript import Slot, Transcript


def num_cached(cached: CachedTokens) -> int:
    """Cached prompt tokens of one choice, all tiers."""
    return cached.l1 + cached.l2 + cached.l3 + cached.peer


def running_usage(transcript: Transcript) -> dict[str, Any]:
    """Totals so far; cached tokens are those of the prompts whose choices have all ended."""
    return _counts(transcript, _cached(transcript))


def final_usage(transcript: Transcript) -> dict[str, Any]:
    """Totals of a complete transcript, with times in seconds and the detail of tiers under `pando`."""
    usages = [slot.usage for slot in transcript.slots if slot.usage is not None]
    cached = _cached(transcript)
    return {
        **_counts(transcript, cached),
        "prefill_time": max((usage.prefill_s for usage in usages), default=0.0),
        "decode_time": max((usage.decode_s for usage in usages), default=0.0),
        "pando": {
            "cached_tokens": {
                "l1": sum(entry.l1 for entry in cached),
                "l2": sum(entry.l2 for entry in cached),
                "l3": sum(entry.l3 for entry in cached),
                "peer": sum(entry.peer for entry in cached),
            },
            **_detail(usages),
            **transcript.notes,
        },
    }


def responses_usage(transcript: Transcript) -> dict[str, Any]:
    """The same totals as the responses API names them."""
    usage = final_usage(transcript)
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": usage["prompt_tokens_details"],
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage["total_tokens"],
        "pando": usage["pando"],
    }


def _counts(transcript: Transcript, cached: list[CachedTokens]) -> dict[str, Any]:
    prompt = sum(_prompt_tokens(transcript.of_prompt(index)) for index in range(transcript.num_prompts))
    completion = sum(slot.num_tokens for slot in transcript.slots)
    hits = sum(num_cached(entry) for entry in cached)
    ended = len(cached) == transcript.num_prompts
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": hits, "cache_write_tokens": prompt - hits if ended else 0},
    }


def _prompt_tokens(slots: Sequence[Slot]) -> int:
    return max(slot.num_prompt_tokens for slot in slots)


def _cached(transcript: Transcript) -> list[CachedTokens]:
    of_prompts = (transcript.of_prompt(index) for index in range(transcript.num_prompts))
    return [_least(slots) for slots in of_prompts if all(slot.usage is not None for slot in slots)]


def _least(slots: Sequence[Slot]) -> CachedTokens:
    return min((slot.usage.cached_tokens for slot in slots if slot.usage is not None), key=num_cached)


def _detail(usages: list[Usage]) -> dict[str, Any]:
    return {
        "queue_time": max((usage.queue_s for usage in usages), default=0.0),
        "transfer_time": max((usage.transfer_s for usage in usages), default=0.0),
        "transfer_bytes": sum(usage.transfer_bytes for usage in usages),
        "preemptions": sum(usage.num_preemptions for usage in usages),
        "prefill_workers": sorted({usage.prefill_worker for usage in usages if usage.prefill_worker}),
        "decode_workers": sorted({usage.decode_worker for usage in usages if usage.decode_worker}),
    }
