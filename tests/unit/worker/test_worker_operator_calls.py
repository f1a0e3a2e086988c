"""Calls that change a worker for everybody are for operators, whichever service they belong to."""

from __future__ import annotations

from typing import Any

import pytest

from common.base.errors import PermissionDenied
from common.rpc.operator import AUTHORIZATION, OperatorGuard
from common.worker.service import WorkerServicer
from pando.v1 import worker_pb2

TOKEN = "secret-token"


class Call:
    """Who calls, as gRPC tells it."""

    def __init__(self, peer: str, authorization: str = "") -> None:
        self._peer = peer
        self._metadata = ((AUTHORIZATION, authorization),) if authorization else None

    def peer(self) -> str:
        return self._peer

    def invocation_metadata(self) -> tuple[tuple[str, str], ...] | None:
        return self._metadata


HERE, ELSEWHERE = Call("ipv4:127.0.0.1:9"), Call("ipv4:10.0.0.7:9")


@pytest.mark.parametrize(
    ("token", "call"),
    [("", ELSEWHERE), (TOKEN, HERE), (TOKEN, Call("ipv4:127.0.0.1:9", "Bearer another-token"))],
    ids=["not local", "no token", "another token"],
)
@pytest.mark.parametrize("method", ["Configure", "FlushCache"])
async def test_others_are_refused_before_anything_is_touched(token: str, call: Any, method: str) -> None:
    nothing: Any = None  # what is touched fails with another error
    servicer = WorkerServicer(nothing, nothing, nothing, OperatorGuard(token))
    request = getattr(worker_pb2, f"{method}Request")()
    with pytest.raises(PermissionDenied):
        await getattr(servicer, method)(request, call)


@pytest.mark.parametrize(("token", "call"), [("", HERE), (TOKEN, Call("ipv4:10.0.0.7:9", f"Bearer {TOKEN}"))])
async def test_operators_get_through(token: str, call: Any) -> None:
    nothing: Any = None
    with pytest.raises(AttributeError):
        await WorkerServicer(nothing, nothing, nothing, OperatorGuard(token)).FlushCache(
            worker_pb2.FlushCacheRequest(), call
        )
