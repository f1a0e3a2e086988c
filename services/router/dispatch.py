"""All choices of a request as one stream.

The first choice goes ahead alone: when its first token comes, the worker that computed the prompt holds its blocks, and
the decode worker holds them or is about to. The others are planned with that knowledge, so that n choices cost one
prefill.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from common.base.merge import merge
from services.router.choice import Choice, Hints
from services.router.desk import Desk
from services.router.job import Job
from services.router.metrics import RequestTrace
from services.router.output import Frame
from services.router.running import Ticket

FRAMES_HELD = 64


def run(desk: Desk, job: Job, ticket: Ticket, trace: RequestTrace) -> AsyncGenerator[Frame, None]:
    """The frames of all choices as they come. Reading them raises PandoError; closing them cancels what runs."""
    ticket.on_abort(desk.fleet.wake)
    desk.budget.request()
    hints = Hints()
    leader = Choice(desk, job, job.wish.first_choice, ticket=ticket, trace=trace, hints=hints)

    def followers() -> list[AsyncGenerator[Frame, None]]:
        if leader.placement:
            chosen = leader.placement.plan
            hints.matches |= {worker.key: len(job.hashes) for worker in (chosen.decode, chosen.prefill) if worker}
            hints.landing |= {chosen.decode.key} if chosen.prefill else set()
        others = range(job.wish.first_choice + 1, job.wish.first_choice + job.wish.n)
        return [Choice(desk, job, index, ticket=ticket, trace=trace, hints=hints).frames() for index in others]

    return leader.frames() if job.wish.n == 1 else merge(leader.frames(), followers, FRAMES_HELD)
