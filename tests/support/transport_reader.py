"""A transport driver on an event loop in a thread of its own, so that plain tests (and hypothesis) can call it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from common.transport.base import Endpoint, Extent, Read
from tests.support.transport_peer import make_driver

POISON = 0xA5


class Reader:
    """Reads from peers through one driver; a context manager."""

    def __init__(self, driver: str, between_chunks: Callable[[], None] | None = None) -> None:
        """Start the driver. Raises Unsupported where it cannot run: on this image that fails the suite."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="reader-loop")
        self._thread.start()
        self.driver = make_driver(driver, 99, between_chunks)
        self.call(self.driver.start())

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end."""
        return self.begin(work).result()

    def begin(self, work: Coroutine[Any, Any, Any]) -> concurrent.futures.Future[Any]:
        """Start a coroutine; cancelling the future cancels its task."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def read(self, peer: Endpoint, extents: Sequence[Extent], deadline_s: float = 10.0) -> list[bytearray]:
        """Read extents into fresh targets."""
        targets = [bytearray(extent.length) for extent in extents]
        self.call(self.driver.read(peer, reads(extents, targets), deadline_s))
        return targets

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.call(self.driver.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def reads(extents: Sequence[Extent], targets: Sequence[bytearray]) -> list[Read]:
    """Pair sources with targets."""
    return [Read(extent, memoryview(target)) for extent, target in zip(extents, targets, strict=True)]


def stays_poisoned(targets: Sequence[bytearray], during_s: float = 0.4) -> bool:
    """Fill the targets with poison and watch that no byte changes."""
    for target in targets:
        target[:] = bytes([POISON]) * len(target)
    expected = [bytes(target) for target in targets]
    ends_at = time.monotonic() + during_s
    while time.monotonic() < ends_at:
        if any(target != wanted for target, wanted in zip(targets, expected, strict=True)):
            return False
        time.sleep(0.01)
    return True
