"""Time as an argument: pure code takes a `float`, shells take a `Clock`, tests give a fake one."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Returns monotonic seconds."""

monotonic: Clock = time.monotonic
