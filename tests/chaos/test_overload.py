"""Five times what the workers can, for a while, through gateway and router: what is served stays what it was, the rest
is refused quickly and politely, and memory stays where it is.

The workers are fakes whose steps take time but no CPU, so that this is about what is in front of them. OVERLOAD_S sets
the seconds of overload, OVERLOAD_REFUSAL_S the seconds that the slowest hundredth of the refusals may take on a machine
that others use as well. The small variants, on a virtual clock and without HTTP, run in CI.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.support.router_bench import bench, write_model

OVERLOAD_S = float(os.environ.get("OVERLOAD_S", "20"))
MAX_REFUSAL_S = float(os.environ.get("OVERLOAD_REFUSAL_S", "0.1"))
SLOTS, STEP_S, TOKENS = 4, 0.05, 20
"""Requests at a time, and what each takes: 4 requests a second together, less what is between two of them."""
MEASURE_S = 10.0
MAX_GROWTH_MB = 8.0
SERVED, REFUSED = 200, 429


@dataclass
class Seen:
    """What clients saw: how each request ended, and when."""

    statuses: Counter[int] = field(default_factory=Counter)
    done_s: list[float] = field(default_factory=list)
    refused_after_s: list[float] = field(default_factory=list)
    bad_refusals: list[str] = field(default_factory=list)

    async def ask(self, client: httpx.AsyncClient, number: int) -> None:
        body = {"model": "tiny", "prompt": f"{number} hello hello hello", "max_tokens": TOKENS, "temperature": 0}
        began_s = time.monotonic()
        answer = await client.post("/v1/completions", json=body)
        now_s = time.monotonic()
        self.statuses[answer.status_code] += 1
        if answer.status_code == SERVED:
            self.done_s.append(now_s)
        elif answer.status_code not in (REFUSED, 503, 504):
            self.bad_refusals.append(f"{answer.status_code}: {answer.text}")
        elif answer.status_code == REFUSED:
            self.refused_after_s.append(now_s - began_s)
            told = answer.headers
            if not 1 <= int(told.get("retry-after", "0")) <= 60 or told.get("x-should-retry") != "true":
                self.bad_refusals.append(str(told))

    def rate(self, begin_s: float, end_s: float) -> float:
        """Served requests a second in a span of time."""
        return sum(begin_s <= done_s < end_s for done_s in self.done_s) / (end_s - begin_s)


@asynccontextmanager
async def gateway(router: str) -> AsyncIterator[tuple[str, psutil.Process]]:
    """A gateway process; yields its URL."""
    command = [
        sys.executable,
        "-m",
        "services.gateway",
        "--port",
        "0",
        "--router-address",
        router,
        "--log.format",
        "json",
    ]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    try:
        assert process.stderr is not None
        async with asyncio.timeout(60):
            while (found := re.search(rb"http://[\d.:]+", line := await process.stderr.readline())) is None:
                assert line, "the gateway did not start"
        yield found[0].decode(), psutil.Process(process.pid)
    finally:
        process.terminate()
        await process.wait()


async def closed_loop(seen: Seen, client: httpx.AsyncClient, seconds: float) -> None:
    """As many clients as there are slots, each with one request at a time."""
    ends_s = time.monotonic() + seconds

    async def one(index: int) -> None:
        number = index
        while time.monotonic() < ends_s:
            await seen.ask(client, number := number + SLOTS)

    await asyncio.gather(*(one(index) for index in range(SLOTS)))


async def open_loop(seen: Seen, client: httpx.AsyncClient, per_s: float, seconds: float, sample: list[float]) -> None:
    """Requests at random times, whatever becomes of the others; `sample` gets the memory of all, once a second."""
    draw, tasks = random.Random(5), set[asyncio.Task[None]]()
    begin_s = next_s = time.monotonic()
    processes = [psutil.Process(), *psutil.Process().children()]
    number = 1_000_000
    while next_s < begin_s + seconds:
        await asyncio.sleep(max(0.0, next_s - time.monotonic()))
        number += 1
        task = asyncio.create_task(seen.ask(client, number))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        next_s += draw.expovariate(per_s)
        if len(sample) < time.monotonic() - begin_s:
            sample.append(sum(process.memory_info().rss for process in processes) / 1e6)
    await asyncio.gather(*tasks)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.chaos
@pytest.mark.timeout(600)
async def test_five_times_the_capacity(tmp_path: Path) -> None:
    bounds: dict[str, Any] = {"max_running_requests": SLOTS, "max_queued_requests": 2 * SLOTS}
    model_dir = write_model(tmp_path)
    async with (
        bench(model_dir, ["decode+prefill"], step_s=STEP_S, **bounds) as made,
        gateway(made.router.address) as (url, _),
    ):
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
            alone = Seen()
            began_s = time.monotonic()
            await closed_loop(alone, client, MEASURE_S)
            capacity = alone.rate(began_s, began_s + MEASURE_S)
            over, memory = Seen(), list[float]()
            began_s = time.monotonic()
            await open_loop(over, client, 5 * capacity, OVERLOAD_S, memory)
        goodput = over.rate(began_s + 1, began_s + OVERLOAD_S)
        late = sorted(over.refused_after_s)
        p50, p99 = late[len(late) // 2], late[int(0.99 * len(late))]
        quarter = len(memory) // 4
        growth_mb = mean(memory[-quarter:]) - mean(memory[quarter : 2 * quarter])
        print(  # for `-s`
            f"capacity {capacity:.1f}/s, at 5 x: {goodput:.1f}/s served, {sum(over.statuses.values())} requests, "
            f"statuses {dict(over.statuses)}, refusals p50 {p50 * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms, "
            f"memory {growth_mb:+.1f} MB"
        )
        assert set(alone.statuses) == {SERVED}
        assert not over.bad_refusals, Counter(over.bad_refusals)
        assert goodput >= 0.9 * capacity
        assert p99 <= MAX_REFUSAL_S
        assert growth_mb <= MAX_GROWTH_MB
        assert made.workers[0].peak == SLOTS
