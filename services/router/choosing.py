"""How a worker is picked: by cost (the prefix policy), or by one of the plain rules it is compared with.

Decode is chosen first. Its prompt is computed by a prefill worker when the part that decode lacks is worth the trip and
decode may not, or would be slower, doing it itself. Pure: the situation and the candidates in, a plan out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from services.router.costs import Situation, price_decode, price_prompt
from services.router.policy import Candidate, Exclusions, Plan, Quote, Source
from services.router.prefix_view import WorkerKey

POLICIES = ("prefix", "round_robin", "least_loaded", "random")

Rank = Callable[[Quote], float]
"""Lower is better; equal ones go round."""


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


def choose(picker: Picker, candidates: Sequence[Candidate], excluded: Exclusions) -> Plan | None:
    """Place a task; None when no worker can decode."""
    situation = picker.situation
    able = [worker for worker in candidates if worker.can_decode and worker.key not in excluded.decode]
    able = [worker for worker in able if worker.key == excluded.keep_decode] or able
    if not able:
        return None
    able_prefill = [one for one in candidates if one.can_prefill and one.key not in excluded.prefill]
    prompts = [price_prompt(situation, one) for one in able_prefill]
    quotes, ways = [], {}
    for worker in able:
        way = _way(picker, worker, prompts)
        quote = _decode_quote(situation, worker, way)
        ways[worker.key] = way
        quotes.append(quote)
    chosen = picker.pick(quotes)
    way = ways[chosen.candidate.key]
    return Plan(
        decode=chosen.candidate,
        prefill=way.prompt.candidate if way.remote else None,
        sources=_sources(situation, candidates, way.prompt.candidate, picker.rules.max_sources),
        prompt_tokens=way.prompt.compute_tokens,
        output_tokens=situation.task.expected_output_tokens,
        reason=way.reason,
        first_token_s=chosen.first_token_s,
        decode_quotes=quotes,
        prefill_quotes=prompts if way.remote else (),
    )


@dataclass(slots=True, frozen=True)
class _Way:
    """Who computes the prompt for one decode worker."""

    prompt: Quote
    remote: bool
    reason: str


def _way(picker: Picker, decode: Candidate, prompts: Sequence[Quote]) -> _Way:
    situation, rules = picker.situation, picker.rules
    landing = decode.key in situation.landing
    own = next((quote for quote in prompts if quote.candidate.key == decode.key), None)
    own = own or price_prompt(situation, decode)
    if situation.uncached_tokens(decode.key) < rules.remote_min_tokens and not landing:
        return _Way(own, False, "short_suffix")
    others = [quote for quote in prompts if quote.candidate.key != decode.key]
    if not others:
        return _Way(own, False, "no_prefill_worker")
    if decode.can_prefill and not landing and rules.policy != "prefix":
        return _Way(own, False, "decode_is_best")
    best = picker.pick(others)
    if landing:
        return _Way(best, True, "landing")
    if decode.can_prefill and own.total_s <= best.total_s:
        return _Way(own, False, "decode_is_best")
    return _Way(best, True, "remote")


def _decode_quote(situation: Situation, decode: Candidate, way: _Way) -> Quote:
    """All that decoding there costs, the prompt included."""
    quote, prompt = price_decode(situation, decode, remote=way.remote), way.prompt
    return replace(
        quote,
        compute_tokens=prompt.compute_tokens,
        queue_s=max(quote.queue_s, prompt.queue_s) if way.remote else quote.queue_s + prompt.queue_s,
        prefill_s=prompt.prefill_s,
        load_s=prompt.load_s,
        effort_s=prompt.effort_s,
        credit_s=prompt.credit_s,
        is_remote=way.remote,
    )


@dataclass(slots=True, frozen=True)
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
                return min(quotes, key=self._turn)
            case "least_loaded":
                return min(quotes, key=lambda quote: (self._outstanding(quote), *self._turn(quote)))
        best = min(quotes, key=lambda quote: quote.total_s)
        limit = best.total_s + self.rules.tie_ratio * best.first_token_s
        return min([quote for quote in quotes if quote.total_s <= limit], key=self._tied)

    def _tied(self, quote: Quote) -> tuple[bool, bool, int, WorkerKey]:
        return quote.is_remote, quote.candidate.key not in self.favourites, *self._turn(quote)

    def _turn(self, quote: Quote) -> tuple[int, WorkerKey]:
        key = quote.candidate.key
        return self.situation.load(key).last_used, key

    def _outstanding(self, quote: Quote) -> int:
        load = self.situation.load(quote.candidate.key)
        return load.queued_tokens + load.output_tokens


def _scattered(number: int) -> int:
    """A number that looks random, another one for each number: the finaliser of SplitMix64."""
    mixed = number * 0x9E3779B97F4A7C15 % 2**64
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % 2**64
    return mixed ^ mixed >> 31


def _sources(
    situation: Situation, workers: Sequence[Candidate], computing: Candidate, max_sources: int
) -> tuple[Source, ...]:
    matches = situation.matches
    held = matches.get(computing.key, 0)
    longer = [
        Source(worker, matches[worker.key])
        for worker in workers
        if worker.key != computing.key and matches.get(worker.key, 0) > held
    ]
    longer.sort(
        key=lambda source: (-source.num_blocks, situation.load(source.worker.key).queued_tokens, source.worker.key)
    )
    return tuple(longer[:max_sources])
