"""How one worker uses a Mooncake Store, and how an operator's settings say so. Names are those of SGLang's settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from common.base.errors import InvalidRequest

SETTINGS = (
    "master_server_address",
    "metadata_server",
    "protocol",
    "device_name",
    "local_hostname",
    "global_segment_size",
    "master_metrics_port",
    "staging_size",
)
_PROTOCOLS = ("tcp", "rdma")
_UNITS = {"": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40}
_SEGMENT_STEP = 16 << 20
_MAX_BYTES = 1 << 50


@dataclass(frozen=True, slots=True)
class MooncakeConfig:
    """One worker's client.

    Attributes:
        master_server_address: host:port of `mooncake_master`, or what Mooncake takes for a highly available one.
        metadata_server: of the transfer engine: P2PHANDSHAKE (none needed), or an http, etcd or redis URL.
        protocol: tcp or rdma.
        device_name: RDMA devices, separated by commas; empty: Mooncake looks for them.
        local_hostname: under which other clients reach this one; only they need it who lend memory.
        segment_bytes: memory of this process lent to the store: it dies with the worker. A multiple of 16 MiB.
        master_metrics_port: of the master's HTTP server, which alone knows how full the store is; 0: do not ask.
        staging_bytes: most registered memory through which blocks pass; a larger block cannot be stored.
        slab_bytes: of one batch in one thread.
        num_readers, num_writers: threads; a call of Mooncake blocks for up to half a minute when a peer hangs.
        max_jobs: unfinished pieces of work per kind; more are refused.
        quarantine_s: memory of a failed transfer is not used for so long, for its bytes may still come.
        start_s, admin_s, close_s: bounds for connecting, removing a namespace, and closing.
    """

    master_server_address: str
    metadata_server: str = "P2PHANDSHAKE"
    protocol: str = "tcp"
    device_name: str = ""
    local_hostname: str = "127.0.0.1"
    segment_bytes: int = 0
    master_metrics_port: int = 9003
    staging_bytes: int = 128 << 20
    slab_bytes: int = 4 << 20
    num_readers: int = 4
    num_writers: int = 2
    max_jobs: int = 256
    quarantine_s: float = 120.0
    start_s: float = 10.0
    admin_s: float = 30.0
    close_s: float = 5.0

    @property
    def master(self) -> tuple[str, int] | None:
        """Host and port of the master; None when the address is that of a registry of masters."""
        host, colon, port = self.master_server_address.rpartition(":")
        return (host.strip("[]"), int(port)) if colon and port.isdecimal() and "/" not in host else None


def parse_settings(settings: Mapping[str, str]) -> MooncakeConfig:
    """Read an operator's settings.

    Raises:
        InvalidRequest: unknown name, missing address, or a value that makes no sense.
    """
    unknown = sorted(settings.keys() - set(SETTINGS))
    if unknown:
        raise _bad(f"has no setting {unknown[0]!r} (known: {', '.join(SETTINGS)})")
    given = {name: text for name, text in settings.items() if text}
    if "master_server_address" not in given:
        raise _bad("needs a master_server_address: host:port of mooncake_master")
    protocol = given.get("protocol", "tcp")
    if protocol not in _PROTOCOLS:
        raise _bad(f"speaks {' or '.join(_PROTOCOLS)}, not protocol {protocol!r}")
    segment_bytes = _bytes(given, "global_segment_size", "0")
    if segment_bytes % _SEGMENT_STEP:
        raise _bad(f"lends memory in steps of 16 MiB, not global_segment_size {segment_bytes}")
    if segment_bytes and "local_hostname" not in given:
        raise _bad("needs a local_hostname that other machines reach when it lends memory (global_segment_size)")
    staging_bytes = _bytes(given, "staging_size", "128mb")
    if not staging_bytes:
        raise _bad("needs a staging_size above 0")
    return MooncakeConfig(
        master_server_address=given["master_server_address"],
        metadata_server=given.get("metadata_server", "P2PHANDSHAKE"),
        protocol=protocol,
        device_name=given.get("device_name", ""),
        local_hostname=given.get("local_hostname", "127.0.0.1"),
        segment_bytes=segment_bytes,
        master_metrics_port=_port(given.get("master_metrics_port", "9003")),
        staging_bytes=staging_bytes,
        slab_bytes=min(4 << 20, staging_bytes),
    )


def _bytes(given: Mapping[str, str], name: str, default: str) -> int:
    """A size such as 1073741824, 512mb or 4gb (powers of 1,024), in bytes."""
    text = given.get(name, default)
    match = re.fullmatch(r"(\d{1,15})\s*([kmgt]b|)", text.strip().lower())
    size = int(match[1]) * _UNITS[match[2]] if match else _MAX_BYTES
    if size >= _MAX_BYTES:
        raise _bad(f"takes bytes or sizes such as 512mb or 4gb, not {name} {text!r}")
    return size


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise _bad(f"takes a port, or 0 for none, not master_metrics_port {text!r}")
    return int(text)


def _bad(problem: str) -> InvalidRequest:
    return InvalidRequest(f"backend mooncake {problem}", param="settings")
