"""How long a restart costs reuse: the router alone, and a worker whose next life has the same id. Figures are printed.

`RESTART_ROUNDS` sets how often each is restarted (3). Wall times depend on what else the machine does, so the bounds
here are loose; that a restarted router places its first request by what the workers hold, and that a new life drops the
old one's credit, are tested without a clock in tests/integration/test_router_failures.py.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from pando.v1.inference_pb2 import WorkerStatus
from tests.support.cluster import SMOLLM2, Cluster
from tests.support.load import Load, Reply, make_prompts

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]

ROUNDS = int(os.environ.get("RESTART_ROUNDS", "3"))
CLIENTS, PROMPTS, PROMPT_CHARS, MAX_TOKENS = 2, 6, 300, 2
AGAIN = 0.95
"""The part of the former reuse that counts as back."""
BACK_WITHIN_S, FORGOTTEN_WITHIN_S = 15.0, 5.0
FLAGS = (
    *("--prefill-workers", "1", "--decode-workers", "2", "--start-timeout", "300"),
    *("--worker.num-threads", "1", "--worker.max-total-tokens", "32768"),
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("restarts"), *FLAGS, model=SMOLLM2) as running:
        yield running


@dataclass(slots=True)
class Pressing:
    """Clients that ask the same prompts again and again; what is refused while nobody serves is asked anew."""

    load: Load
    prompts: Sequence[str]
    whole: list[Reply] = field(default_factory=list)
    num_refused: int = 0
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Ask until `stop`."""
        await asyncio.gather(*(self._client(self.prompts[number::CLIENTS]) for number in range(CLIENTS)))

    async def _client(self, prompts: Sequence[str]) -> None:
        asked = 0
        while not self._stopping.is_set():
            reply = await self.load.ask(prompts[asked % len(prompts)], MAX_TOKENS)
            if reply.is_whole:
                asked += 1
                self.whole.append(reply)
            else:
                assert reply.status == 503, reply
                self.num_refused += 1
                await asyncio.sleep(0.02)

    async def until(self, num_whole: int) -> None:
        """Wait for so many further answers."""
        wanted = len(self.whole) + num_whole
        async with asyncio.timeout(120):
            while len(self.whole) < wanted:  # noqa: ASYNC110 - several clients add to it
                await asyncio.sleep(0.02)

    def stop(self) -> None:
        """Let every client end after its present request."""
        self._stopping.set()


def reuse(replies: Sequence[Reply]) -> float:
    """Part of their prompt tokens that nobody computed."""
    return sum(one.cached_tokens for one in replies) / max(1, sum(one.prompt_tokens for one in replies))


def back_s(replies: Sequence[Reply], hit_s: float, wanted: float) -> float:
    """Seconds from the hit to the first text from which on all answers together reuse as much as is wanted."""
    after = sorted((one for one in replies if one.began_s > hit_s), key=lambda one: one.times_s[0])
    for index in range(len(after)):
        if reuse(after[index:]) >= wanted and after[index].cached_tokens >= wanted * after[index].prompt_tokens:
            return after[index].times_s[0] - hit_s
    raise AssertionError(
        f"reuse never came back to {wanted}: {[(one.cached_tokens, one.prompt_tokens) for one in after]}"
    )


def test_reuse_is_back_soon_after_the_only_router_was_killed(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.expect_errors('"event": "request failed"')

    async def run() -> list[str]:
        lines: list[str] = []
        async with Load.open(cluster.url, cluster.model) as load:
            pressing = Pressing(load, make_prompts(PROMPTS, 91, PROMPT_CHARS))
            running = asyncio.create_task(pressing.run())
            await pressing.until(PROMPTS * 2)
            for _ in range(ROUNDS):
                lines.append(await one_round(pressing))
            pressing.stop()
            await running
        return lines

    async def one_round(pressing: Pressing) -> str:
        begun = len(pressing.whole)
        await pressing.until(PROMPTS * 2)
        usual, refused = reuse(pressing.whole[begun:]), pressing.num_refused
        hit_s, begun = time.monotonic(), len(pressing.whole)
        restarts = cluster.kill("router")
        await asyncio.to_thread(cluster.wait_restarted, "router", restarts)
        logged_s = time.monotonic() - hit_s
        await pressing.until(PROMPTS * 2)
        after = [one for one in pressing.whole[begun:] if one.began_s > hit_s]
        back = back_s(after, hit_s, AGAIN * usual)
        assert back < BACK_WITHIN_S
        return (
            f"router killed: reuse {usual:.3f} before; ready after {logged_s:.2f} s, first answer "
            f"{min(one.times_s[0] for one in after) - hit_s:.2f} s, reuse back {back:.2f} s; "
            f"{reuse(after):.3f} of all answers since, {pressing.num_refused - refused} refused meanwhile"
        )

    lines = asyncio.run(run())
    with capsys.disabled():
        print("", *lines, f"load {os.getloadavg()[0]:.1f}", sep="\n", flush=True)


def test_the_credit_of_a_killed_worker_is_gone_soon(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    lines = []
    for _ in range(ROUNDS):
        asyncio.run(warm(cluster))
        old = {one.worker_id: one for one in cluster.known_workers()}["decode-1"]
        assert old.blocks_in_view > 0, "nothing to forget"
        hit_s = time.monotonic()
        restarts = cluster.kill("decode-1")
        unusable = over_after_s(cluster, hit_s, takes_work, old)
        forgotten = over_after_s(cluster, hit_s, has_credit, old)
        cluster.wait_restarted("decode-1", restarts)
        ready = time.monotonic() - hit_s
        cluster.wait_serving()
        lines.append(
            f"decode-1 killed with {old.blocks_in_view} blocks: takes nothing new after {unusable:.2f} s, credit 0 "
            f"after {forgotten:.2f} s, next life ready after {ready:.2f} s, known {time.monotonic() - hit_s:.2f} s"
        )
        assert forgotten < FORGOTTEN_WITHIN_S
    with capsys.disabled():
        print("", *lines, f"load {os.getloadavg()[0]:.1f}", sep="\n", flush=True)


async def warm(cluster: Cluster) -> None:
    """Leave blocks of some prompts on both decode workers."""
    async with Load.open(cluster.url, cluster.model) as load:
        await load.ask_all(make_prompts(8, time.monotonic_ns(), PROMPT_CHARS), MAX_TOKENS)


def takes_work(known: Sequence[WorkerStatus], old: WorkerStatus) -> bool:
    """Whether this life of a worker may be chosen for something new."""
    return any(one.incarnation == old.incarnation and one.state == "ready" for one in known)


def has_credit(known: Sequence[WorkerStatus], old: WorkerStatus) -> bool:
    """Whether the router remembers blocks of this life of a worker."""
    return any(one.incarnation == old.incarnation and one.blocks_in_view > 0 for one in known)


def over_after_s(
    cluster: Cluster, hit_s: float, holds: Callable[[Sequence[WorkerStatus], WorkerStatus], bool], old: WorkerStatus
) -> float:
    """Seconds from the hit until something no longer holds of a worker's old life, by the router's list of workers."""
    ends_at = hit_s + 60.0
    while holds(cluster.known_workers(), old):
        assert time.monotonic() < ends_at, "not within a minute"
        time.sleep(0.01)
    return time.monotonic() - hit_s
