"""How a worker is picked: by cost (the prefix policy), or by one of the plain rules it is compared with.

Decode is chosen first. Its prompt is computed by a prefill worker when the part that decode lacks is worth the trip and
decode may not, or would be slower, doing it itself. Pure: the situation in, a plan out.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from operator import attrgetter

from services.router.costs import Situation, Standing, price_decode, price_prompt
from services.router.policy import Exclusions, Plan, Quote, Source
from services.router.prefix_view import WorkerKey

POLICIES = ("prefix", "round_robin", "least_loaded", "random")

_total_s = attrgetter("total_s")


@dataclass(slots=True, frozen=True)
class Rules:
    """What does not depend on the request.

    Attributes:
        policy: one of POLICIES.
        remote_min_tokens: uncached tokens from which a prefill worker is asked.
        tie_ratio: costs within this part of the best first-token time are equal.
        max_sources: most holders of a longer prefix that a plan names.
    """

    policy: str
    remote_min_tokens: int
    tie_ratio: float
    max_sources: int


def choose(picker: Picker, excluded: Exclusions) -> Plan | None:
    """Place a task; None when no worker can decode."""
    situation = picker.situation
    priced = [(one, price_prompt(situation, one)) for one in situation.standings]
    able = [pair for pair in priced if pair[0].candidate.can_decode and pair[0].candidate.key not in excluded.decode]
    if excluded.keep_decode is not None:
        able = [pair for pair in able if pair[0].candidate.key == excluded.keep_decode] or able
    if not able:
        return None
    prompts = _Prompts(picker, priced, excluded.prefill)
    ways = [_way(prompts, worker, own) for worker, own in able]
    quotes = [
        price_decode(situation, worker, prompt, remote=prompt is not own)
        for (worker, own), (prompt, _) in zip(able, ways, strict=True)
    ]
    chosen = picker.pick(quotes)
    prompt, reason = ways[quotes.index(chosen)]
    return Plan(
        decode=chosen.candidate,
        prefill=prompt.candidate if chosen.is_remote else None,
        sources=_sources(situation, prompt, picker.rules.max_sources),
        prompt_tokens=prompt.compute_tokens,
        output_tokens=situation.task.expected_output_tokens,
        reason=reason,
        first_token_s=chosen.first_token_s,
        decode_quotes=quotes,
        prefill_quotes=prompts.quotes if chosen.is_remote else (),
    )


class _Prompts:
    """What the prompt would cost on each worker that may compute it, and which of them is best."""

    def __init__(
        self, picker: Picker, priced: Sequence[tuple[Standing, Quote]], excluded: Collection[WorkerKey]
    ) -> None:
        self.picker = picker
        self.quotes = [
            quote for one, quote in priced if one.candidate.can_prefill and one.candidate.key not in excluded
        ]
        self.least_s = min(map(_total_s, self.quotes), default=0.0)
        self._best: Quote | None = None
        self._next_best: Quote | None = None

    def has_other(self, own: Quote) -> bool:
        """Whether a worker other than the one of `own` may compute the prompt."""
        return len(self.quotes) > 1 or (len(self.quotes) == 1 and self.quotes[0] is not own)

    def best_but(self, own: Quote) -> Quote:
        """The best one on another worker, of which there is one; picked on demand, as often `least_s` will do."""
        best = self._best = self._best or self.picker.pick(self.quotes)
        if best is not own:
            return best
        if self._next_best is None:
            self._next_best = self.picker.pick([quote for quote in self.quotes if quote is not best])
        return self._next_best


def _way(prompts: _Prompts, decode: Standing, own: Quote) -> tuple[Quote, str]:
    """Who computes the prompt for one decode worker, whose own price is `own`, and why."""
    rules = prompts.picker.rules
    uncached = prompts.picker.situation.task.num_tokens - decode.held_tokens
    if uncached < rules.remote_min_tokens and not decode.landing:
        return own, "short_suffix"
    if not prompts.has_other(own):
        return own, "no_prefill_worker"
    may_be_best = decode.candidate.can_prefill and not decode.landing
    if may_be_best and (rules.policy != "prefix" or own.total_s <= prompts.least_s):
        return own, "decode_is_best"
    best = prompts.best_but(own)
    if may_be_best and own.total_s <= best.total_s:
        return own, "decode_is_best"
    return best, "landing" if decode.landing else "remote"


@dataclass(slots=True)
class Picker:
    """Picks one of several quotes by the policy; `favourites` win ties, `turn` is another number for every plan."""

    situation: Situation
    rules: Rules
    turn: int
    favourites: Collection[WorkerKey | None]

    def pick(self, quotes: Sequence[Quote]) -> Quote:
        """The best of at least one."""
        if len(quotes) == 1:
            return quotes[0]
        match self.rules.policy:
            case "random":
                return quotes[_scattered(self.turn) % len(quotes)]
            case "round_robin":
                return min(quotes, key=_turn)
            case "least_loaded":
                return min(quotes, key=self._least)
        best = min(quotes, key=_total_s)
        limit = best.total_s + self.rules.tie_ratio * best.first_token_s
        tied = [quote for quote in quotes if quote.total_s <= limit]
        return min(tied, key=self._tied) if len(tied) > 1 else best

    def _tied(self, quote: Quote) -> tuple[bool, int, bool, int, WorkerKey]:
        held = quote.cached_tokens if quote.cached_tokens >= self.situation.min_match_tokens else 0
        return quote.is_remote, -held, quote.candidate.key not in self.favourites, *_turn(quote)

    def _least(self, quote: Quote) -> tuple[int, int, WorkerKey]:
        load = next(one.load for one in self.situation.standings if one.candidate is quote.candidate)
        return load.queued_tokens + load.output_tokens, *_turn(quote)


def _turn(quote: Quote) -> tuple[int, WorkerKey]:
    return quote.last_used, quote.candidate.key


def _scattered(number: int) -> int:
    """A number that looks random, another one for each number: the finaliser of SplitMix64."""
    mixed = number * 0x9E3779B97F4A7C15 % 2**64
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % 2**64
    return mixed ^ mixed >> 31


def _sources(situation: Situation, computing: Quote, max_sources: int) -> tuple[Source, ...]:
    held = computing.cached_tokens
    longer = [one for one in situation.standings if one.held_tokens > held and one.candidate is not computing.candidate]
    longer.sort(key=lambda one: (-one.num_blocks, one.load.queued_tokens, one.candidate.key))
    return tuple(Source(one.candidate, one.num_blocks) for one in longer[:max_sources])
