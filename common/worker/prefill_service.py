"""The RPC of the prefill role: check -> convert -> serve the handoff."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from common.base.clock import Clock
from common.base.errors import InvalidRequest
from common.base.roles import PREFILL
from common.grammar.store import GrammarStore
from common.rpc.errors import about
from common.rpc.server import Context
from common.worker.handoff_sender import HandoffSender
from common.worker.job import Limits, constrain, request_from_pb
from common.worker.service import sources_from_pb
from common.worker.state import WorkerState
from pando.v1 import worker_pb2, worker_pb2_grpc


class PrefillServicer(worker_pb2_grpc.PrefillServiceServicer):
    """`pando.v1.PrefillService`."""

    def __init__(
        self, state: WorkerState, sender: HandoffSender, limits: Limits, grammars: GrammarStore, clock: Clock
    ) -> None:
        self._state = state
        self._sender = sender
        self._limits = limits
        self._grammars = grammars
        self._clock = clock

    async def Handoff(
        self, request_iterator: AsyncIterator[worker_pb2.HandoffRequest], context: Context
    ) -> AsyncGenerator[worker_pb2.HandoffResponse, None]:
        """See the proto."""
        # Before any refusal: a caller whose first message finds the call over learns no reason, only that it broke.
        opening = await anext(request_iterator, None)
        self._state.check_takes_work(PREFILL)
        if opening is None or opening.WhichOneof("message") != "start":
            raise InvalidRequest("a handoff opens with start")
        start = opening.start
        with about(start.request.request_id):
            self._state.identity.check(start.identity)
            request = request_from_pb(start.request, self._limits, self._clock())
            await constrain(request, self._grammars)
            sources, num_held = sources_from_pb(start.sources), start.num_blocks_held
            with self._state.roles.running(PREFILL, request.request_id):
                async with aclosing(self._sender.serve(request, num_held, sources, start.host_id)) as messages:
                    async for message in messages:
                        yield message
                        if message.WhichOneof("message") == "first_token":
                            # In here, so that the loans live until decode has read everything and half-closes.
                            async for _ in request_iterator:
                                pass
