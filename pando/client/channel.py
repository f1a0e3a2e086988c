"""How the clients' channels are set up: keepalives that notice a dead router within seconds, quick reconnects."""

from __future__ import annotations

from typing import Any, cast

import grpc

from common.base.errors import Leg, PandoError
from common.rpc.errors import from_rpc_error

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", 2_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.http2.ping_timeout_ms", 2_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)


def channel_target(target: str) -> str:
    """What gRPC is told for a router's host:port, or a comma list of IPv4 ones: the first that answers is used."""
    if "," not in target:
        return target
    return "ipv4:" + ",".join(one.strip().replace("localhost", "127.0.0.1") for one in target.split(","))


def as_pando_error(error: grpc.RpcError, target: str) -> PandoError:
    """What a failed call means. One that nobody answered is PeerLost of the leg router."""
    # The errors of synchronous calls have the same accessors as those of grpc.aio.
    return from_rpc_error(cast(Any, error), Leg.ROUTER, target)
