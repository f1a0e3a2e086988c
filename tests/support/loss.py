"""Load that goes on while processes are killed, frozen and restarted, and what that cost the clients.

The oracle is the undisturbed run: greedy requests have one right text. Every round over the prompts has a cache salt of
its own, so that prompts are computed anew by prefill workers and no text can come out of a cache by luck.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import orjson

from pando.cli.status import routers
from tests.support.cluster import Cluster
from tests.support.load import Load, Reply
from tests.support.tier_client import TierClient

START_LIMIT_S = 1200.0
NEAR_S = 0.5


@dataclass(slots=True)
class Work:
    """Requests with known answers.

    Attributes:
        prompts: the different ones; request k has prompt k modulo their number.
        max_tokens: of each.
        fields: further fields of the body.
        texts: what the prompts give undisturbed.
    """

    prompts: Sequence[str]
    max_tokens: int
    fields: dict[str, Any] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)

    def learn(self, cluster: Cluster, num_clients: int = 8) -> Work:
        """Ask for every prompt while nothing happens; returns itself."""
        replies = asyncio.run(_pressed(cluster, self, Press(len(self.prompts), num_clients))).replies
        assert all(reply.is_whole for reply in replies), [reply for reply in replies if not reply.is_whole]
        found = {reply.prompt: reply.text for reply in replies}
        self.texts = [found[prompt] for prompt in self.prompts]
        return self


@dataclass(slots=True)
class Loss:
    """What a run under disturbance gave.

    Attributes:
        replies: all of them.
        hits_s: when processes were harmed, on the monotonic clock.
        killed, ended: processes that were killed, or asked to end, and how often each had been restarted before.
        num_moved: streams that went on elsewhere.
        num_retried: calls that were repeated before their first token.
    """

    replies: list[Reply] = field(default_factory=list)
    hits_s: list[float] = field(default_factory=list)
    killed: dict[str, int] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)
    num_moved: int = 0
    num_retried: int = 0

    def failed(self) -> list[Reply]:
        """Those without a whole answer."""
        return [reply for reply in self.replies if not reply.is_whole]

    def unequal(self, work: Work) -> list[Reply]:
        """Whole answers that differ from the undisturbed run's."""
        right = dict(zip(work.prompts, work.texts, strict=True))
        return [reply for reply in self.replies if reply.is_whole and reply.text != right[reply.prompt]]

    def longest_silence_s(self) -> float:
        """Longest time without text of any stream that was under way when a process was harmed."""
        return max((_silence_s(reply, hit_s) for hit_s in self.hits_s for reply in self.replies), default=0.0)

    def longest_usual_gap_s(self) -> float:
        """Longest time without text of a stream that no hit fell into: what the machine's load alone costs."""
        calm = [reply for reply in self.replies if not any(_silence_s(reply, hit_s) for hit_s in self.hits_s)]
        return max(
            (later - earlier for reply in calm for earlier, later in itertools.pairwise(reply.times_s)), default=0.0
        )

    def check(self, work: Work) -> None:
        """Fail unless every request has its right and whole answer."""
        assert not self.failed(), self.failed()[:5]
        assert not self.unequal(work), self.unequal(work)[:5]

    def summary(self, work: Work) -> str:
        """One line of figures."""
        return (
            f"{len(self.replies)} requests, {len(self.failed())} failed, {len(self.unequal(work))} unequal, "
            f"{self.num_moved} streams moved, {self.num_retried} retried before the first token, "
            f"longest silence of a stream under way {self.longest_silence_s():.2f} s, "
            f"of others {self.longest_usual_gap_s():.2f} s"
        )


def _silence_s(reply: Reply, hit_s: float) -> float:
    """The longest gap in a reply's text around a hit; 0 when it was not under way."""
    gaps = [later - earlier for earlier, later in itertools.pairwise(reply.times_s) if _spans(earlier, later, hit_s)]
    return max(gaps, default=0.0)


def _spans(earlier_s: float, later_s: float, hit_s: float) -> bool:
    return later_s > hit_s and earlier_s < hit_s + NEAR_S


Disturb = Callable[["Pressed"], Coroutine[Any, Any, None]]


@dataclass(slots=True)
class Pressed:
    """A run under way, as who disturbs it sees it."""

    cluster: Cluster
    load: Load
    loss: Loss

    def hit(self, harm: Callable[[], int]) -> int:
        """Harm a process now, and note when; returns what `harm` returns."""
        self.loss.hits_s.append(time.monotonic())
        return harm()

    async def until_started(self, count: int) -> None:
        """Wait until that many requests have had text."""
        await self.load.until_started(count, START_LIMIT_S)

    async def until_busy(self, name: str) -> None:
        """Wait until a worker runs something."""
        async with asyncio.timeout(START_LIMIT_S):
            while not (await asyncio.to_thread(self.cluster.stats, name)).num_running:  # noqa: ASYNC110 - its state
                await asyncio.sleep(0.01)

    async def kill(self, name: str) -> None:
        """End a busy worker at once; its next life is waited for when the load is over."""
        await self.until_busy(name)
        self.kill_now(name)

    def kill_now(self, name: str) -> None:
        """End a worker at once; its next life is waited for when the load is over."""
        self.loss.killed[name] = self.hit(lambda: self.cluster.kill(name))

    async def freeze(self, name: str, until: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Stop a process with its sockets open, and let it go on when `until` returns."""
        self.hit(lambda: self.cluster.signal(name, signal.SIGSTOP))
        try:
            await until()
        finally:
            self.cluster.signal(name, signal.SIGCONT)

    def terminate(self, name: str) -> None:
        """Ask a process to end; that it did so by itself and well is checked when the load is over."""
        self.loss.ended[name] = self.hit(lambda: self.cluster.signal(name, signal.SIGTERM))

    async def restart(self, *names: str) -> None:
        """Ask processes to end, and wait until all are up and serving again."""
        for name in names:
            self.terminate(name)
        for name in names:
            await asyncio.to_thread(_see_restarted, self.cluster, name, self.loss.ended.pop(name))
        await asyncio.to_thread(self.cluster.wait_serving)

    async def in_use(self, names: Sequence[str], failpoint: str) -> str:
        """The first of some workers whose failpoint is passed from now on: the others may be idle for long."""
        async with AsyncExitStack() as stack:
            clients = [TierClient(self.cluster.service(name).address) for name in names]
            workers = {name: await stack.enter_async_context(one) for name, one in zip(names, clients, strict=True)}
            before = {name: (await worker.failpoints())[failpoint][0] for name, worker in workers.items()}
            async with asyncio.timeout(START_LIMIT_S):
                while True:
                    for name, worker in workers.items():
                        if (await worker.failpoints())[failpoint][0] > before[name]:
                            return name
                    await asyncio.sleep(0.01)

    async def hold(self, name: str, failpoint: str, rule: str) -> None:
        """Arm a failpoint of a worker by a rule that drops, and wait until something hangs there."""
        async with TierClient(self.cluster.service(name).address) as worker:
            await worker.arm(failpoint, rule)
            async with asyncio.timeout(START_LIMIT_S):
                while not (await worker.failpoints())[failpoint][1]:  # noqa: ASYNC110 - its state
                    await asyncio.sleep(0.01)


def lose(
    cluster: Cluster, work: Work, num_requests: int, num_clients: int, disturb: Disturb, *, pause_s: float = 0.0
) -> Loss:
    """Press on a cluster with at least `num_requests`, and until `disturb` is done; whole again at the end.

    Clients pause between their requests if that is wished: several processes that start need the processor too.
    """
    moved, retried = _counts(cluster)
    loss = asyncio.run(_pressed(cluster, work, Press(num_requests, num_clients, disturb, pause_s)))
    for name, restarts in loss.killed.items():
        cluster.wait_restarted(name, restarts)
    for name, restarts in loss.ended.items():
        _see_restarted(cluster, name, restarts)
    now_moved, now_retried = _counts(cluster)
    loss.num_moved, loss.num_retried = now_moved - moved, now_retried - retried
    return loss


@dataclass(slots=True, frozen=True)
class Press:
    """How hard to press: at least so many requests, and until `disturb` is done."""

    num_requests: int
    num_clients: int
    disturb: Disturb | None = None
    pause_s: float = 0.0


async def _pressed(cluster: Cluster, work: Work, press: Press) -> Loss:
    loss = Loss()
    numbers = itertools.count()
    salt = f"salt-{time.monotonic_ns()}"
    async with Load.open(cluster.url, cluster.model, timeout_s=START_LIMIT_S) as load:

        async def disturbing() -> None:
            if press.disturb is not None:
                await press.disturb(Pressed(cluster, load, loss))

        async def client(done: asyncio.Task[None]) -> None:
            while (number := next(numbers)) < press.num_requests or not done.done():
                prompt = work.prompts[number % len(work.prompts)]
                fields = {"cache_salt": f"{salt}-{number // len(work.prompts)}", **work.fields}
                loss.replies.append(await load.ask(prompt, work.max_tokens, **fields))
                await asyncio.sleep(press.pause_s)

        async with asyncio.TaskGroup() as group:
            done = group.create_task(disturbing())
            for _ in range(press.num_clients):
                group.create_task(client(done))
    return loss


def router_names(cluster: Cluster) -> list[str]:
    """The routers of a cluster, as the supervisor calls them."""
    return [service.name for service in cluster.state().services if service.name.startswith("router")]


def _see_restarted(cluster: Cluster, name: str, restarts_before: int) -> None:
    cluster.wait_restarted(name, restarts_before)
    last_exit = cluster.service(name).last_exit
    assert last_exit == "ended with status 0", f"{name} {last_exit}"


def _counts(cluster: Cluster) -> tuple[int, int]:
    """Streams that went on elsewhere, and calls repeated before their first token, by the logs: metrics die with a
    process."""
    moved = retried = 0
    for path in [*cluster.folder.logs.glob("router*.log"), cluster.folder.log("gateway")]:
        for line in path.read_text("utf-8", "replace").splitlines():
            begun = _began(line)
            moved += begun is True
            retried += begun is False
    return moved, retried


def _began(line: str) -> bool | None:
    """Whether a stream was under way when its call failed and was repeated; None when the line tells of none."""
    if "attempt failed; trying elsewhere" in line:
        return bool(orjson.loads(line)["num_tokens_sent"])
    if "a router failed a call" in line:
        return bool(orjson.loads(line)["begun"])
    return None


async def wait_known(cluster: Cluster, holds: Callable[[list[Any]], object], within_s: float, what: str) -> None:
    """Wait until every router's list of workers is as it should be."""

    def listed() -> bool:
        return all(holds(cluster.known_workers(address)) for address in routers(cluster.state()))

    ends_at = time.monotonic() + within_s
    while not await asyncio.to_thread(listed):
        assert time.monotonic() < ends_at, f"not within {within_s} s: {what}"
        await asyncio.sleep(0.02)
