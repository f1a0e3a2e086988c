"""Workers without an engine: they answer a router as real ones do, with tokens that are a pure function of the request.

A fake keeps the contract of the protos (frames with token index and text offset, resume after given output, an index
stream with snapshot and numbered events) and fails on demand: each Generate call takes the next `Fault` of its script.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import grpc

from common.base.config import TimeoutsConfig
from common.base.errors import Draining, PandoError, Unavailable
from common.rpc.registry import WorkerRecord
from common.rpc.server import RpcServer
from common.tokenizer.detokenizer import IncrementalDetokenizer
from common.tokenizer.tokenizer import Tokenizer
from pando.v1 import inference_pb2, types_pb2, worker_pb2, worker_pb2_grpc

BLOCK_SIZE = 16
FIRST_PLAIN_ID = 2
EOS = 0
Identity = types_pb2.KvIdentity
Context = grpc.aio.ServicerContext[Any, Any]


def identity(name: str = "one") -> types_pb2.KvIdentity:
    """A KV identity; equal names are equal identities."""
    return Identity(namespace=name.encode().ljust(32), numerics_id="fake", block_bytes=64, block_size=BLOCK_SIZE)


def token_at(request: worker_pb2.WorkerRequest, position: int, vocab_size: int) -> int:
    """The token that every fake draws at an output position; never a special one."""
    greedy = request.sampling.temperature == 0
    key = (tuple(request.prompt_token_ids), position, 0 if greedy else (request.sampling.seed, request.choice))
    return FIRST_PLAIN_ID + crc32(repr(key).encode()) % (vocab_size - FIRST_PLAIN_ID - 1)


@dataclass
class Fault:
    """What happens to one Generate call.

    Attributes:
        after: tokens that are sent before it happens.
        error: is raised then; None: see `hang` and `cut`.
        hang: nothing comes any more, until the call is cancelled or `resume` is set.
        cut: the stream ends well, without a finish.
        repeat: the call tells that many tokens (and their text) again that the router has already.
        mute_finish: the last frame comes without its finish, then `error`.
    """

    after: int = 0
    error: PandoError | None = None
    hang: bool = False
    cut: bool = False
    repeat: int = 0
    mute_finish: bool = False
    resume: asyncio.Event = field(default_factory=asyncio.Event)
    reached: asyncio.Event = field(default_factory=asyncio.Event)


class FakeWorker(worker_pb2_grpc.DecodeServiceServicer, worker_pb2_grpc.WorkerServiceServicer):
    """One life of a worker. `start` it, `kill` it; see the module."""

    def __init__(
        self,
        worker_id: str,
        roles: Sequence[str],
        tokenizer: Tokenizer,
        *,
        incarnation: int = 1,
        kv: types_pb2.KvIdentity | None = None,
        step_s: float = 0.0,
        max_model_len: int = 512,
    ) -> None:
        self.record = WorkerRecord(worker_id, incarnation, "", list(roles), pid=1)
        self.faults: deque[Fault] = deque()
        self.calls: list[worker_pb2.DecodeServiceGenerateRequest] = []
        self.deadlines_s: list[float] = []
        self.num_running = self.peak = 0
        self.num_cancelled = 0
        self.num_watches = self.num_pings = 0
        self.stats = worker_pb2.GetStatsResponse(worker_id=worker_id, incarnation=incarnation, roles=roles)
        self.pings_hang = self.watch_hangs = False
        self.blocks: list[bytes] = []
        self._tokenizer = tokenizer
        self._kv = kv or identity()
        self._step_s = step_s
        self._max_model_len = max_model_len
        self._watchers: set[asyncio.Queue[worker_pb2.WatchResponse]] = set()
        self._seq = 0
        self._server = RpcServer(TimeoutsConfig(), ["pando.v1.WorkerService"])
        worker_pb2_grpc.add_DecodeServiceServicer_to_server(self, self._server.grpc)
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(self, self._server.grpc)

    @property
    def key(self) -> tuple[str, int]:
        """Worker id and incarnation."""
        return self.record.worker_id, self.record.incarnation

    async def start(self, port: int = 0) -> FakeWorker:
        """Serve on a port; returns itself."""
        bound = self._server.bind("127.0.0.1", port)
        self.record = WorkerRecord(*self.key, f"127.0.0.1:{bound}", self.record.roles, pid=1)
        await self._server.start()
        return self

    async def kill(self) -> None:
        """Go away at once; running calls break."""
        await self._server.stop(0.0)

    def store(self, blocks: Sequence[bytes], skip_seq: int = 0) -> None:
        """Index blocks and tell the watchers; `skip_seq` loses that many events before them."""
        self.blocks += blocks
        events = [worker_pb2.BlockEvent(kind=worker_pb2.BlockEvent.KIND_STORED, prefix_hash=b, tier=1) for b in blocks]
        self._seq += len(blocks) + skip_seq
        self._tell(self._message(events))

    def check(self, num_entries: int) -> None:
        """Tell the watchers what the index adds up to, with the right sum and a number that may be wrong."""
        total = sum(int.from_bytes(block[:8], "little") for block in self.blocks) % 2**64
        message = self._message([])
        message.digest.CopyFrom(worker_pb2.IndexDigest(num_entries=num_entries, sum=total))
        self._tell(message)

    def _message(
        self, events: Sequence[worker_pb2.BlockEvent], *, snapshot: bool = False, snapshot_end: bool = False
    ) -> worker_pb2.WatchResponse:
        return worker_pb2.WatchResponse(
            incarnation=self.record.incarnation,
            seq=self._seq,
            events=events,
            snapshot=snapshot,
            snapshot_end=snapshot_end,
        )

    def _tell(self, message: worker_pb2.WatchResponse) -> None:
        for queue in self._watchers:
            queue.put_nowait(message)

    async def GetInfo(self, request: worker_pb2.GetInfoRequest, context: Context) -> worker_pb2.GetInfoResponse:
        record = self.record
        return worker_pb2.GetInfoResponse(
            worker_id=record.worker_id,
            incarnation=record.incarnation,
            roles=record.roles,
            identity=self._kv,
            max_model_len=self._max_model_len,
            num_blocks=100,
            pid=1,
        )

    async def GetStats(self, request: worker_pb2.GetStatsRequest, context: Context) -> worker_pb2.GetStatsResponse:
        self.num_pings += 1
        if self.pings_hang:
            await asyncio.Event().wait()
        return self.stats

    async def Watch(
        self, request: worker_pb2.WatchRequest, context: Context
    ) -> AsyncGenerator[worker_pb2.WatchResponse, None]:
        queue: asyncio.Queue[worker_pb2.WatchResponse] = asyncio.Queue()
        events = [
            worker_pb2.BlockEvent(kind=worker_pb2.BlockEvent.KIND_STORED, prefix_hash=b, tier=1) for b in self.blocks
        ]
        snapshot = self._message(events, snapshot=True, snapshot_end=True)
        self._watchers.add(queue)
        self.num_watches += 1
        if self.watch_hangs:
            await asyncio.Event().wait()
        try:
            yield snapshot
            while True:
                yield await queue.get()
        finally:
            self._watchers.discard(queue)

    async def Generate(
        self, request: worker_pb2.DecodeServiceGenerateRequest, context: Context
    ) -> AsyncGenerator[worker_pb2.DecodeServiceGenerateResponse, None]:
        self.calls.append(request)
        self.deadlines_s.append(context.time_remaining() or 0.0)
        fault = self.faults.popleft() if self.faults else None
        self.num_running += 1
        self.peak = max(self.peak, self.num_running)
        try:
            async for frame in self._frames(request, fault):
                yield worker_pb2.DecodeServiceGenerateResponse(frame=frame)
        except (asyncio.CancelledError, GeneratorExit):
            self.num_cancelled += 1
            raise
        finally:
            self.num_running -= 1

    async def _frames(
        self, call: worker_pb2.DecodeServiceGenerateRequest, fault: Fault | None
    ) -> AsyncGenerator[inference_pb2.GenerateResponse, None]:
        request = call.request
        repeat = fault.repeat if fault else 0
        given = list(request.output_token_ids)[: len(request.output_token_ids) - repeat]
        text = self._detokenizer(request)
        known = text.feed(given)
        offset = min(call.text_offset, len(known))
        pending = known[offset:]
        for count, position in enumerate(range(len(given), request.sampling.max_tokens)):
            if fault and fault.after == count and await self._struck(fault):
                return
            await asyncio.sleep(self._step_s)
            frame = self._frame(request, position, text, pending, offset)
            if not frame.finish_reason:
                offset += len(frame.text)
                pending = ""
            elif fault and fault.mute_finish:
                frame.ClearField("finish_reason")
                frame.ClearField("usage")
            yield frame
            if text.stop_match:
                return
        if fault:
            await self._struck(fault)

    def _frame(
        self, request: worker_pb2.WorkerRequest, position: int, text: IncrementalDetokenizer, pending: str, offset: int
    ) -> inference_pb2.GenerateResponse:
        token = token_at(request, position, self._tokenizer.vocab_size)
        pending += text.feed([token])
        last = position + 1 == request.sampling.max_tokens
        frame = inference_pb2.GenerateResponse(
            request_id=request.request_id,
            choice=request.choice,
            attempt=request.attempt,
            token_index=position,
            token_ids=[token],
            text_offset=offset,
            text=pending + (text.finish() if last or text.stop_match else ""),
        )
        if request.sampling.HasField("logprobs"):
            frame.logprobs.add(token_id=token, logprob=-1.0, rank=1)
        if position == len(request.output_token_ids):
            frame.prompt.num_tokens = len(request.prompt_token_ids)
        if last or text.stop_match:
            frame.finish_reason = types_pb2.FINISH_REASON_STOP if text.stop_match else types_pb2.FINISH_REASON_LENGTH
            frame.stop_reason = text.stop_match or ""
            frame.usage.completion_tokens = position + 1
            frame.usage.cached_tokens.l1 = 16
        return frame

    async def _struck(self, fault: Fault) -> bool:
        """Let a fault happen; True when the stream ends there."""
        fault.reached.set()
        if fault.hang:
            await fault.resume.wait()
        if fault.error is not None:
            raise fault.error
        return fault.cut

    def _detokenizer(self, request: worker_pb2.WorkerRequest) -> IncrementalDetokenizer:
        return IncrementalDetokenizer(self._tokenizer, stop=list(request.sampling.stop))

    def drain(self) -> None:
        """Refuse everything new, as a worker after SIGTERM."""
        self.stats.draining = True
        self.faults.extend(Fault(error=Draining("going down")) for _ in range(8))


class FakeRegistry:
    """A registry in memory; `lost` makes it unreachable."""

    def __init__(self, *workers: FakeWorker) -> None:
        self.records = {worker.record.worker_id: worker.record for worker in workers}
        self.lost = False

    def register(self, worker: FakeWorker) -> None:
        """Write a worker's entry; an earlier life's is replaced."""
        self.records[worker.record.worker_id] = worker.record

    async def list_workers(self) -> list[WorkerRecord]:
        """As RegistryReader's."""
        if self.lost:
            raise Unavailable("registry: gone")
        return list(self.records.values())
