"""The exactness oracle's eyes: run one request on a worker through its public gRPC and compare logits bit by bit.

Workers started with --debug-logits-digest put the SHA-256 of every fp32 logits row into their frames. Two runs of the
same tokens are *exact* if all digests are equal; a run's digests cover its own steps only, so a resumed run compares
with the tail of a whole one. A cold run has a cache salt of its own, hence no block to reuse anywhere, and nothing
beside it in its batches.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc

from pando.v1 import inference_pb2, types_pb2, worker_pb2, worker_pb2_grpc

_ids = itertools.count()
SEED = 7


@dataclass(slots=True, frozen=True)
class Ask:
    """One request to a decode worker.

    Attributes:
        prompt: token ids.
        max_tokens: output tokens, those in `output` included; the end of sequence is ignored.
        salt: cache salt; requests with another one share nothing.
        output: tokens of an earlier attempt; generation goes on after them.
        prefill: address of the prefill worker; empty: the decode worker computes the prompt.
        sources: (worker id, address, number of blocks) of workers that hold a prefix.
        temperature, seed, choice: of the sampler.
    """

    prompt: tuple[int, ...]
    max_tokens: int = 16
    salt: str = ""
    output: tuple[int, ...] = ()
    prefill: str = ""
    sources: tuple[tuple[str, str, int], ...] = ()
    temperature: float = 0.0
    seed: int = SEED
    choice: int = 0

    def to_pb(self) -> worker_pb2.DecodeServiceGenerateRequest:
        """The message, under a request id of its own."""
        sampling = types_pb2.SamplingParams(
            max_tokens=self.max_tokens, temperature=self.temperature, seed=self.seed, ignore_eos=True
        )
        message = worker_pb2.DecodeServiceGenerateRequest(
            request=worker_pb2.WorkerRequest(
                request_id=f"oracle-{next(_ids)}",
                prompt_token_ids=self.prompt,
                output_token_ids=self.output,
                sampling=sampling,
                choice=self.choice,
                attempt=1 if self.output else 0,
                cache_salt=self.salt,
            )
        )
        message.prefill.address = self.prefill
        for worker_id, address, num_blocks in self.sources:
            worker = worker_pb2.WorkerRef(worker_id=worker_id, address=address)
            message.sources.append(worker_pb2.BlockSource(worker=worker, num_blocks=num_blocks))
        return message


@dataclass(slots=True)
class Run:
    """What came of a request. `digests` has one entry per token of `token_ids`, which starts at output `first`."""

    first: int = 0
    token_ids: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    usage: types_pb2.Usage = field(default_factory=types_pb2.Usage)

    def add(self, frame: inference_pb2.GenerateResponse) -> None:
        """Take in the next frame; raises AssertionError when tokens are missing or told twice."""
        if not self.token_ids:
            self.first = frame.token_index
        assert frame.token_index == self.first + len(self.token_ids), f"frame at token {frame.token_index}"
        self.token_ids += frame.token_ids
        self.digests += frame.logits_digests
        if frame.finish_reason:
            self.usage = frame.usage

    @property
    def num_cached(self) -> int:
        """Prompt tokens that nobody computed for this run."""
        cached = self.usage.cached_tokens
        return cached.l1 + cached.l2 + cached.l3 + cached.peer


def difference(run: Run, cold: Run) -> str:
    """Where `run` first differs from `cold`, which covers at least the same output positions; empty: nowhere."""
    if not run.digests or len(run.digests) != len(run.token_ids):
        return f"{len(run.digests)} digests for {len(run.token_ids)} tokens"
    for offset, (token, digest) in enumerate(zip(run.token_ids, run.digests, strict=True)):
        index = run.first + offset - cold.first
        if digest != cold.digests[index]:
            return f"logits of output position {run.first + offset}"
        if token != cold.token_ids[index]:
            return f"token at output position {run.first + offset}"
    return ""


class WorkerClient:
    """The RPCs of one worker that the oracle uses."""

    def __init__(self, address: str, worker_id: str) -> None:
        self.address = address
        self.worker_id = worker_id
        self._channel = grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        self._decode = worker_pb2_grpc.DecodeServiceStub(self._channel)
        self._worker = worker_pb2_grpc.WorkerServiceStub(self._channel)

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()

    async def run(self, ask: Ask) -> Run:
        """Run a request to its end."""
        run = Run()
        async for message in self._decode.Generate(ask.to_pb()):
            run.add(message.frame)
        return run

    async def run_unless_full(self, ask: Ask) -> Run | None:
        """Run a request to its end; None when the worker has no room now."""
        try:
            return await self.run(ask)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
            return None

    async def configure(self, **fields: int | str) -> None:
        """Change scheduling at run time."""
        await self._worker.Configure(worker_pb2.ConfigureRequest(**fields))  # type: ignore[arg-type]

    async def flush(self) -> int:
        """Drop what only the index holds; returns the number of blocks."""
        answer = await self._worker.FlushCache(worker_pb2.FlushCacheRequest())
        return int(answer.num_blocks_dropped)

    async def stats(self) -> worker_pb2.GetStatsResponse:
        """Load and blocks."""
        stats: worker_pb2.GetStatsResponse = await self._worker.GetStats(worker_pb2.GetStatsRequest())
        return stats

    async def block_bytes(self) -> int:
        """Bytes of one KV block."""
        info = await self._worker.GetInfo(worker_pb2.GetInfoRequest())
        return int(info.identity.block_bytes)

    @asynccontextmanager
    async def noise(self, asks: Sequence[Ask]) -> AsyncGenerator[None, None]:
        """Long requests that run beside whatever the body does: all have their first token when it begins."""
        calls = [self._decode.Generate(ask.to_pb()) for ask in asks]
        try:
            for call in calls:
                await call.read()
            yield
            ended = [call for call in calls if call.done()]
            assert not ended, f"{len(ended)} noise requests ended before the run they were to disturb"
        finally:
            for call in calls:
                call.cancel()
