"""The one table between our error tree and gRPC, used in both directions.

A failed RPC carries its status code, a message for people, and an `ErrorDetail` in the trailing metadata
`pando-error-bin`, from which the other side rebuilds the same class. The same detail is in `grpc-status-details-bin`,
where clients of other makes (grpcurl, the gRPC libraries of other languages) look for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.status_pb2 import Status

from common.base import errors
from common.base.errors import Leg, PandoError
from pando.v1 import types_pb2

METADATA_KEY = "pando-error-bin"
STANDARD_KEY = "grpc-status-details-bin"
_STANDARD_BYTES, _MESSAGE_BYTES, _WORD_BYTES = 500, 2048, 256
"""What travels of a message in the standard places and in ours, and of ids and names of fields."""

_LEG_TO_PB: dict[Leg, types_pb2.Leg] = {
    Leg.NONE: types_pb2.LEG_UNSPECIFIED,
    Leg.GATEWAY: types_pb2.LEG_GATEWAY,
    Leg.ROUTER: types_pb2.LEG_ROUTER,
    Leg.DECODE: types_pb2.LEG_DECODE,
    Leg.PREFILL: types_pb2.LEG_PREFILL,
    Leg.TRANSFER: types_pb2.LEG_TRANSFER,
    Leg.STORE: types_pb2.LEG_STORE,
}
_LEG_FROM_PB = {value: key for key, value in _LEG_TO_PB.items()}

_CLASSES: tuple[type[PandoError], ...] = (
    errors.InvalidRequest,
    errors.PermissionDenied,
    errors.ModelNotFound,
    errors.Unsupported,
    errors.Overloaded,
    errors.NotReady,
    errors.Draining,
    errors.WrongRole,
    errors.PeerLost,
    errors.Unavailable,
    errors.LeaseLost,
    errors.StaleIncarnation,
    errors.HandoffAborted,
    errors.StepAborted,
    errors.LayoutMismatch,
    errors.BlockCorrupt,
    errors.DeadlineExceeded,
    errors.Cancelled,
    errors.Internal,
)
_BY_REASON = {cls.default_reason: cls for cls in _CLASSES}
_BY_CODE: dict[str, type[PandoError]] = {}
for _cls in _CLASSES:
    _BY_CODE.setdefault(_cls.grpc_code, _cls)
_BY_CODE["UNAVAILABLE"] = errors.PeerLost  # a bare UNAVAILABLE comes from the channel: nobody answered
_BY_CODE["ABORTED"] = errors.StepAborted
_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}
_BARE = {
    "UNAVAILABLE": "the connection was lost, or could not be made",
    "DEADLINE_EXCEEDED": "the request's time is up",
    "CANCELLED": "the call was cancelled",
}
"""What statuses mean that come from gRPC itself: its own words ("Socket closed") say nothing to users."""
_BROKE_OFF = ("Stream removed", "RST_STREAM", "Internal error from Core")
"""gRPC's words for calls that broke and to which it gives other statuses (UNKNOWN, INTERNAL).

The last: a message was to be sent, and the call was over."""


@contextmanager
def about(request_id: str) -> Iterator[None]:
    """Name the request in the errors that leave the `with`, unless they name one."""
    try:
        yield
    except PandoError as error:
        error.request_id = error.request_id or request_id
        raise


def cancelled_elsewhere() -> bool:
    """Whether a CancelledError that a call has raised means the call, not the current task.

    That is how grpc.aio shows a CANCELLED of the other side, and a channel that was closed under its calls.
    """
    task = asyncio.current_task()
    return task is not None and not task.cancelling()


class calling:
    """Turn what a call inside the `with` raises into our errors.

    Args:
        leg: the blame where the other side named none.
        cut_off: says that the call was cancelled, by whoever but the current task: a PeerLost.
        on_cut: called before that is raised; may raise what it means instead.
    """

    __slots__ = ("_cut_off", "_leg", "_on_cut")

    def __init__(self, leg: Leg, cut_off: str, on_cut: Callable[[], None] | None = None) -> None:
        self._leg = leg
        self._cut_off = cut_off
        self._on_cut = on_cut

    def __enter__(self) -> object:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, grpc.aio.AioRpcError):
            raise from_rpc_error(error, self._leg) from error
        if isinstance(error, asyncio.CancelledError) and cancelled_elsewhere():
            if self._on_cut is not None:
                self._on_cut()
            raise errors.PeerLost(self._cut_off, leg=self._leg) from None


def status_of(error: PandoError) -> grpc.StatusCode:
    """The gRPC code of an error."""
    code: grpc.StatusCode = getattr(grpc.StatusCode, error.grpc_code)
    return code


def detail_of(error: PandoError) -> types_pb2.ErrorDetail:
    """The error as it travels; text, which may be the caller's, is cut. The class travels as `grpc code + reason`."""
    return types_pb2.ErrorDetail(
        reason=_cut(error.reason, _WORD_BYTES),
        leg=_LEG_TO_PB[error.leg],
        request_id=_cut(error.request_id, _WORD_BYTES),
        message=_cut(error.message, _MESSAGE_BYTES),
        param=_cut(error.param, _WORD_BYTES),
        retry_after_s=error.retry_after_s,
    )


def status_text(error: PandoError) -> str:
    """The message that goes with the status; where it is long, the beginning of it."""
    return _cut(error.message, _STANDARD_BYTES)


def trailing_metadata(error: PandoError) -> tuple[tuple[str, bytes], ...]:
    """Trailing metadata for a failed RPC. Peers take 8 KiB of it, and with more the status is lost as well: so the
    standard form has the message once."""
    detail = detail_of(error)
    ours = (METADATA_KEY, detail.SerializeToString())
    detail.message = ""
    packed = AnyMessage()
    packed.Pack(detail)
    status = Status(code=status_of(error).value[0], message=status_text(error), details=[packed])
    return ours, (STANDARD_KEY, status.SerializeToString())


def from_detail(code: str, detail: types_pb2.ErrorDetail) -> PandoError:
    """Rebuild an error from its gRPC code name and detail."""
    cls = _BY_REASON.get(detail.reason)
    if cls is None or cls.grpc_code != code:
        cls = _BY_CODE.get(code, errors.Internal)
    return cls(
        detail.message,
        reason=detail.reason,
        leg=_LEG_FROM_PB.get(detail.leg, Leg.NONE),
        request_id=detail.request_id,
        param=detail.param,
        retry_after_s=detail.retry_after_s,
    )


def from_code(code: int, detail: types_pb2.ErrorDetail) -> PandoError:
    """As `from_detail`, from the number of a gRPC code."""
    return from_detail(_NAMES.get(code, "UNKNOWN"), detail)


def from_rpc_error(error: grpc.aio.AioRpcError, leg: Leg, address: str = "") -> PandoError:
    """What a failed call means here. When the other side named none, `leg` is the blame, and `address` is told."""
    code = error.code().name
    for key, value in error.trailing_metadata() or ():
        if key == METADATA_KEY and isinstance(value, bytes):
            rebuilt = from_detail(code, types_pb2.ErrorDetail.FromString(value))
            rebuilt.leg = rebuilt.leg or leg
            return rebuilt
    details = error.details() or ""
    if code in ("UNKNOWN", "INTERNAL") and any(words in details for words in _BROKE_OFF):
        code = "UNAVAILABLE"
    cls = _BY_CODE.get(code, errors.Internal)
    words = _BARE.get(code) or details or code
    return cls(f"{address}: {words}" if address else words, leg=leg)


def _cut(text: str, num_bytes: int) -> str:
    """The beginning of a text that is too long, in at most so many bytes."""
    encoded = text.encode()
    return text if len(encoded) <= num_bytes else encoded[: num_bytes - 3].decode(errors="ignore") + "…"
