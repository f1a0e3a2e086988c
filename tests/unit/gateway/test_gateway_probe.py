"""A probe of a router must answer, or whoever waits for the router waits for ever."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from common.base.config import TimeoutsConfig
from common.base.errors import NotReady
from common.rpc.channel import ChannelPool
from services.gateway.router_rpc import RouterRpc


async def test_a_probe_that_the_router_cancels_is_an_answer() -> None:
    async def cancelled(*_: Any, **__: Any) -> None:
        raise asyncio.CancelledError  # as grpc.aio shows a CANCELLED of the other side

    channels = ChannelPool(TimeoutsConfig())
    rpc = RouterRpc("127.0.0.1:1", channels, 1.0)
    rpc._health = SimpleNamespace(Check=cancelled)
    with pytest.raises(NotReady, match=r"127\.0\.0\.1:1"):
        await rpc.check_ready()
    await channels.close()


async def test_a_probe_that_its_owner_cancels_ends() -> None:
    channels = ChannelPool(TimeoutsConfig())
    rpc = RouterRpc("127.0.0.1:1", channels, 1.0)
    rpc._health = SimpleNamespace(Check=lambda *_, **__: asyncio.sleep(60))
    probe = asyncio.create_task(rpc.check_ready())
    await asyncio.sleep(0)
    probe.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probe
    await channels.close()
