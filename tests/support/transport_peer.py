"""A process that lends a region through one transport driver, and the handle by which a test steers it.

The peer runs `python -m tests.support.transport_peer SPEC`; it prints one JSON line with its endpoint and extents and
then answers one JSON line per command. It can be armed to stop or kill itself, or to reuse an extent, at the n-th chunk
it sends, so that tests hit the middle of a read without sleeping.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from common.transport.base import Endpoint, Extent, Transport
from common.transport.checksum import checksum
from common.transport.region import Region
from common.transport.select import host_id
from common.transport.shm import ShmTransport
from common.transport.tcp import TcpTransport
from common.transport.ucx import UcxTransport

DRIVERS = ("shm", "ucx", "tcp")


@dataclass(frozen=True)
class Spec:
    """What a peer lends."""

    driver: str
    num_extents: int = 32
    extent_bytes: int = 368_640
    incarnation: int = 7


def make_driver(name: str, incarnation: int, between_chunks: Callable[[], None] | None = None) -> Transport:
    """One driver with its defaults, not started."""
    host = host_id()
    match name:
        case "shm":
            return ShmTransport(host, incarnation, between_chunks=between_chunks)
        case "ucx":
            return UcxTransport(host, incarnation, between_chunks=between_chunks)
        case _:
            return TcpTransport(host, incarnation, between_chunks=between_chunks)


def content(index: int, num_bytes: int) -> bytes:
    """The bytes of an extent: others for each index, never all alike."""
    return random.Random(index).randbytes(num_bytes)


class PeerProcess:
    """A running peer; a context manager that never leaves it behind.

    Attributes:
        endpoint: where to read from.
        extents: one per extent of the region, as lent at start.
    """

    def __init__(self, spec: Spec) -> None:
        """Start it and wait until it lends."""
        self.spec = spec
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.transport_peer", json.dumps(asdict(spec))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        hello = self._answer()
        self.endpoint = Endpoint(
            hello["driver"], hello["host_id"], hello["incarnation"], bytes.fromhex(hello["descriptor"])
        )
        self.extents = [Extent(**fields, tag=b"") for fields in hello["extents"]]

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def ask(self, do: str, **arguments: Any) -> Any:
        """Send a command and wait for its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def kill(self) -> None:
        """kill -9, and wait until it is dead."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Freeze it, and wait until it is frozen."""
        os.kill(self.pid, signal.SIGSTOP)
        self.wait_stopped()

    def wait_stopped(self) -> None:
        """Wait until it is frozen."""
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        """Thaw it."""
        os.kill(self.pid, signal.SIGCONT)

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the peer died"
        return json.loads(line)


class _Peer:
    """The process's own side."""

    def __init__(self, spec: Spec) -> None:
        self._chunks_until = 0
        self._armed = ""
        self.region = Region.create(spec.num_extents, spec.extent_bytes)
        self.driver = make_driver(spec.driver, spec.incarnation, self._between_chunks)
        self.segment = self.driver.register(self.region)
        self.extents = [self._lend(index, spec) for index in range(spec.num_extents)]

    def answer(self, command: dict[str, Any]) -> Any:
        """Carry one command out."""
        match command["do"]:
            case "flip":
                self.region.data[command["offset"]] ^= 1
            case "bump":
                return self.region.bump_generation(command["extent"])
            case "arm":
                self._armed, self._chunks_until = command["action"], command["after"]
            case "ping":
                return "pong"
        return None

    def _lend(self, index: int, spec: Spec) -> Extent:
        offset, length = self.region.extent(index)
        generation = self.region.bump_generation(index)
        view = self.region.data[offset : offset + length]
        view[:] = content(index, length)
        return Extent(spec.incarnation, self.segment, offset, length, generation, checksum(view))

    def _between_chunks(self) -> None:
        if not self._armed:
            return
        self._chunks_until -= 1
        if self._chunks_until > 0:
            return
        action, self._armed = self._armed, ""
        if action == "reuse":
            for index in range(self.region.num_extents):
                self.region.bump_generation(index)
        else:
            os.kill(os.getpid(), getattr(signal, action))


async def _serve(spec: Spec) -> None:
    peer = _Peer(spec)
    await peer.driver.start()
    endpoint = peer.driver.endpoint()
    hello = asdict(endpoint) | {
        "descriptor": endpoint.descriptor.hex(),
        "extents": [{k: v for k, v in asdict(extent).items() if k != "tag"} for extent in peer.extents],
    }
    print(json.dumps(hello), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(peer.answer(json.loads(line))), flush=True)
    await peer.driver.close()


if __name__ == "__main__":
    asyncio.run(_serve(Spec(**json.loads(sys.argv[1]))))
