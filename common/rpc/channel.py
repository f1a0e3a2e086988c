"""Client channels: one per address, with keepalives that notice a dead or frozen peer within 3 s."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc

from common.base.config import TimeoutsConfig

S = TypeVar("S")
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
MAX_CHANNELS = 1024
RECONNECT_MS = 200
"""Longest pause between two tries to connect: a process that comes back is found about as soon as it listens."""


def keepalive_options(timeouts: TimeoutsConfig) -> list[tuple[str, int]]:
    """gRPC options shared by clients and servers; `ping_timeout_ms` caps what otherwise is 60 s."""
    keepalive_ms = int(timeouts.keepalive_s * 1000)
    timeout_ms = int(timeouts.keepalive_timeout_s * 1000)
    return [
        ("grpc.keepalive_time_ms", keepalive_ms),
        ("grpc.keepalive_timeout_ms", timeout_ms),
        ("grpc.http2.ping_timeout_ms", timeout_ms),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.keepalive_permit_without_calls", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", keepalive_ms // 2),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", keepalive_ms // 2),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ]


@dataclass(slots=True)
class _Open:
    """A channel, and the stubs on it by their classes."""

    channel: grpc.aio.Channel
    stubs: dict[Callable[[grpc.aio.Channel], Any], Any] = field(default_factory=dict)


class ChannelPool:
    """Channels by address, opened on first use. Lives on one asyncio loop.

    At most `MAX_CHANNELS`; the one that was not asked for the longest is closed, with whatever still runs on it.
    """

    def __init__(self, timeouts: TimeoutsConfig) -> None:
        reconnect_ms = int(timeouts.connect_s * 1000)
        self._options = [
            *keepalive_options(timeouts),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", reconnect_ms),
            ("grpc.max_reconnect_backoff_ms", RECONNECT_MS),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        self._channels: OrderedDict[str, _Open] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    def get(self, address: str) -> grpc.aio.Channel:
        """The channel to `host:port`; does not connect yet."""
        return self._open(address).channel

    def stub(self, kind: Callable[[grpc.aio.Channel], S], address: str) -> S:
        """The stub of a service on the channel to `host:port`, which is made once; does not connect yet."""
        one = self._open(address)
        stub: S | None = one.stubs.get(kind)
        if stub is None:
            stub = one.stubs[kind] = kind(one.channel)
        return stub

    def _open(self, address: str) -> _Open:
        one = self._channels.get(address)
        if one is None:
            one = self._channels[address] = _Open(grpc.aio.insecure_channel(address, options=self._options))
            if len(self._channels) > MAX_CHANNELS:
                self._close_soon(self._channels.popitem(last=False)[1].channel)
        self._channels.move_to_end(address)
        return one

    def forget(self, address: str) -> Coroutine[Any, Any, None]:
        """Drop the channel to an address whose process is gone; unknown addresses are fine.

        The next `get` opens a new one from now on; awaiting the result closes the old one.
        """
        return _close(self._channels.pop(address, None))

    async def close(self) -> None:
        """Close all channels."""
        channels, self._channels = list(self._channels.values()), OrderedDict()
        for one in channels:
            await one.channel.close()
        await asyncio.gather(*self._closing)

    def _close_soon(self, channel: grpc.aio.Channel) -> None:
        task = asyncio.ensure_future(channel.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def _close(one: _Open | None) -> None:
    if one is not None:
        await one.channel.close()
