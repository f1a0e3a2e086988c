"""What the gateway remembers about one HTTP request while it runs: its id, when it came, how it ended."""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from common.base.errors import DeadlineExceeded, PandoError
from services.gateway.tenants import Tenant

_KEY = "pando"
_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class Outcome(StrEnum):
    """How a request ended, as counted."""

    OK = "ok"
    CLIENT_ERROR = "client_error"
    SERVER_ERROR = "server_error"
    DISCONNECT = "disconnect"


@dataclass(slots=True)
class RequestContext:
    """One HTTP request.

    Attributes:
        request_id: ours; the one that the router sees.
        header_id: value of `x-request-id` on the answer: the client's if it is sane, else ours.
        started_s: when it came, by the gateway's clock.
        status: HTTP status once it is sent, else 0.
        error: reason of the error that ended it, or "".
        has_limit: its client said how long it may take.
        is_late: that time was up, or could not suffice.
        route: path of the route that answers, as the table has it.
        headers: further headers of the answer.
        outcome: set where the status does not tell (a stream that failed, a client that left).
        tenant: whose request it is.
    """

    request_id: str
    header_id: str
    started_s: float
    status: int = 0
    error: str = ""
    has_limit: bool = False
    is_late: bool = False
    route: str = "unmatched"
    headers: dict[str, str] = field(default_factory=dict)
    outcome: Outcome | None = None
    tenant: Tenant = field(default_factory=Tenant)

    def fail(self, error: PandoError) -> None:
        """Remember what ended it."""
        self.error = error.reason
        self.is_late = self.has_limit and isinstance(error, DeadlineExceeded)

    def final_outcome(self) -> Outcome:
        """What is counted when the request is over."""
        if self.outcome is not None:
            return self.outcome
        return outcome_of(self.status)


def outcome_of(status: int) -> Outcome:
    """How an HTTP status counts; 499 is a request that somebody aborted."""
    if status == 499:
        return Outcome.DISCONNECT
    if 400 <= status < 500 or status == 501:
        return Outcome.CLIENT_ERROR
    return Outcome.OK if 0 < status < 400 else Outcome.SERVER_ERROR


def sane_id(header: str | None) -> str:
    """The client's request id if it can be logged and sent back as it is, else ""."""
    return header if header and _SANE_ID.fullmatch(header) else ""


def attach(scope: MutableMapping[str, Any], context: RequestContext) -> None:
    """Put the context where `context_of` finds it."""
    scope[_KEY] = context


def context_of(scope: MutableMapping[str, Any]) -> RequestContext:
    """The context of a request that came through the edge."""
    context = scope[_KEY]
    assert isinstance(context, RequestContext)
    return context
