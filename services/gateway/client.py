"""The gateway's view of the cluster: calls that any of its routers serves, and streams that outlive one.

::

    pick a router -> call -> frames ... end
        ^              |
        |              '-- the router is gone, going down, or has no workers: it is down until a probe finds it serving
        '--------------'   nothing came yet: the next router, each once; with none left, wait for one that was lost
                           something came:   the next router goes on from there; with none left, wait for one to serve

Errors that a router gives for a request or for its workers are final: it has retried what can be retried.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import TypeVar

from common.base.clock import Clock, monotonic
from common.base.comma_list import split_list
from common.base.config import TimeoutsConfig
from common.base.errors import DeadlineExceeded, Leg, NotReady, PandoError, PeerLost, Unavailable
from common.base.ids import new_seed
from common.base.logging import get_logger
from common.base.merge import merge
from common.base.tasks import Tasks
from common.rpc.channel import ChannelPool
from pando.v1 import inference_pb2
from services.gateway.course import Course
from services.gateway.router_rpc import RouterRpc
from services.gateway.routers import Routers

Frames = AsyncGenerator[inference_pb2.GenerateResponse, None]
T = TypeVar("T")
PROBE_PAUSE_S = 0.2
FRAMES_HELD = 64


class RouterClient:
    """Calls to the routers of one cluster. Lives on one asyncio loop.

    Args:
        address: host:port of a router, or several in a comma list.
        timeouts: the cluster's limits, scaled; `request_s` is the deadline of every generation.
        probe_s: seconds for a health probe.
        wait_s: seconds that a stream which lost its router waits for one to serve; what has not begun waits so long
            from the loss of a router that served.
        new_seed: for requests that bring none.
        on_move: told of every call that goes on at another router, and whether its stream had begun.
    """

    def __init__(
        self,
        address: str,
        timeouts: TimeoutsConfig,
        probe_s: float,
        wait_s: float = 10.0,
        *,
        clock: Clock = monotonic,
        new_seed: Callable[[], int] = new_seed,
    ) -> None:
        self.address = address
        self.on_move: Callable[[bool], None] = lambda begun: None
        self._channels = ChannelPool(timeouts)
        self._routers = Routers(split_list(address))
        self._rpcs = {one: RouterRpc(one, self._channels, probe_s) for one in self._routers.addresses}
        self._request_s = timeouts.request_s
        self._wait_s = wait_s
        self._clock = clock
        self._new_seed = new_seed
        self._served = asyncio.Event()
        self._have_served: set[str] = set()
        self._back_by_s = -math.inf
        self._probes = Tasks(get_logger(), "probing a router failed")

    async def generate(self, request: inference_pb2.GenerateRequest, timeout_s: float | None = None) -> Frames:
        """Frames of one request. Closing the iterator, or cancelling the task, cancels its calls at once.

        Args:
            request: what to generate; its `request_id` is set.
            timeout_s: the caller's deadline; the server's own caps it.

        Raises:
            PandoError: whatever ended it.
        """
        limit_s = self._request_s if timeout_s is None else min(timeout_s, self._request_s)
        async with aclosing(self._run(Course(request, self._new_seed()), self._clock() + limit_s)) as frames:
            async for frame in frames:
                yield frame

    async def tokenize(self, request: inference_pb2.TokenizeRequest) -> inference_pb2.TokenizeResponse:
        """Token ids of a text or chat. Raises PandoError."""
        return await self._unary(lambda rpc: rpc.tokenize(request, self._request_s))

    async def detokenize(self, model: str, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        """Text of token ids. Raises PandoError."""
        request = inference_pb2.DetokenizeRequest(
            model=model, token_ids=token_ids, skip_special_tokens=skip_special_tokens
        )
        return (await self._unary(lambda rpc: rpc.detokenize(request, self._request_s))).text

    async def get_model(self, name: str = "") -> inference_pb2.GetModelResponse:
        """Facts about a model; "" is the served one. Raises ModelNotFound and other PandoErrors."""
        request = inference_pb2.GetModelRequest(model=name)
        return await self._unary(lambda rpc: rpc.get_model(request, self._request_s))

    async def check_ready(self) -> None:
        """Return if a router serves.

        Raises:
            NotReady: none does, or answers within the probe's time; the message says which.
        """
        answers = await asyncio.gather(*(rpc.check_ready() for rpc in self._rpcs.values()), return_exceptions=True)
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        if len(errors) == len(answers):
            raise NotReady("; ".join(str(error) for error in errors), leg=Leg.ROUTER)

    async def close(self) -> None:
        """Close the channels; running calls end as cancelled."""
        await self._probes.cancel()
        await self._channels.close()

    async def _run(self, course: Course, deadline_s: float) -> Frames:
        """One router after another, until the course has its end. Raises PandoError."""
        failures = _Failures()
        while not course.finished:
            address = await self._next_router(course, failures)
            num_before = course.num_tokens
            try:
                async with aclosing(self._call(address, course, deadline_s)) as frames:
                    async for frame in frames:
                        yield frame
            except Unavailable as error:
                if error.leg is not Leg.ROUTER:
                    raise
                self._note_failure(address, course, error)
                give_up_s = min(deadline_s, self._clock() + self._wait_s)
                failures.add(address, error, give_up_s, afresh=course.num_tokens > num_before)
            if course.begun and course.num_choices > 1 and not course.finished:
                async for frame in self._run_apart(course.parts(), deadline_s):
                    yield frame

    async def _run_apart(self, parts: Sequence[Course], deadline_s: float) -> Frames:
        """Go on with several choices, each by itself; the first leads, so that the prompt is computed once."""
        runs = [self._run(part, deadline_s) for part in parts]
        async with aclosing(merge(runs[0], lambda: runs[1:], FRAMES_HELD)) as frames:
            async for frame in frames:
                yield frame

    async def _call(self, address: str, course: Course, deadline_s: float) -> Frames:
        left_s = deadline_s - self._clock()
        if left_s <= 0:
            raise DeadlineExceeded("the request's time is up", leg=Leg.GATEWAY)
        self._routers.began(address)
        try:
            async with aclosing(self._rpcs[address].generate(course.next_call(), left_s)) as frames:
                async for frame in frames:
                    self._have_served.add(address)
                    if course.take(frame):
                        yield frame
        finally:
            self._routers.ended(address)
        if not course.finished:
            raise PeerLost("the router's stream ended before its finish", leg=Leg.ROUTER)

    async def _next_router(self, course: Course, failures: _Failures) -> str:
        """A router to call; waits for one where that makes sense. Raises the last error.

        A stream that runs always waits. A new request does while a router that served and was lost may be restarted;
        one that says that it has no workers is not lost.
        """
        while (address := self._routers.pick(failures.tried)) is None:
            assert failures.last is not None, "no router was tried"
            give_up_s = failures.give_up_s if course.begun else min(failures.give_up_s, self._back_by_s)
            left_s = give_up_s - self._clock()
            if left_s <= 0:
                raise failures.last
            if not self._routers.any_up:
                await self._until_one_serves(left_s)
            failures.tried.clear()
        return address

    async def _until_one_serves(self, timeout_s: float) -> None:
        self._served.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._served.wait()

    async def _unary(self, call: Callable[[RouterRpc], Awaitable[T]]) -> T:
        """Ask one router after another, each once. Raises PandoError."""
        tried: set[str] = set()
        last: PandoError | None = None
        while (address := self._routers.pick(tried)) is not None:
            try:
                return await call(self._rpcs[address])
            except Unavailable as error:
                self._mark_down(address, error)
                tried.add(address)
                last = error
        assert last is not None, "a gateway without a router"
        raise last

    def _note_failure(self, address: str, course: Course, error: PandoError) -> None:
        self._mark_down(address, error)
        self.on_move(course.begun)
        get_logger().warning(
            "a router failed a call", router=address, reason=error.reason, error=error.message, begun=course.begun
        )

    def _mark_down(self, address: str, error: PandoError) -> None:
        if self._routers.failed(address):
            get_logger().warning("a router does not serve", router=address, reason=error.reason, error=error.message)
            if address in self._have_served and not isinstance(error, NotReady):
                self._back_by_s = self._clock() + self._wait_s
            self._probes.spawn(self._probe(address))

    async def _probe(self, address: str) -> None:
        """Ask a router that is down until it serves."""
        while True:
            await asyncio.sleep(PROBE_PAUSE_S)
            try:
                await self._rpcs[address].check_ready()
            except NotReady:
                continue
            get_logger().info("a router serves again", router=address)
            self._routers.serves(address)
            self._served.set()
            return


@dataclass(slots=True)
class _Failures:
    """Of one course since it last came forward.

    Attributes:
        tried: routers that failed it.
        last: error.
        give_up_s: when waiting for a router makes no sense any more.
    """

    tried: set[str] = field(default_factory=set)
    last: PandoError | None = None
    give_up_s: float = 0.0

    def add(self, address: str, error: PandoError, give_up_s: float, *, afresh: bool) -> None:
        """A router failed; `afresh` forgives what was before, and only then, or at first, the time to give up moves."""
        if afresh or self.last is None:
            self.tried.clear()
            self.give_up_s = give_up_s
        self.tried.add(address)
        self.last = error
