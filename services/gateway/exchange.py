"""From the first RPC to the last byte of one generation, under the one cancellation rule.

The rule: whoever ends first ends the other. When the client leaves, streaming or not, the calls to the router are
cancelled at once; when the answer is out, nobody watches the client any more; when the process drains and time is up,
what still runs ends with an error the client can read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from common.base.clock import Clock
from common.base.errors import Internal, Overloaded, PandoError
from common.base.logging import get_logger
from pando.v1.inference_pb2 import GenerateRequest, GenerateResponse
from services.gateway.client import RouterClient
from services.gateway.context import Outcome, RequestContext, context_of, outcome_of
from services.gateway.errors import JsonResponse, renamed
from services.gateway.generation import Generation
from services.gateway.metrics import GatewayMetrics, GenerationTimer
from services.gateway.sse import EventStream
from services.gateway.usage import final_usage

Sink = Callable[[int, GenerateResponse], Awaitable[None]]


class Running:
    """The exchanges under way, at most `limit`."""

    def __init__(self, limit: int, metrics: GatewayMetrics) -> None:
        self._limit = limit
        self._metrics = metrics
        self._exchanges: set[Exchange] = set()

    def add(self, exchange: Exchange) -> None:
        """Raises Overloaded at the limit."""
        if len(self._exchanges) >= self._limit:
            raise Overloaded(f"{self._limit} requests are running; try again later", retry_after_s=1.0)
        self._exchanges.add(exchange)
        self._metrics.running.set(len(self._exchanges))

    def remove(self, exchange: Exchange) -> None:
        """It is over; unknown ones are fine."""
        self._exchanges.discard(exchange)
        self._metrics.running.set(len(self._exchanges))

    def abort_all(self, error: PandoError) -> None:
        """End all of them with an error that their clients see."""
        for exchange in list(self._exchanges):
            exchange.abort(error)

    def __len__(self) -> int:
        return len(self._exchanges)


class Exchange(Response):
    """The ASGI response that runs a generation. Errors before the first byte are raised, later ones are written."""

    def __init__(
        self,
        generation: Generation,
        *,
        client: RouterClient,
        running: Running,
        metrics: GatewayMetrics,
        clock: Clock,
        max_parallel: int,
    ) -> None:
        super().__init__()
        self._generation = generation
        self._client = client
        self._running = running
        self._metrics = metrics
        self._clock = clock
        self._max_parallel = max_parallel
        self._started_s = clock()
        self._work: asyncio.Task[None] | None = None
        self._aborted_with: PandoError | None = None

    def abort(self, error: PandoError) -> None:
        """Stop generating; the client gets `error`."""
        if self._work is not None:
            self._aborted_with = error
            self._work.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run to the end, or until the client has left."""
        context = context_of(scope)
        for request in self._generation.requests:
            request.tenant, request.tenant_weight = context.tenant.name, context.tenant.weight
        self._started_s = context.started_s
        context.has_limit = self._generation.timeout_s is not None
        self._running.add(self)
        self._work = asyncio.create_task(self._answer(scope, receive, send, context))
        gone = asyncio.create_task(_until_gone(receive))
        try:
            await asyncio.wait((self._work, gone), return_when=asyncio.FIRST_COMPLETED)
            if not self._work.done():
                context.outcome = Outcome.DISCONNECT
        finally:
            self._work.cancel()
            gone.cancel()
            await asyncio.gather(self._work, gone, return_exceptions=True)
            self._running.remove(self)
        if not self._work.cancelled():
            self._work.result()

    async def _answer(self, scope: Scope, receive: Receive, send: Send, context: RequestContext) -> None:
        timer = GenerationTimer(self._metrics, self._clock, context.started_s)
        try:
            if self._generation.stream:
                await self._stream(send, context, timer)
            else:
                document = await self._collect(timer)
                await JsonResponse(document)(scope, receive, send)
        except PandoError as error:
            renamed(error, self._generation.names)
            raise
        timer.on_end()

    async def _stream(self, send: Send, context: RequestContext, timer: GenerationTimer) -> None:
        out = EventStream(send)
        transcript, writer = self._generation.transcript, self._generation.writer

        async def on_frame(prompt: int, frame: GenerateResponse) -> None:
            slot = transcript.add(prompt, frame)
            timer.on_tokens(slot.index, len(frame.token_ids))
            await out.write(writer.events(frame, slot))

        try:
            await self._generate(on_frame)
        except Exception as error:
            if not out.started:
                raise
            await out.close(writer.failed(_note(error, context)))
        else:
            await out.close(writer.tail())

    async def _collect(self, timer: GenerationTimer) -> Any:
        transcript = self._generation.transcript

        async def on_frame(prompt: int, frame: GenerateResponse) -> None:
            slot = transcript.add(prompt, frame)
            timer.on_tokens(slot.index, len(frame.token_ids))

        await self._generate(on_frame)
        return self._generation.writer.document()

    async def _generate(self, sink: Sink) -> None:
        """Feed all frames of all prompts to `sink`, one at a time. Raises PandoError, also when aborted."""
        try:
            await self._run_prompts(sink)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._aborted_with is None or task is None:
                raise
            task.uncancel()
            raise self._aborted_with from None
        self._generation.transcript.check_complete()
        self._count_tokens()

    async def _run_prompts(self, sink: Sink) -> None:
        requests = self._generation.requests
        if len(requests) == 1:
            await self._run_prompt(0, requests[0], sink)
            return
        permits = asyncio.Semaphore(self._max_parallel)
        turn = asyncio.Lock()

        async def in_turn(prompt: int, frame: GenerateResponse) -> None:
            async with turn:
                await sink(prompt, frame)

        async def run(prompt: int, request: GenerateRequest) -> None:
            async with permits:
                await self._run_prompt(prompt, request, in_turn)

        try:
            async with asyncio.TaskGroup() as group:
                for prompt, request in enumerate(requests):
                    group.create_task(run(prompt, request))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors

    async def _run_prompt(self, prompt: int, request: GenerateRequest, sink: Sink) -> None:
        async with aclosing(self._client.generate(request, self._left_s())) as frames:
            async for frame in frames:
                await sink(prompt, frame)

    def _left_s(self) -> float | None:
        """Of the client's time, which began when its request came; None when it set no limit."""
        limit_s = self._generation.timeout_s
        return None if limit_s is None else max(0.0, self._started_s + limit_s - self._clock())

    def _count_tokens(self) -> None:
        usage = final_usage(self._generation.transcript)
        self._metrics.prompt_tokens.inc(usage["prompt_tokens"])
        self._metrics.cached_tokens.inc(usage["prompt_tokens_details"]["cached_tokens"])
        self._metrics.generated_tokens.inc(usage["completion_tokens"])


def _note(error: Exception, context: RequestContext) -> PandoError:
    """An error after the first byte: counted as the failure it is, and given a form for the client."""
    if not isinstance(error, PandoError):
        get_logger().error("a stream failed", request_id=context.request_id, exc_info=error)
        error = Internal(f"internal error: {type(error).__name__}")
    context.fail(error)
    context.outcome = outcome_of(error.http_status)
    return error


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
