"""How fast each transport driver moves blocks between two processes: `python -m bench.transport [--json FILE]`.

Rounds of all drivers and sizes are interleaved, so that a busy machine spoils all of them alike; the median counts.
Owner and reader share this machine: figures compare drivers, they do not predict a network.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common.base.errors import Unsupported
from common.transport.base import DRIVER_NAMES, Endpoint, Extent, Read
from common.transport.checksum import checksum
from common.transport.region import Region
from common.transport.select import TransportConfig, TransportSet, host_id, make_drivers

_KIB = 1024
_SIZES = (360 * _KIB, 720 * _KIB)  # SmolLM2-135M's block of 16 tokens in bf16 and in fp32
_NUM_BLOCKS = 32
_DEADLINE_S = 60.0


def _transports(incarnation: int) -> TransportSet:
    return TransportSet(make_drivers(TransportConfig(), host_id(), incarnation))


async def _own() -> None:
    """The owner: lends one region per size until stdin ends."""
    transports = _transports(1)
    await transports.start()
    lent: list[list[dict[str, int]]] = []
    for size in _SIZES:
        region = Region.create(_NUM_BLOCKS, size)
        segment = transports.register(region)
        region.data[:] = os.urandom(len(region.data))
        spans = [region.extent(index) for index in range(_NUM_BLOCKS)]
        lent.append(
            [
                asdict(Extent(1, segment, offset, length, 0, checksum(region.data[offset : offset + length])))
                for offset, length in spans
            ]
        )
    endpoints = [asdict(endpoint) | {"descriptor": endpoint.descriptor.hex()} for endpoint in transports.endpoints()]
    print(json.dumps({"endpoints": endpoints, "lent": lent, "missing": transports.missing}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await transports.close()


def _measure(num_rounds: int) -> dict[str, Any]:
    """Read everything through every driver, `num_rounds` times; GB/s by driver and block size."""
    owner = subprocess.Popen(
        [sys.executable, "-m", "bench.transport", "--own"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdin is not None and owner.stdout is not None
    try:
        hello = json.loads(owner.stdout.readline())
        seconds = asyncio.run(_read(hello, num_rounds))
    finally:
        owner.stdin.close()
        owner.wait()
        owner.stdout.close()
    return {"missing": hello["missing"], "results": [_row(key, times) for key, times in seconds.items()]}


async def _read(hello: dict[str, Any], num_rounds: int) -> dict[tuple[str, int], list[float]]:
    endpoints = [Endpoint(**{**it, "descriptor": bytes.fromhex(it["descriptor"])}) for it in hello["endpoints"]]
    lent = [[Extent(**fields) for fields in extents] for extents in hello["lent"]]
    transports = _transports(2)
    await transports.start()
    try:
        return await _rounds(transports, endpoints, lent, num_rounds)
    finally:
        await transports.close()


async def _rounds(
    transports: TransportSet, endpoints: list[Endpoint], lent: list[list[Extent]], num_rounds: int
) -> dict[tuple[str, int], list[float]]:
    targets = [[bytearray(extent.length) for extent in extents] for extents in lent]
    seconds: dict[tuple[str, int], list[float]] = {}
    for number in range(num_rounds + 1):
        for endpoint in endpoints:
            for extents, into in zip(lent, targets, strict=True):
                reads = [Read(extent, memoryview(target)) for extent, target in zip(extents, into, strict=True)]
                began_at = time.perf_counter()
                await transports.read([endpoint], reads, _DEADLINE_S)
                if number:  # the first round connects, maps and touches memory
                    key = (endpoint.driver, extents[0].length)
                    seconds.setdefault(key, []).append(time.perf_counter() - began_at)
    return seconds


def _row(key: tuple[str, int], seconds: list[float]) -> dict[str, Any]:
    driver, size = key
    moved_gb = _NUM_BLOCKS * size / 1e9
    return {
        "driver": driver,
        "block_bytes": size,
        "num_blocks": _NUM_BLOCKS,
        "median_gb_per_s": round(moved_gb / statistics.median(seconds), 3),
        "best_gb_per_s": round(moved_gb / min(seconds), 3),
        "worst_gb_per_s": round(moved_gb / max(seconds), 3),
    }


def _print(report: dict[str, Any]) -> None:
    print(f"{'driver':8}{'block':>10}{'median GB/s':>13}{'best':>8}{'worst':>8}")
    for row in report["results"]:
        block = f"{row['block_bytes'] // _KIB} KiB"
        figures = f"{row['median_gb_per_s']:13.2f}{row['best_gb_per_s']:8.2f}{row['worst_gb_per_s']:8.2f}"
        print(f"{row['driver']:8}{block:>10}{figures}")
    for driver, reason in report["missing"].items():
        print(f"{driver}: {reason}")


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=f"GB/s of {', '.join(DRIVER_NAMES)} between two processes")
    parser.add_argument("--rounds", type=int, default=20, help="interleaved rounds (default 20)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--own", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.own:
        asyncio.run(_own())
        return
    try:
        report = _measure(arguments.rounds)
    except Unsupported as error:
        parser.exit(2, f"{error.message}\n")
    _print(report)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
