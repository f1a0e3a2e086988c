"""The one definition of a percentile in the figures of this folder."""

from __future__ import annotations

import math
from collections.abc import Iterable


def percentile(values: Iterable[float], percent: float) -> float:
    """Nearest rank of values in any order, 0 < percent <= 100; NaN of none."""
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * percent / 100), 1) - 1] if ordered else math.nan
