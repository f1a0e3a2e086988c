"""The public gRPC API: check -> convert -> call -> convert."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

from common.base.errors import InvalidRequest, Overloaded, PandoError
from common.base.ids import new_request_id
from common.base.limits import LimitsConfig
from common.rpc.server import Context, remaining_s
from pando.v1 import inference_pb2, inference_pb2_grpc
from services.router import convert, dispatch
from services.router.desk import Desk
from services.router.explaining import explanation_to_pb
from services.router.intake import Intake
from services.router.job import Chat, Job
from services.router.metrics import RequestTrace, outcome_of
from services.router.prompts import Model, PromptPool, prompt_size
from services.router.running import RunningTable
from services.router.validation import check_messages, check_text, check_tokens
from services.router.waiting_room import WaitingRoom

SERVICE_NAME = "pando.v1.Inference"
TRANSIT_S = 0.25
"""A caller's time began before its request came here, so it gives up by so much earlier, at most."""


class InferenceService(inference_pb2_grpc.InferenceServicer):
    """`pando.v1.Inference`; see the proto for every RPC's contract."""

    def __init__(
        self,
        *,
        desk: Desk,
        intake: Intake,
        model: Model,
        pool: PromptPool,
        running: RunningTable,
        room: WaitingRoom,
        limits: LimitsConfig,
        request_s: float,
        created_unix_s: int,
        role_advice: Callable[[], str],
    ) -> None:
        self._desk = desk
        self._intake = intake
        self._model = model
        self._pool = pool
        self._running = running
        self._room = room
        self._limits = limits
        self._request_s = request_s
        self._created_unix_s = created_unix_s
        self._role_advice = role_advice

    async def Generate(
        self, request: inference_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        """Run one request; every error carries its id. When no worker has room for it, it waits for another turn."""
        now_s = self._desk.clock()
        deadline_s = now_s + remaining_s(context, self._request_s)
        request_id = request.request_id or new_request_id()
        trace = RequestTrace(self._desk.metrics, now_s)
        with _Counted(self._desk, trace, request_id, deadline_s), self._running.admit(request_id) as ticket:
            job = await self._job(request, request_id, deadline_s)
            ticket.check()
            with await self._room.enter(job, ticket) as turn:
                trace.on_planned = turn.placed
                sent = False
                while True:
                    try:
                        async with aclosing(dispatch.run(self._desk, job, ticket, trace)) as frames:
                            async for frame in frames:
                                sent = True
                                yield frame
                                turn.took(len(frame.token_ids))
                        return
                    except Overloaded:
                        if sent or not await turn.again():
                            raise

    async def _job(self, request: inference_pb2.GenerateRequest, request_id: str, deadline_s: float) -> Job:
        """Read and check a request, if there is room for one more."""
        wish = convert.wish_from_pb(request)
        if not wish.output_ids:
            self._room.check_room(wish.tenant, wish.tenant_weight, wish.priority)
        return await self._intake.job(wish, request_id, deadline_s)

    async def Tokenize(
        self, request: inference_pb2.TokenizeRequest, context: Context
    ) -> inference_pb2.TokenizeResponse:
        """Token ids of text or chat."""
        self._intake.check_model(request.model)
        prompt = convert.prompt_from_pb(request)
        if isinstance(prompt, Chat):
            check_messages(prompt, self._limits)
        elif isinstance(prompt, str):
            check_text(prompt, self._limits)
        else:
            raise InvalidRequest("text or messages are required", param="prompt")
        ids, text = await self._pool.run(
            prompt_size(prompt), lambda: self._tokenized(prompt, request.add_special_tokens)
        )
        tokens = [self._model.tokenizer.token_bytes(token) for token in ids]
        return inference_pb2.TokenizeResponse(
            token_ids=ids, tokens=tokens, text=text, max_model_len=self._intake.max_model_len
        )

    def _tokenized(self, prompt: str | Chat, add_special: bool) -> tuple[list[int], str]:
        if isinstance(prompt, str):
            return self._model.token_ids(prompt, add_special, self._intake.max_model_len), ""
        text = self._model.render(prompt)
        return self._model.token_ids(text, add_special=False, max_tokens=self._intake.max_model_len), text

    async def Detokenize(
        self, request: inference_pb2.DetokenizeRequest, context: Context
    ) -> inference_pb2.DetokenizeResponse:
        """Text of token ids."""
        self._intake.check_model(request.model)
        check_tokens("token_ids", request.token_ids, self._model.config.vocab_size)
        text = await self._pool.run(
            len(request.token_ids),
            lambda: self._model.tokenizer.decode(request.token_ids, request.skip_special_tokens),
        )
        return inference_pb2.DetokenizeResponse(text=text)

    async def GetModel(
        self, request: inference_pb2.GetModelRequest, context: Context
    ) -> inference_pb2.GetModelResponse:
        """The served model."""
        self._intake.check_model(request.model)
        identity = self._desk.fleet.membership.identity
        config = self._model.config
        return inference_pb2.GetModelResponse(
            name=self._model.name,
            architecture=config.architecture,
            max_model_len=self._intake.max_model_len,
            vocab_size=config.vocab_size,
            eos_token_ids=config.eos_token_ids,
            has_chat_template=self._model.template is not None,
            block_size=identity.block_size if identity else 0,
            created_unix_s=self._created_unix_s,
        )

    async def ListWorkers(
        self, request: inference_pb2.ListWorkersRequest, context: Context
    ) -> inference_pb2.ListWorkersResponse:
        """The workers that this router knows."""
        fleet = self._desk.fleet
        members = sorted(fleet.membership.members, key=lambda member: member.key)
        return inference_pb2.ListWorkersResponse(
            workers=[convert.status_to_pb(member, fleet.view.num_blocks(member.key)) for member in members],
            role_advice=self._role_advice(),
        )

    async def Abort(self, request: inference_pb2.AbortRequest, context: Context) -> inference_pb2.AbortResponse:
        """End a running request."""
        return inference_pb2.AbortResponse(found=self._running.abort(request.request_id))

    async def Explain(self, request: inference_pb2.ExplainRequest, context: Context) -> inference_pb2.ExplainResponse:
        """How a recent request was placed."""
        desk = self._desk
        found = desk.decisions.of(request.request_id)
        return explanation_to_pb(request.request_id, desk.config.policy, found, desk.clock())


class _Counted:
    """A context manager that counts a request by how it ends; one that is left before its end counts as aborted."""

    def __init__(self, desk: Desk, trace: RequestTrace, request_id: str, deadline_s: float) -> None:
        self._clock = desk.clock
        self._trace = trace
        self._request_id = request_id
        self._deadline_s = deadline_s

    def __enter__(self) -> None:
        return

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        outcome, now_s = "ok", self._clock()
        if isinstance(error, PandoError):
            outcome = outcome_of(error)
            error.request_id = self._request_id
        elif error is not None:
            outcome = "error" if isinstance(error, Exception) else "abort"
        late = outcome == "abort" and now_s >= self._deadline_s - TRANSIT_S
        self._trace.finish("deadline" if late else outcome, now_s)
