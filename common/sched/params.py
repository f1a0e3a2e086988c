"""Sampling parameters: what a request may ask of the sampler, and their limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from common.grammar.spec import GrammarSpec


@dataclass(slots=True, frozen=True)
class SamplingParams:
    """How output tokens are drawn and when a request ends. Immutable; validated where it enters the cluster.

    Attributes:
        max_tokens: most output tokens, >= 1.
        min_tokens: no end-of-sequence, stop token or stop string before this many output tokens.
        temperature: 0 is greedy (ties go to the lowest id).
        top_k: keep the k best tokens; 0 keeps all.
        top_p: keep the smallest set of best tokens whose mass reaches this; 1 keeps all.
        min_p: drop tokens below this share of the best token's probability.
        presence_penalty, frequency_penalty: OpenAI's, over output tokens.
        repetition_penalty: CTRL's (divide positive, multiply negative logits), over prompt and output; 1 is off.
        logit_bias: token id -> added to its logit.
        stop: stop strings; the text is cut before the first that appears.
        stop_token_ids: tokens that end the output (the model's EOS ids are added by the worker unless ignore_eos).
        ignore_eos: do not end at the model's end-of-sequence tokens.
        logprobs: number of top alternatives to report per output token, or None for no logprobs (0: only its own).
        prompt_logprobs: the same for prompt tokens.
        prompt_logprobs_start: position of the first prompt token whose logprob is wanted; 0 and 1: all.
        include_stop_str: keep the stop string in the text.
        skip_special_tokens: leave special tokens out of the text.
        grammar: what form the output must have, or None.
    """

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprobs_start: int = 0
    include_stop_str: bool = False
    skip_special_tokens: bool = True
    grammar: GrammarSpec | None = None
