"""What leaves a serving process when a handler raises. Apart from errors.py, since clients do not pay for logging."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from common.base.errors import Internal, InvalidRequest, PandoError
from common.base.logging import get_logger


def at_the_edge(error: Exception) -> PandoError:
    """What a handler's exception leaves as: anything that is no PandoError is a bug, logged here and INTERNAL there."""
    if isinstance(error, PandoError):
        return error
    if isinstance(error, DecodeError):
        return InvalidRequest("a message cannot be parsed", reason="bad_message")
    get_logger().error("unhandled error in an RPC handler", exc_info=error)
    return Internal(f"internal error: {type(error).__name__}")
