"""How fast the workers are, measured from what they answered.

One straight line for the fleet and one factor per worker, for each of two things::

    time to a first token  = start_s + token_s * prompt tokens that were computed before it
    time between two tokens = step_s + request_s * requests that generate on the worker

The lines are exponentially weighted regressions over all answers; a worker's factor is its mean time over the mean of
what the line says for the same work, relative to the median worker (of two, the faster). Factors nearer to 1 than
SAME_SPEED_RATIO are 1: on a busy machine equal workers cannot be told apart more exactly, and equal costs are what lets
ties go round. A slow worker's factor fades towards 1 while nothing new is heard of it, so that it gets another try.
Before the first answer the workers' own word counts, then constants. Pure: time comes as an argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from statistics import median_low

from services.router.prefix_view import WorkerKey

SAME_SPEED_RATIO = 1.5
REFRESH_S = 0.1
FADE_S = 1.0
"""Lines are fitted anew at most every REFRESH_S when there is news; without any, factors fade every FADE_S."""
LINE_WEIGHT = 0.02
WORKER_WEIGHT = 0.15
DEFAULT_TOKEN_S = 1 / 10_000
DEFAULT_STEP_S = 0.02
DEFAULT_REQUEST_S = 0.0
DEFAULT_BYTE_S = 1e-9
L2_BYTE_S = 0.25e-9
PEER_BYTE_S = 1e-9
"""Loading from host memory, and fetching from other workers, is not measured from here: 4 and 1 GB/s."""


@dataclass(slots=True, frozen=True)
class Pace:
    """What a worker's work takes, in seconds.

    Attributes:
        start_s: any first token.
        token_s: each prompt token to compute.
        step_s: each output token of a lonely request.
        request_s: more for each further request beside it.
        byte_s: each byte of a prompt's KV that it waits for while a prefill worker hands it over.
    """

    start_s: float = 0.0
    token_s: float = DEFAULT_TOKEN_S
    step_s: float = DEFAULT_STEP_S
    request_s: float = DEFAULT_REQUEST_S
    byte_s: float = DEFAULT_BYTE_S


class Line:
    """y = intercept + slope * x, both >= 0, by exponentially weighted moments.

    Points that hardly differ in x say little about the slope, so two things are assumed before any: a point in the
    origin that weighs `origin_weight` of all others, and a spread of x of at least `least_spread` (which makes for a
    flat line while there is less).
    """

    __slots__ = ("_cov", "_least_var", "_mean_x", "_mean_y", "_origin_weight", "_var_x", "num_seen")

    def __init__(self, origin_weight: float, least_spread: float) -> None:
        self.num_seen = 0
        self._origin_weight = origin_weight
        self._least_var = least_spread * least_spread
        self._mean_x = self._mean_y = self._var_x = self._cov = 0.0

    def observe(self, x: float, y: float) -> None:
        """Take in one point."""
        self.num_seen += 1
        weight = max(1 / self.num_seen, LINE_WEIGHT)
        dx, dy = x - self._mean_x, y - self._mean_y
        self._mean_x += weight * dx
        self._mean_y += weight * dy
        self._var_x = (1 - weight) * (self._var_x + weight * dx * dx)
        self._cov = (1 - weight) * (self._cov + weight * dx * dy)

    def fit(self) -> tuple[float, float]:
        """(intercept, slope)."""
        share = 1 / (1 + self._origin_weight)
        mean_x, mean_y = share * self._mean_x, share * self._mean_y
        var_x = share * (self._var_x + self._mean_x * self._mean_x) - mean_x * mean_x
        cov = share * (self._cov + self._mean_x * self._mean_y) - mean_x * mean_y
        slope = max(0.0, cov) / (var_x + self._least_var) if var_x + self._least_var > 0 else 0.0
        slope = min(slope, mean_y / mean_x) if mean_x > 0 else slope
        return mean_y - slope * mean_x, slope


@dataclass(slots=True)
class _Mean:
    """Weighted means of the work and the time of one worker's answers."""

    x: float = 0.0
    y: float = 0.0
    num_seen: int = 0
    at_s: float = 0.0

    def observe(self, x: float, y: float, now_s: float) -> None:
        self.num_seen += 1
        weight = max(1 / self.num_seen, WORKER_WEIGHT)
        self.x += weight * (x - self.x)
        self.y += weight * (y - self.y)
        self.at_s = now_s


class _Measured:
    """One line for all, one mean per worker."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._means: dict[WorkerKey, _Mean] = {}

    def observe(self, key: WorkerKey, x: float, y: float, now_s: float) -> None:
        self._line.observe(x, y)
        self._means.setdefault(key, _Mean()).observe(x, y, now_s)

    def forget(self, key: WorkerKey) -> None:
        self._means.pop(key, None)

    def fit(self, now_s: float, half_life_s: float) -> tuple[tuple[float, float] | None, Mapping[WorkerKey, float]]:
        """((intercept, slope) of the median worker or None, factor by worker)."""
        if not self._means:
            return None, {}
        intercept, slope = self._line.fit()
        ratios = {key: mean.y / max(intercept + slope * mean.x, 1e-9) for key, mean in self._means.items()}
        middle = median_low(ratios.values())
        if middle <= 0:
            return None, {}
        factors = {
            key: _faded(ratio / middle, now_s - self._means[key].at_s, half_life_s) for key, ratio in ratios.items()
        }
        return (intercept * middle, slope * middle), factors


def _faded(factor: float, age_s: float, half_life_s: float) -> float:
    if 1 / SAME_SPEED_RATIO < factor < SAME_SPEED_RATIO:
        return 1.0
    return float(1.0 + (factor - 1.0) * 2 ** (-age_s / half_life_s))


class Speeds:
    """The pace of every worker."""

    def __init__(self, half_life_s: float) -> None:
        """Start without measurements; a factor halves its distance from 1 in `half_life_s` without news."""
        self._half_life_s = half_life_s
        self._first = _Measured(Line(origin_weight=0.2, least_spread=0.0))
        self._steps = _Measured(Line(origin_weight=0.0, least_spread=0.5))
        self._reported: dict[WorkerKey, float] = {}
        self._reads: dict[WorkerKey, _Mean] = {}
        self._paces: dict[WorkerKey, Pace] = {}
        self._fitted_s = self._due_s = -inf
        self._fleet = Pace()

    def first_token(self, key: WorkerKey, computed_tokens: int, elapsed_s: float, now_s: float) -> None:
        """A first token came `elapsed_s` after its request left, for which `computed_tokens` were computed."""
        self._first.observe(key, computed_tokens, elapsed_s, now_s)
        self._news()

    def step(self, key: WorkerKey, num_requests: int, gap_s: float, now_s: float) -> None:
        """The mean gap between tokens was `gap_s` while `num_requests` generated on the worker."""
        self._steps.observe(key, num_requests - 1, gap_s, now_s)
        self._news()

    def read(self, key: WorkerKey, num_bytes: int, waited_s: float, now_s: float) -> None:
        """A worker waited `waited_s` for KV of `num_bytes` that a prefill worker handed over."""
        self._reads.setdefault(key, _Mean()).observe(num_bytes, waited_s, now_s)
        self._news()

    def reported(self, key: WorkerKey, prefill_tokens_per_s: float) -> None:
        """A worker's own word about its speed; 0 is none."""
        if prefill_tokens_per_s > 0:
            self._reported[key] = prefill_tokens_per_s

    def forget(self, key: WorkerKey) -> None:
        """The worker is gone."""
        for known in (self._reported, self._reads, self._paces):
            known.pop(key, None)
        self._first.forget(key)
        self._steps.forget(key)
        self._news()

    def pace(self, key: WorkerKey, now_s: float) -> Pace:
        """The worker's pace; the fleet's while nothing is known of it."""
        if now_s >= self._due_s:
            self._refresh(now_s)
        return self._paces.get(key, self._fleet)

    def settle(self, now_s: float) -> None:
        """Work in what is due now, when nobody waits for it, and not with the next request."""
        if now_s >= self._due_s:
            self._refresh(now_s)

    def _news(self) -> None:
        self._due_s = self._fitted_s + REFRESH_S

    def _refresh(self, now_s: float) -> None:
        self._fitted_s, self._due_s = now_s, now_s + FADE_S
        first, first_factors = self._first.fit(now_s, self._half_life_s)
        steps, step_factors = self._steps.fit(now_s, self._half_life_s)
        start_s, token_s = first or (0.0, self._reported_token_s())
        step_s, request_s = steps or (DEFAULT_STEP_S, DEFAULT_REQUEST_S)
        bytes_read = sum(read.x for read in self._reads.values())
        byte_s = sum(read.y for read in self._reads.values()) / bytes_read if bytes_read else DEFAULT_BYTE_S
        self._fleet = Pace(start_s, token_s, step_s, request_s, byte_s)
        self._paces = {}
        for key in {**first_factors, **step_factors}:
            first_factor, step_factor = first_factors.get(key, 1.0), step_factors.get(key, 1.0)
            self._paces[key] = Pace(
                start_s * first_factor, token_s * first_factor, step_s * step_factor, request_s * step_factor, byte_s
            )

    def _reported_token_s(self) -> float:
        return 1 / median_low(self._reported.values()) if self._reported else DEFAULT_TOKEN_S
