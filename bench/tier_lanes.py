"""Worker processes that `bench/tiers.py` compares, and the conversations that it has with them.

A *lane* is one worker with settings of its own. All lanes get the same prompts, one request at a time, and must give
the same tokens; they take turns within a run, so that a busy machine slows all of them.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import psutil

from common.base.errors import PandoError
from pando.v1 import admin_pb2, admin_pb2_grpc, worker_pb2
from tests.support.decode_calls import DecodeClient, request_of
from tests.support.workers import DEFAULT_FLAGS, WorkerProcess

BLOCK = 16
OUTPUT_TOKENS = 4
FIRST_ID, LAST_ID = 100, 40_000
WARM_UP_TOKENS = (64, 128)
"""They tell a worker its own speed, from which it decides how long it may wait for L3."""


@dataclass(slots=True, frozen=True)
class Shape:
    """A workload: conversations, turns of each, tokens of the first prompt, tokens that every later turn adds."""

    conversations: int = 12
    turns: int = 5
    first_tokens: int = 64
    turn_tokens: int = 32

    @property
    def total_tokens(self) -> int:
        """Tokens of all conversations at their ends."""
        return self.conversations * (self.first_tokens + (self.turns - 1) * self.turn_tokens)


@dataclass(slots=True, frozen=True)
class Answer:
    """One request: seconds to its first token, its output, prompt tokens, and those of them found in each tier."""

    ttft_s: float
    output_ids: tuple[int, ...]
    prompt_tokens: int
    hits: Mapping[str, int]


@dataclass(slots=True)
class Lane:
    """A worker with settings of its own, and what it answered. `flags` as in `tests.support.workers`."""

    name: str
    flags: Mapping[str, str]
    answers: list[Answer] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    _cpu_began_s: float = 0.0
    _worker: WorkerProcess | None = None
    _num_asked: int = 0

    @property
    def worker(self) -> WorkerProcess:
        """The process, which has been started."""
        assert self._worker is not None, f"lane {self.name} has not been started"
        return self._worker

    def launch(self, model: Path, threads: int) -> None:
        """Start the process; `warm_up` waits for it."""
        flags = DEFAULT_FLAGS | {"model-path": str(model), "num-threads": str(threads), "roles": "prefill,decode"}
        flags |= self.flags
        self._worker = WorkerProcess("decode", [part for name, value in flags.items() for part in (f"--{name}", value)])

    async def warm_up(self) -> None:
        """Wait until it is ready and run a few requests that do not count."""
        self.worker.wait_ready()
        for count in WARM_UP_TOKENS:
            await self.ask(prompt(random.Random(f"warm-up {count}"), count))
        await self.begin_anew()

    async def begin_anew(self) -> None:
        """Empty L1 and L2, and count from here."""
        await self.flush()
        self.answers.clear()
        self._cpu_began_s = self._cpu_s()

    @property
    def cpu_s(self) -> float:
        """CPU time of all threads of the process since it began anew."""
        return self._cpu_s() - self._cpu_began_s

    def _cpu_s(self) -> float:
        times = psutil.Process(self.worker.process.pid).cpu_times()
        return float(times.user + times.system)

    def stop(self) -> None:
        """End the process; how it ends counts as an error unless it is well."""
        if self._worker is not None and (failure := self._worker.stop()):
            self.errors.append(failure)
        self._worker = None

    async def ask(self, prompt_ids: Sequence[int]) -> tuple[int, ...]:
        """Run a request to its end; returns the output, () after a failure, which is noted."""
        self._num_asked += 1
        request = request_of(f"{self.name}-{self._num_asked}", prompt_ids, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
        output: list[int] = []
        first_s = 0.0
        async with DecodeClient(self.worker.address) as client:
            await client.worker.GetStats(worker_pb2.GetStatsRequest(), wait_for_ready=True)
            began_s = time.perf_counter()
            try:
                async for frame in client.frames(request):
                    if frame.token_ids:
                        first_s = first_s or time.perf_counter() - began_s
                    output += frame.token_ids
                    cached = frame.usage.cached_tokens
            except PandoError as error:
                self.errors.append(f"{type(error).__name__}: {error.message}")
                return ()
        hits = {"l1": cached.l1, "l2": cached.l2, "l3": cached.l3}
        self.answers.append(Answer(first_s, tuple(output), len(prompt_ids), hits))
        return tuple(output)

    async def tiers(self) -> dict[str, admin_pb2.TierInfo]:
        """What the worker says about its tiers."""
        async with grpc.aio.insecure_channel(self.worker.address) as channel:
            answer = await admin_pb2_grpc.AdminServiceStub(channel).GetTiers(admin_pb2.GetTiersRequest())
        return {tier.tier: tier for tier in answer.tiers}

    async def flush(self) -> None:
        """Empty L1 and L2."""
        async with DecodeClient(self.worker.address) as client:
            await client.worker.FlushCache(worker_pb2.FlushCacheRequest())

    async def share_in_both(self) -> float:
        """Share of the blocks in L2 that L1 has too; 0 without L2."""
        held: dict[int, set[bytes]] = {1: set(), 2: set()}
        async with DecodeClient(self.worker.address) as client:
            call = client.worker.Watch(worker_pb2.WatchRequest())
            async for message in call:
                for event in message.events:
                    held[event.tier].add(event.prefix_hash)
                if message.snapshot_end:
                    break
            call.cancel()
        return len(held[1] & held[2]) / max(1, len(held[2]))

    def moves(self) -> dict[str, int]:
        """Blocks copied down to L2 and up from it since the start."""
        kinds = ("saved", "loaded", "dropped")
        return {kind: int(self.worker.metric("pando_worker_l2_moved_blocks_total", kind=kind)) for kind in kinds}


@asynccontextmanager
async def running(lanes: Sequence[Lane], model: Path, threads: int) -> AsyncIterator[None]:
    """All lanes, up and warm for the body; started one after the other, since starting takes much CPU."""
    async with AsyncExitStack() as stack:
        for lane in lanes:
            stack.callback(lane.stop)
            lane.launch(model, threads)
            await lane.warm_up()
        yield


async def converse(lanes: Sequence[Lane], shape: Shape, seed: str) -> None:
    """Have all conversations with every lane, turn by turn; each turn in a random order of the conversations.

    Every turn is one pass over all conversations per lane, and the lane that begins changes with the turn.

    Raises:
        AssertionError: two lanes gave different tokens.
    """
    draw = random.Random(seed)
    histories = [prompt(draw, shape.first_tokens) for _ in range(shape.conversations)]
    for turn in range(shape.turns):
        order = draw.sample(range(shape.conversations), shape.conversations)
        outputs = {}
        for lane in rotated(lanes, turn):
            outputs[lane.name] = [await lane.ask(histories[number]) for number in order]
        first = outputs[lanes[0].name]
        assert all(other == first for other in outputs.values()), f"turn {turn}: the lanes differ: {outputs}"
        for number, output in zip(order, first, strict=True):
            histories[number] += [*output, *prompt(draw, shape.turn_tokens - len(output))]


async def ask_all(lanes: Sequence[Lane], prompts: Sequence[Sequence[int]]) -> None:
    """Send every prompt to all lanes, one after the other; the lane that begins changes with the prompt."""
    for number, prompt_ids in enumerate(prompts):
        outputs = {lane.name: await lane.ask(prompt_ids) for lane in rotated(lanes, number)}
        assert len(set(outputs.values()) - {()}) <= 1, f"the lanes differ: {outputs}"


def rotated(lanes: Sequence[Lane], number: int) -> Iterator[Lane]:
    """All lanes, beginning with another one for each number."""
    for index in range(len(lanes)):
        yield lanes[(number + index) % len(lanes)]


def prompt(draw: random.Random, count: int) -> list[int]:
    """Random tokens."""
    return [draw.randint(FIRST_ID, LAST_ID) for _ in range(count)]


def machine() -> str:
    """What the figures were measured on, for their reader."""
    return f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
