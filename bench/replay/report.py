"""What a replay came to: reuse, times to first token and between tokens, balance; as plain figures and as a table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.table import Table

from bench.percentile import percentile
from bench.replay.simulation import Record

PERCENTS = (50, 90, 99)


@dataclass(slots=True, frozen=True)
class Summary:
    """Figures of one replay.

    Attributes:
        num_rejected: requests that no worker can hold.
        reuse_ratio: cached / input tokens.
        ttft_ms, tpot_ms, e2e_ms: nearest-rank percentiles over requests, keys p50, p90, p99; and mean. TPOT leaves
            requests of one token out.
        load_ratio: computed prompt tokens of the worker with most / of the one with least; inf when that has none.
        output_tokens_per_s: over the whole replay.
    """

    num_requests: int
    num_rejected: int
    reuse_ratio: float
    ttft_ms: Mapping[str, float]
    tpot_ms: Mapping[str, float]
    e2e_ms: Mapping[str, float]
    load_ratio: float
    output_tokens_per_s: float

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def spread(seconds: Iterable[float]) -> dict[str, float]:
    """Percentiles and mean, in ms; zeros of none."""
    taken = list(seconds)
    if not taken:
        return dict.fromkeys((*(f"p{percent}" for percent in PERCENTS), "mean"), 0.0)
    figures = {f"p{percent}": percentile(taken, percent) * 1000 for percent in PERCENTS}
    return {**figures, "mean": sum(taken) / len(taken) * 1000}


def summarise(records: Sequence[Record], computing: Sequence[int]) -> Summary:
    """Sum up; `computing`: the numbers of the workers that may compute prompts."""
    ended = [(one, one.first_token_s, one.end_s) for one in records if one.first_token_s and one.end_s]
    computed = dict.fromkeys(computing, 0)
    for one, _, _ in ended:
        if one.worker in computed:  # a decode worker computes what is not worth the trip
            computed[one.worker] += one.num_input_tokens - one.num_cached
    least = min(computed.values(), default=0)
    num_output = sum(one.num_output_tokens for one, _, _ in ended)
    span_s = max((end_s for _, _, end_s in ended), default=0.0) - min((one.arrival_s for one in records), default=0.0)
    input_tokens = sum(one.num_input_tokens for one, _, _ in ended)
    return Summary(
        num_requests=len(records),
        num_rejected=len(records) - len(ended),
        reuse_ratio=sum(one.num_cached for one, _, _ in ended) / input_tokens if input_tokens else 0.0,
        ttft_ms=spread(first_s - one.arrival_s for one, first_s, _ in ended),
        tpot_ms=spread(
            (end_s - first_s) / (one.num_output_tokens - 1)
            for one, first_s, end_s in ended
            if one.num_output_tokens > 1
        ),
        e2e_ms=spread(end_s - one.arrival_s for one, _, end_s in ended),
        load_ratio=max(computed.values(), default=0) / least if least else math.inf,
        output_tokens_per_s=num_output / span_s if span_s > 0 else 0.0,
    )


def table(title: str, rows: Mapping[str, Summary]) -> Table:
    """One row a name; times are p50 / p90 / p99 in ms."""
    made = Table(title=title)
    made.add_column("policy")
    for name in ("reuse", "TTFT ms", "TPOT ms", "e2e ms", "max/min load", "out tok/s", "rejected"):
        made.add_column(name, justify="right")
    for name, row in rows.items():
        times = [_percentiles(one) for one in (row.ttft_ms, row.tpot_ms, row.e2e_ms)]
        rates = [f"{row.load_ratio:.2f}", f"{row.output_tokens_per_s:.0f}", str(row.num_rejected)]
        made.add_row(name, f"{row.reuse_ratio:.4f}", *times, *rates)
    return made


def _percentiles(times_ms: Mapping[str, float]) -> str:
    return " / ".join(f"{times_ms[f'p{percent}']:.1f}" for percent in PERCENTS)
