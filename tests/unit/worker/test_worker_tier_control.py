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


def l3_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("pando-l3")}


async def ended(before: set[threading.Thread]) -> None:
    """Wait for the threads of stores that were closed; `before` are those of other tests, which may hang for long."""
    async with asyncio.timeout(30):
        while l3_threads() - before:  # noqa: ASYNC110 - threads end when they end
            await asyncio.sleep(0.01)


async def test_a_detach_whose_caller_leaves_goes_on_to_its_end(tmp_path: Path) -> None:
    before = l3_threads()
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
        await ended(before)
        assert list((tmp_path / "a").glob("*/*/*")), "what waited to be written got no time"
