"""A driver that has nothing to do closes at once; in a process of its own, since a driver that does not would hang."""

from __future__ import annotations

import subprocess
import sys

from tests.support.cluster import ROOT

_PROGRAM = """
import asyncio, time
from common.transport.select import TransportConfig, TransportSet, host_id, make_drivers

async def main() -> None:
    for driver in ("shm", "ucx", "tcp"):
        transports = TransportSet(make_drivers(TransportConfig(drivers=(driver,)), host_id(), 1))
        await transports.start()
        await asyncio.sleep(0.3)  # its threads go to sleep in the kernel
        began_s = time.monotonic()
        await transports.close()
        print(driver, transports.names, time.monotonic() - began_s < 20)

asyncio.run(main())
"""


def test_idle_drivers_close_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{name} ['{name}'] True" for name in ("shm", "ucx", "tcp")]
