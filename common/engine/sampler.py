"""Draw one token from one logits row: a pure function of (row, `SampleSpec`).

Randomness is counter-based: the uniform number of a draw is a hash of (seed, choice, output position), so a migrated,
preempted or differently batched request continues alike. Filters apply in the order bias, penalties, minimum length,
mask, temperature, top-k, top-p, min-p; the draw inverts the cumulative mass in token id order. Ties go to the lowest
id. Everything is computed in fp64 from the fp32 row, one row at a time.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from common.grammar.constraint import Mask
from common.sched.params import SamplingParams
from common.sched.plan import SampleSpec, TokenLogprobs

Row = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

_PHILOX_M = (0xD2511F53, 0xCD9E8D57)
_PHILOX_W = (0x9E3779B9, 0xBB67AE85)
_MASK32 = 0xFFFFFFFF


def sample(row: Row, spec: SampleSpec, mask: Mask | None = None) -> int | None:
    """Return the token id drawn from `row` [vocab]; None if the parameters leave no token to draw.

    The row must be finite and is not changed. With a `mask` only the ids it allows can be drawn.
    """
    params = spec.params
    adjusted = _adjust(row, spec)
    if mask is not None:
        adjusted = _only(adjusted, mask)
    best = int(np.argmax(adjusted))
    if adjusted[best] == -np.inf:
        return None
    if params.temperature == 0:
        return best
    mass = np.exp((adjusted.astype(np.float64) - np.float64(adjusted[best])) / params.temperature)
    _apply_top_k(mass, params.top_k)
    _apply_top_p(mass, params.top_p)
    if params.min_p > 0:
        mass[mass < params.min_p] = 0.0
    cumulative = np.cumsum(mass)
    target = uniform(spec.seed, spec.choice, spec.position) * cumulative[-1]
    return int(np.searchsorted(cumulative, target, side="right"))


def token_logprobs(row: Row, token_id: int, num_top: int) -> TokenLogprobs:
    """Log-probabilities of `token_id` and of the `num_top` best tokens in the raw `row`."""
    wide = row.astype(np.float64)
    top = float(wide.max())
    log_sum = top + float(np.log(np.exp(wide - top).sum()))
    own = row[token_id]
    rank = 1 + int(np.count_nonzero(row > own)) + int(np.count_nonzero(row[:token_id] == own))
    best = best_ids(row, num_top) if num_top > 0 else np.zeros(0, np.int64)
    return TokenLogprobs(
        token_id=token_id,
        logprob=float(own) - log_sum,
        rank=rank,
        top=tuple((int(i), float(row[i]) - log_sum) for i in best),
    )


def best_ids(values: npt.NDArray[np.floating], k: int) -> Ids:
    """Ids of the k largest values, best first, ties by lowest id."""
    if k >= values.size:
        return np.argsort(-values, kind="stable")
    threshold = np.partition(values, values.size - k)[values.size - k]
    above = np.flatnonzero(values > threshold)
    ties = np.flatnonzero(values == threshold)[: k - above.size]
    ids = np.concatenate([above, ties])
    return ids[np.lexsort((ids, -values[ids]))]


def uniform(seed: int, choice: int, position: int) -> float:
    """Uniform number in [0, 1) for one draw: Philox4x32-10 (Salmon et al. 2011) keyed by the seed."""
    counter = [position & _MASK32, position >> 32 & _MASK32, choice & _MASK32, 0]
    key = [seed & _MASK32, seed >> 32 & _MASK32]
    for _ in range(10):
        low, high = _PHILOX_M[0] * counter[0], _PHILOX_M[1] * counter[2]
        counter = [
            (high >> 32) ^ counter[1] ^ key[0],
            high & _MASK32,
            (low >> 32) ^ counter[3] ^ key[1],
            low & _MASK32,
        ]
        key = [(k + w) & _MASK32 for k, w in zip(key, _PHILOX_W, strict=True)]
    return ((counter[0] << 32 | counter[1]) >> 11) * 2.0**-53


def _adjust(row: Row, spec: SampleSpec) -> npt.NDArray[np.floating]:
    """Apply bias, penalties and the minimum length; returns `row` itself when there are none.

    Biased and banned ids outside the vocabulary are ignored.
    """
    params = spec.params
    banned = params.stop_token_ids if spec.position < params.min_tokens else ()
    if not (banned or params.logit_bias or _has_penalties(params)):
        return row
    adjusted = row.astype(np.float64)
    for token, bias in params.logit_bias.items():
        if token < row.size:
            adjusted[token] += bias
    _penalise(adjusted, spec)
    adjusted[[token for token in banned if token < row.size]] = -np.inf
    return adjusted


def _only(adjusted: npt.NDArray[np.floating], mask: Mask) -> npt.NDArray[np.floating]:
    """A copy in which only the allowed ids are left; a mask may be longer or shorter than the vocabulary."""
    count = min(mask.size, adjusted.size)
    left = np.full(adjusted.size, -np.inf, adjusted.dtype)
    np.copyto(left[:count], adjusted[:count], where=mask[:count])
    return left


def _has_penalties(params: SamplingParams) -> bool:
    return bool(params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1.0)


def _penalise(adjusted: Floats, spec: SampleSpec) -> None:
    params = spec.params
    if params.repetition_penalty != 1.0:
        seen = np.unique(np.asarray([*spec.prompt_ids, *spec.output_ids], np.int64))
        values = adjusted[seen]
        scaled = np.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
        adjusted[seen] = scaled
    for token, count in Counter(spec.output_ids).items():
        adjusted[token] -= params.presence_penalty + count * params.frequency_penalty


def _apply_top_k(mass: Floats, top_k: int) -> None:
    if 0 < top_k < mass.size:
        keep = best_ids(mass, top_k)
        kept = mass[keep]
        mass[:] = 0.0
        mass[keep] = kept


def _apply_top_p(mass: Floats, top_p: float) -> None:
    """Keep the smallest set of best tokens whose share reaches `top_p`, at least one."""
    if top_p >= 1:
        return
    total = mass.sum()
    # Tokens below this floor hold less than 1 - top_p together, so none of them is in the set: sort only the others.
    candidates = np.flatnonzero(mass >= (1 - top_p) * total / mass.size)
    order = candidates[np.argsort(-mass[candidates], kind="stable")]
    count = 1 + int(np.searchsorted(np.cumsum(mass[order]), top_p * total, side="left"))
    keep = order[:count]
    kept = mass[keep]
    mass[:] = 0.0
    mass[keep] = kept
