"""The error table, every row, both ways."""

from __future__ import annotations

import grpc
import pytest
from google.rpc.status_pb2 import Status

from common.base import errors
from common.base.errors import Leg, PandoError
from common.rpc.errors import (
    METADATA_KEY,
    STANDARD_KEY,
    about,
    detail_of,
    from_detail,
    from_rpc_error,
    status_of,
    status_text,
    trailing_metadata,
)
from pando.v1 import types_pb2

TABLE: list[tuple[type[PandoError], grpc.StatusCode, int, str]] = [
    (errors.InvalidRequest, grpc.StatusCode.INVALID_ARGUMENT, 400, "invalid_request"),
    (errors.PermissionDenied, grpc.StatusCode.PERMISSION_DENIED, 403, "permission_denied"),
    (errors.ModelNotFound, grpc.StatusCode.NOT_FOUND, 404, "model_not_found"),
    (errors.Unsupported, grpc.StatusCode.UNIMPLEMENTED, 501, "unsupported"),
    (errors.Overloaded, grpc.StatusCode.RESOURCE_EXHAUSTED, 429, "overloaded"),
    (errors.Unavailable, grpc.StatusCode.UNAVAILABLE, 503, "unavailable"),
    (errors.NotReady, grpc.StatusCode.UNAVAILABLE, 503, "not_ready"),
    (errors.Draining, grpc.StatusCode.UNAVAILABLE, 503, "draining"),
    (errors.WrongRole, grpc.StatusCode.UNAVAILABLE, 503, "wrong_role"),
    (errors.PeerLost, grpc.StatusCode.UNAVAILABLE, 503, "peer_lost"),
    (errors.StepAborted, grpc.StatusCode.ABORTED, 503, "aborted"),
    (errors.LeaseLost, grpc.StatusCode.ABORTED, 503, "lease_lost"),
    (errors.StaleIncarnation, grpc.StatusCode.ABORTED, 503, "stale_incarnation"),
    (errors.HandoffAborted, grpc.StatusCode.ABORTED, 503, "handoff_aborted"),
    (errors.LayoutMismatch, grpc.StatusCode.FAILED_PRECONDITION, 500, "layout_mismatch"),
    (errors.BlockCorrupt, grpc.StatusCode.DATA_LOSS, 500, "block_corrupt"),
    (errors.DeadlineExceeded, grpc.StatusCode.DEADLINE_EXCEEDED, 504, "deadline_exceeded"),
    (errors.Cancelled, grpc.StatusCode.CANCELLED, 499, "cancelled"),
    (errors.Internal, grpc.StatusCode.INTERNAL, 500, "internal"),
]

LOST = "the connection was lost, or could not be made"


def rpc_error(code: grpc.StatusCode, metadata: tuple[tuple[str, bytes], ...] = (), details: str = "") -> grpc.RpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*metadata), details)


def subclasses(cls: type[PandoError]) -> set[type[PandoError]]:
    return {cls}.union(*(subclasses(child) for child in cls.__subclasses__()))


@pytest.mark.parametrize(("cls", "code", "http", "reason"), TABLE)
def test_each_row_both_ways(cls: type[PandoError], code: grpc.StatusCode, http: int, reason: str) -> None:
    error = cls("why", leg=Leg.TRANSFER, param="p", request_id="r", retry_after_s=1.5)
    assert (status_of(error), error.http_status, error.reason) == (code, http, reason)
    back = from_rpc_error(rpc_error(code, trailing_metadata(error)), Leg.DECODE)  # type: ignore[arg-type]
    assert type(back) is cls
    for name in ("message", "reason", "leg", "param", "request_id", "retry_after_s"):
        assert getattr(back, name) == getattr(error, name), name


def test_the_table_is_complete() -> None:
    ours = {cls for cls in subclasses(PandoError) if cls.__module__ == errors.__name__} - {PandoError}
    assert {row[0] for row in TABLE} == ours


def test_an_own_reason_travels_with_the_code() -> None:
    error = errors.Overloaded("too many", reason="too_many_loans")
    back = from_detail("RESOURCE_EXHAUSTED", detail_of(error))
    assert type(back) is errors.Overloaded and back.reason == "too_many_loans"


def test_a_reason_that_does_not_fit_its_code_is_not_believed() -> None:
    assert type(from_detail("INTERNAL", detail_of(errors.Overloaded("x")))) is errors.Internal


@pytest.mark.parametrize("leg", list(Leg))
def test_legs(leg: Leg) -> None:
    assert from_detail("INTERNAL", detail_of(errors.Internal("x", leg=leg))).leg is leg


@pytest.mark.parametrize(
    ("code", "details", "cls", "message"),
    [
        (grpc.StatusCode.UNAVAILABLE, "Socket closed", errors.PeerLost, LOST),
        (grpc.StatusCode.UNKNOWN, "Stream removed (ipv4:127.0.0.1:1)", errors.PeerLost, LOST),
        (grpc.StatusCode.INTERNAL, "Internal error from Core", errors.PeerLost, LOST),
        (grpc.StatusCode.INTERNAL, "Received RST_STREAM with error code 2", errors.PeerLost, LOST),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", errors.DeadlineExceeded, "the request's time is up"),
        (grpc.StatusCode.CANCELLED, "Channel closed!", errors.Cancelled, "the call was cancelled"),
        (grpc.StatusCode.ABORTED, "gone", errors.StepAborted, "gone"),
        (grpc.StatusCode.UNKNOWN, "gone", errors.Internal, "gone"),
        (grpc.StatusCode.PERMISSION_DENIED, "gone", errors.PermissionDenied, "gone"),
        (grpc.StatusCode.UNAUTHENTICATED, "", errors.Internal, "UNAUTHENTICATED"),
    ],
)
def test_a_status_without_detail_blames_the_leg_that_was_called(
    code: grpc.StatusCode, details: str, cls: type[PandoError], message: str
) -> None:
    failed = rpc_error(code, details=details)
    error = from_rpc_error(failed, Leg.PREFILL)  # type: ignore[arg-type]
    assert (type(error), error.leg, error.message) == (cls, Leg.PREFILL, message)
    assert from_rpc_error(failed, Leg.PREFILL, "h:1").message == f"h:1: {message}"  # type: ignore[arg-type]


def test_other_makes_of_clients_find_the_detail_where_they_look() -> None:
    error = errors.Overloaded("full", retry_after_s=1.5, request_id="r")
    status = Status.FromString(dict(trailing_metadata(error))[STANDARD_KEY])
    assert (status.code, status.message) == (grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], "full")
    detail = types_pb2.ErrorDetail()
    assert status.details[0].Unpack(detail)
    assert (detail.reason, detail.retry_after_s, detail.request_id) == ("overloaded", 1.5, "r")


@pytest.mark.parametrize("letter", ["x", "é", "字", "😀"])
def test_what_callers_make_long_is_cut_before_it_costs_the_status(letter: str) -> None:
    """Peers take 8 KiB, in which binary fields are base64 and a status' text has three letters for a byte."""
    long = letter * 100_000
    error = errors.InvalidRequest(long, reason="why", param=long, request_id=long)
    metadata = trailing_metadata(error)
    assert sum(len(value) * 4 / 3 for _, value in metadata) + 3 * len(status_text(error).encode()) < 7800
    back = from_rpc_error(rpc_error(grpc.StatusCode.INVALID_ARGUMENT, metadata), Leg.DECODE)  # type: ignore[arg-type]
    assert (type(back), back.reason) == (errors.InvalidRequest, "why")
    for whole in (back.message, back.param, back.request_id, status_text(error)):
        assert whole.endswith("…") and set(whole[:-1]) == {letter}


def test_the_leg_that_failed_further_on_stays() -> None:
    metadata = trailing_metadata(errors.PeerLost("x", leg=Leg.STORE))
    assert metadata[0][0] == METADATA_KEY
    assert from_rpc_error(rpc_error(grpc.StatusCode.UNAVAILABLE, metadata), Leg.DECODE).leg is Leg.STORE  # type: ignore[arg-type]


def test_errors_name_their_request_once() -> None:
    with pytest.raises(errors.Internal) as named, about("outer"), about("inner"):
        raise errors.Internal("x")
    assert named.value.request_id == "inner"
