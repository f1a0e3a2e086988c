"""The errors that clients raise: the cluster's own tree, drawn in `common.base.errors`.

`PandoError` catches all of them. Each has `message`, a stable `reason`, the `param` at fault, the `leg` of the
request's path that failed, `request_id` and `retry_after_s`.
"""

from common.base.errors import (
    BlockCorrupt,
    Cancelled,
    DeadlineExceeded,
    Draining,
    HandoffAborted,
    Internal,
    InvalidRequest,
    LayoutMismatch,
    LeaseLost,
    Leg,
    ModelNotFound,
    NotReady,
    Overloaded,
    PandoError,
    PeerLost,
    PermissionDenied,
    StaleIncarnation,
    StepAborted,
    Unavailable,
    Unsupported,
)

__all__ = [
    "BlockCorrupt",
    "Cancelled",
    "DeadlineExceeded",
    "Draining",
    "HandoffAborted",
    "Internal",
    "InvalidRequest",
    "LayoutMismatch",
    "LeaseLost",
    "Leg",
    "ModelNotFound",
    "NotReady",
    "Overloaded",
    "PandoError",
    "PeerLost",
    "PermissionDenied",
    "StaleIncarnation",
    "StepAborted",
    "Unavailable",
    "Unsupported",
]
