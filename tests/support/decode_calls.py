"""Calls of `DecodeService.Generate` as the router makes them, and what came of one."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import grpc

from common.base.errors import Leg
from common.rpc.errors import from_rpc_error
from pando.v1 import inference_pb2, types_pb2, worker_pb2, worker_pb2_grpc

FIRST_ID, LAST_ID = 2, 257
"""Ids of single bytes in the tiny vocabulary: any sequence of them is a prompt."""


def prompt_of(num_tokens: int, seed: int) -> list[int]:
    """A random prompt; another seed is another prompt from its first token on."""
    draw = random.Random(seed)
    return [draw.randint(FIRST_ID, LAST_ID) for _ in range(num_tokens)]


@dataclass(slots=True)
class Output:
    """All frames of one call, joined; checked for gaps on the way."""

    frames: list[inference_pb2.GenerateResponse] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    digests: list[bytes] = field(default_factory=list)
    logprobs: list[types_pb2.TokenLogprob] = field(default_factory=list)

    def add(self, frame: inference_pb2.GenerateResponse) -> None:
        """Take in the next frame."""
        if not self.frames:
            self._first_token, self._first_char = frame.token_index, frame.text_offset
        assert frame.token_index == self._first_token + len(self.token_ids), "a gap in the tokens"
        assert frame.text_offset == self._first_char + len(self.text), "a gap in the text"
        assert not self.frames or not self.frames[-1].finish_reason, "a frame after the last one"
        self.frames.append(frame)
        self.token_ids += frame.token_ids
        self.text += frame.text
        self.digests += frame.logits_digests
        self.logprobs += frame.logprobs

    _first_token: int = 0
    _first_char: int = 0

    @property
    def last(self) -> inference_pb2.GenerateResponse:
        """The frame with finish reason and usage."""
        assert self.frames and self.frames[-1].finish_reason, "the stream ended without a reason"
        return self.frames[-1]

    @property
    def usage(self) -> types_pb2.Usage:
        """What the call cost."""
        return self.last.usage


def request_of(
    request_id: str,
    prompt: Sequence[int],
    *,
    max_tokens: int = 8,
    prefill: str = "",
    sources: Sequence[worker_pb2.BlockSource] = (),
    output_ids: Sequence[int] = (),
    text_offset: int = 0,
    **sampling: object,
) -> worker_pb2.DecodeServiceGenerateRequest:
    """A greedy request; `sampling` sets further fields of SamplingParams. `prefill` is an address."""
    values = {"max_tokens": max_tokens, "temperature": 0.0, "seed": 1} | sampling
    request = worker_pb2.DecodeServiceGenerateRequest(
        request=worker_pb2.WorkerRequest(
            request_id=request_id,
            prompt_token_ids=prompt,
            output_token_ids=output_ids,
            sampling=types_pb2.SamplingParams(**values),  # type: ignore[arg-type]
        ),
        sources=sources,
        text_offset=text_offset,
    )
    if prefill:
        request.prefill.address = prefill
    return request


class DecodeClient:
    """Calls one decode worker. Lives on one loop; `async with`."""

    def __init__(self, address: str) -> None:
        """Connects with the first call."""
        self._channel = grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        self.worker = worker_pb2_grpc.WorkerServiceStub(self._channel)
        self.decode = worker_pb2_grpc.DecodeServiceStub(self._channel)

    async def __aenter__(self) -> DecodeClient:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._channel.close()

    async def frames(
        self, request: worker_pb2.DecodeServiceGenerateRequest, timeout_s: float = 60.0
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        """Frames as they come. Raises PandoError."""
        call = self.decode.Generate(request, timeout=timeout_s, wait_for_ready=True)
        try:
            async for response in call:
                yield response.frame
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, Leg.NONE) from error
        finally:
            call.cancel()

    async def generate(self, request: worker_pb2.DecodeServiceGenerateRequest, timeout_s: float = 60.0) -> Output:
        """Run a request to its end. Raises PandoError."""
        output = Output()
        async for frame in self.frames(request, timeout_s):
            output.add(frame)
        assert output.last.finish_reason
        return output
