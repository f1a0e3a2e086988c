"""The engine thread: the one OS thread that owns tensors and runs step plans, one at a time.

The event loop hands it a plan and awaits the result; it touches nothing else of the worker. The age of the running
step is readable from any thread, so that the heartbeat can tell a stalled engine from an idle one.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from common.base.clock import Clock, monotonic
from common.sched.plan import StepPlan, StepResult


class Runner(Protocol):
    """What the thread runs: the engine, or a fake in tests."""

    def step(self, plan: StepPlan) -> StepResult:
        """Compute one plan; blocks."""


class EngineThread:
    """Runs `Runner.step` off the loop."""

    def __init__(self, runner: Runner, clock: Clock = monotonic) -> None:
        self._runner = runner
        self._clock = clock
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        self._step_began_s: float | None = None

    def step_age_s(self) -> float:
        """Seconds since the current step began; 0 when idle. Any thread."""
        began = self._step_began_s
        return 0.0 if began is None else self._clock() - began

    async def run(self, plan: StepPlan) -> StepResult:
        """Run a plan and wait for its result; raises what the engine raises."""
        self._step_began_s = self._clock()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, self._runner.step, plan)
        finally:
            self._step_began_s = None

    def close(self) -> None:
        """Wait for the running step and end the thread."""
        self._executor.shutdown(wait=True)
