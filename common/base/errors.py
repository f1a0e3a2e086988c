"""The error tree: every operating error that crosses a function or a process has one class here.

::

    PandoError
    ├── InvalidRequest        the caller's request can never work            INVALID_ARGUMENT     400
    ├── PermissionDenied      the caller may not do this                     PERMISSION_DENIED    403
    ├── ModelNotFound         no such model                                  NOT_FOUND            404
    ├── Unsupported           a valid wish that this build cannot grant      UNIMPLEMENTED        501
    ├── Overloaded            a bound is reached; try again later            RESOURCE_EXHAUSTED   429
    ├── Unavailable           this process cannot serve it now               UNAVAILABLE          503
    │   ├── NotReady              still starting, or no worker
    │   ├── Draining              going down, takes nothing new
    │   ├── WrongRole             has not the role that this needs
    │   └── PeerLost              another process died, froze or hung up
    ├── StepAborted           redo the step that failed                      ABORTED              503
    │   ├── LeaseLost             the lender ended the lease
    │   ├── StaleIncarnation      the address now belongs to another life
    │   └── HandoffAborted        prefill gave up the handoff
    ├── LayoutMismatch        two workers disagree on bytes or numerics      FAILED_PRECONDITION  500
    ├── BlockCorrupt          a block's bytes are not what was promised      DATA_LOSS            500
    ├── DeadlineExceeded      time is up                                     DEADLINE_EXCEEDED    504
    ├── Cancelled             the caller went away or aborted                CANCELLED            499
    └── Internal              anything else                                  INTERNAL             500

Expected outcomes (a miss, no room right now) are values, not exceptions; bugs are asserts.
An error names the *leg* of the request's path that failed, so that blame and retry hit the right one.
The table from class to gRPC code and HTTP status lives on the classes; `common.rpc.errors` applies it.
"""

from __future__ import annotations

from enum import StrEnum


class Leg(StrEnum):
    """The part of a request's path that failed."""

    NONE = ""
    GATEWAY = "gateway"
    ROUTER = "router"
    DECODE = "decode"
    PREFILL = "prefill"
    TRANSFER = "transfer"
    STORE = "store"


class PandoError(Exception):
    """Base of all operating errors.

    Args:
        message: one sentence for a person; never contains prompt text.
        reason: stable snake_case identifier for programs; defaults to the class's own.
        leg: the part of the path that failed.
        param: the request field at fault, for InvalidRequest.
        request_id: filled in by the edge that knows it.
        retry_after_s: for Overloaded: when trying again makes sense.
    """

    grpc_code: str = "INTERNAL"
    http_status: int = 500
    default_reason: str = "internal"

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        leg: Leg = Leg.NONE,
        param: str = "",
        request_id: str = "",
        retry_after_s: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason
        self.leg = leg
        self.param = param
        self.request_id = request_id
        self.retry_after_s = retry_after_s


class InvalidRequest(PandoError):
    """The request can never work as it is."""

    grpc_code, http_status, default_reason = "INVALID_ARGUMENT", 400, "invalid_request"


class PermissionDenied(PandoError):
    """The caller may not do this: a token is missing or wrong, or it comes from the wrong place."""

    grpc_code, http_status, default_reason = "PERMISSION_DENIED", 403, "permission_denied"


class ModelNotFound(PandoError):
    """No such model is served here."""

    grpc_code, http_status, default_reason = "NOT_FOUND", 404, "model_not_found"


class Unsupported(PandoError):
    """A valid wish that this build or backend cannot grant."""

    grpc_code, http_status, default_reason = "UNIMPLEMENTED", 501, "unsupported"


class Overloaded(PandoError):
    """A configured bound is reached; the client may try again after `retry_after_s`."""

    grpc_code, http_status, default_reason = "RESOURCE_EXHAUSTED", 429, "overloaded"


class Unavailable(PandoError):
    """This process cannot serve the request now; another may."""

    grpc_code, http_status, default_reason = "UNAVAILABLE", 503, "unavailable"


class NotReady(Unavailable):
    """Still starting, or there is no worker for the job."""

    default_reason = "not_ready"


class Draining(Unavailable):
    """Going down; takes nothing new."""

    default_reason = "draining"


class WrongRole(Unavailable):
    """The worker has not, or no longer, the role that the request needs."""

    default_reason = "wrong_role"


class PeerLost(Unavailable):
    """Another process died, froze or hung up."""

    default_reason = "peer_lost"


class StepAborted(PandoError):
    """The step failed for a reason that ends with it; the caller redoes the step."""

    grpc_code, http_status, default_reason = "ABORTED", 503, "aborted"


class LeaseLost(StepAborted):
    """The lender ended the lease; nothing read under it may be used."""

    default_reason = "lease_lost"


class StaleIncarnation(StepAborted):
    """The address now belongs to another life of the process."""

    default_reason = "stale_incarnation"


class HandoffAborted(StepAborted):
    """Prefill gave up the handoff; what landed and verified stays usable."""

    default_reason = "handoff_aborted"


class LayoutMismatch(PandoError):
    """Two workers disagree on block bytes, namespace or numerics: an operator must look."""

    grpc_code, http_status, default_reason = "FAILED_PRECONDITION", 500, "layout_mismatch"


class BlockCorrupt(PandoError):
    """A block's bytes are not what its owner promised: drop it and recompute."""

    grpc_code, http_status, default_reason = "DATA_LOSS", 500, "block_corrupt"


class DeadlineExceeded(PandoError):
    """The request's time is up."""

    grpc_code, http_status, default_reason = "DEADLINE_EXCEEDED", 504, "deadline_exceeded"


class Cancelled(PandoError):
    """The caller went away, or somebody aborted the request."""

    grpc_code, http_status, default_reason = "CANCELLED", 499, "cancelled"


class Internal(PandoError):
    """A bug or an unforeseen failure."""
