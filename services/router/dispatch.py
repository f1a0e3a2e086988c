"""All choices of a request as one stream.

The first choice goes ahead alone: when its first token comes, its workers hold the prompt's blocks, and the others are
planned with that knowledge, so that n choices cost one prefill.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from services.router.choice import Choice, Desk, Frame
from services.router.job import Job
from services.router.merge import merge
from services.router.metrics import RequestTrace
from services.router.prefix_view import WorkerKey
from services.router.running import Ticket

FRAMES_HELD = 64


async def run(desk: Desk, job: Job, ticket: Ticket, trace: RequestTrace) -> AsyncGenerator[Frame, None]:
    """Yield the frames of all choices as they come. Raises PandoError; leaving it cancels what runs."""
    ticket.on_abort(desk.fleet.wake)
    hints: dict[WorkerKey, int] = {}
    leader = Choice(desk, job, 0, ticket=ticket, trace=trace, hints=hints)

    def followers() -> list[AsyncGenerator[Frame, None]]:
        if leader.placement:
            chosen = leader.placement.plan
            hints.update({worker.key: len(job.hashes) for worker in (chosen.decode, chosen.prefill) if worker})
        return [Choice(desk, job, index, ticket=ticket, trace=trace, hints=hints).frames() for index in range(1, job.n)]

    frames = leader.frames() if job.n == 1 else merge(leader.frames(), followers, FRAMES_HELD)
    async with aclosing(frames):
        async for frame in frames:
            yield frame
