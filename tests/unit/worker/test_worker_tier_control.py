"""Attaching and detaching L3 when the operator's call is cut off in the middle."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from common.base.errors import InvalidRequest
from common.base.failpoints import Failpoints
from common.cache.config import PrefetchConfig
from common.transport.tag import Tagger
from common.worker.admin import StorageRequest
from common.worker.tier_control import WorkerTiers
from tests.support.worker_rig import NAMESPACE, Listener, Rig, make_request, running_core


def control(rig: Rig, failpoints: Failpoints) -> WorkerTiers:
    return WorkerTiers(rig.core, NAMESPACE, Tagger(None), failpoints, PrefetchConfig())


def num_l3_threads() -> int:
    return sum(thread.name.startswith("pando-l3") for thread in threading.enumerate())


async def no_l3_threads() -> None:
    """Wait for the threads of a store that was closed."""
    async with asyncio.timeout(30):
        while num_l3_threads():  # noqa: ASYNC110 - threads end when they end
            await asyncio.sleep(0.01)


async def test_a_detach_whose_caller_leaves_goes_on_to_its_end(tmp_path: Path) -> None:
    async with running_core(24) as rig:
        failpoints = Failpoints()
        tiers = control(rig, failpoints)
        await tiers.attach(StorageRequest("file", {"path": str(tmp_path / "a")}))
        failpoints.arm("l3.put", "delay(0.5)")
        listener = Listener()
        rig.core.add(make_request("a", list(range(24)), max_tokens=2), listener)
        await listener.wait()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await tiers.detach()
        assert rig.core.storage is None
        with pytest.raises(InvalidRequest):
            await tiers.detach()
        await tiers.attach(StorageRequest("file", {"path": str(tmp_path / "b")}))
        await tiers.close()
        await no_l3_threads()
        assert list((tmp_path / "a").glob("*/*/*")), "what waited to be written got no time"
