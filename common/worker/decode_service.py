"""The RPC of the decode role: check -> convert -> generate -> convert."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from common.base.roles import DECODE
from common.grammar.store import GrammarStore
from common.rpc.convert import TokenBytes, logprob_to_pb
from common.rpc.errors import about
from common.rpc.server import Context
from common.sched.request import FinishReason
from common.worker.generation import Generator, Job
from common.worker.handoff_sender import cached_tokens_to_pb
from common.worker.job import Limits, constrain, request_from_pb
from common.worker.output import Piece
from common.worker.service import sources_from_pb
from common.worker.state import WorkerState
from pando.v1 import inference_pb2, types_pb2, worker_pb2, worker_pb2_grpc

_FINISH_TO_PB = {
    FinishReason.STOP: types_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: types_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: types_pb2.FINISH_REASON_ABORT,
}


class DecodeServicer(worker_pb2_grpc.DecodeServiceServicer):
    """`pando.v1.DecodeService`."""

    def __init__(
        self,
        state: WorkerState,
        generator: Generator,
        limits: Limits,
        grammars: GrammarStore,
        token_bytes: TokenBytes,
    ) -> None:
        self._state = state
        self._generator = generator
        self._limits = limits
        self._grammars = grammars
        self._token_bytes = token_bytes

    async def Generate(
        self, request: worker_pb2.DecodeServiceGenerateRequest, context: Context
    ) -> AsyncGenerator[worker_pb2.DecodeServiceGenerateResponse, None]:
        """See the proto."""
        with about(request.request.request_id):
            job = self._job(request, context.time_remaining())
            await constrain(job.request, self._grammars)
            first = True
            with self._state.roles.running(DECODE, job.request.request_id):
                async with aclosing(self._generator.generate(job)) as pieces:
                    async for piece in pieces:
                        yield worker_pb2.DecodeServiceGenerateResponse(frame=self._frame(job, piece, first))
                        first = False

    def _job(self, request: worker_pb2.DecodeServiceGenerateRequest, left_s: float | None) -> Job:
        self._state.check_takes_work(DECODE)
        message = request.request
        if message.namespace:
            self._state.identity.check_namespace(message.namespace)
        return Job(
            request=request_from_pb(message, self._limits, self._generator.now_s()),
            message=message,
            prefill_address=request.prefill.address,
            sources=sources_from_pb(request.sources),
            sent_chars=request.text_offset,
            deadline_s=None if left_s is None else self._generator.now_s() + left_s,
        )

    def _frame(self, job: Job, piece: Piece, first: bool) -> inference_pb2.GenerateResponse:
        frame = inference_pb2.GenerateResponse(
            request_id=job.request.request_id,
            choice=job.request.choice,
            attempt=job.message.attempt,
            token_index=piece.token_index,
            token_ids=piece.token_ids,
            text_offset=piece.text_offset,
            text=piece.text,
            logprobs=[logprob_to_pb(entry, self._token_bytes) for entry in piece.logprobs],
            stop_reason=piece.stop_reason,
            logits_digests=piece.digests,
        )
        if first:
            frame.prompt.num_tokens = len(job.request.prompt_ids)
            frame.prompt.logprobs.extend(logprob_to_pb(p, self._token_bytes) for p in piece.prompt_logprobs)
        if piece.finish_reason is not None:
            frame.finish_reason = _FINISH_TO_PB[piece.finish_reason]
            frame.usage.CopyFrom(self._usage(job))
        return frame

    def _usage(self, job: Job) -> types_pb2.Usage:
        """What the choice cost, for its last frame."""
        request, stream = job.request, job.stream
        first_s, last_s = stream.first_token_s, stream.last_token_s
        usage = types_pb2.Usage(
            prompt_tokens=len(request.prompt_ids),
            completion_tokens=stream.num_tokens,
            decode_s=0.0 if first_s is None or last_s is None else last_s - first_s,
            decode_worker=self._state.worker_id,
            num_preemptions=request.num_preemptions,
        )
        handoff = job.handoff
        if handoff is not None and handoff.first is not None:
            usage.cached_tokens.CopyFrom(handoff.first.cached_tokens)
            usage.queue_s, usage.prefill_s = handoff.first.queue_s, handoff.first.prefill_s
            usage.prefill_worker = handoff.worker_id
            usage.transfer_bytes = handoff.transfer_bytes
            if job.landed_s is not None and first_s is not None:
                usage.transfer_s = max(0.0, job.landed_s - first_s)
            return usage
        usage.cached_tokens.CopyFrom(cached_tokens_to_pb(request))
        usage.prefill_worker = self._state.worker_id
        usage.transfer_bytes = job.fetched_bytes
        if request.first_scheduled_s is not None and first_s is not None:
            usage.queue_s = request.first_scheduled_s - request.arrival_s
            usage.prefill_s = first_s - request.first_scheduled_s
        return usage
