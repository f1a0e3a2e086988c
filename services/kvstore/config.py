"""Configuration of a store process."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field, field_validator

from common.base.comma_list import comma_list
from common.base.config import RegistryConfig, Section, Settings
from common.transport.base import DRIVER_NAMES

ROLES = ("node", "master")
MEBI = 1024 * 1024


class KvStoreConfig(Section):
    """One store process: memory, disk, leases, leadership."""

    host: str = Field("127.0.0.1", description="address to listen on and to be reached at")
    port: int = Field(0, ge=0, le=65535, description="gRPC port; 0 picks a free one")
    metrics_port: int = Field(0, ge=0, le=65535, description="Prometheus port; 0 picks a free one")
    node_id: str = Field("", pattern="^[a-zA-Z0-9_.-]*$", description="name in logs and registry; empty: made up")
    roles: str = Field("node,master", description="comma list of node (holds objects) and master (may lead)")
    segment_size: int = Field(1024 * MEBI, ge=MEBI, description="bytes of memory that the node lends to the store")
    page_size: int = Field(64 * 1024, ge=4096, description="bytes of a page; objects take whole pages")
    ssd_path: Path | None = Field(None, description="folder of the SSD log; empty: memory only")
    ssd_size: int = Field(8192 * MEBI, ge=16 * MEBI, description="cap of the SSD log in bytes")
    max_staged_bytes: int = Field(256 * MEBI, ge=MEBI, description="bytes on their way into memory at a time")
    namespace_quota: int = Field(0, ge=0, description="most bytes of one namespace on a node; 0: no quota")
    max_lease_ttl_s: float = Field(10.0, gt=0, le=600, description="longest life of a lease between renewals")
    max_leases: int = Field(65_536, ge=1, description="most leases at a time")
    put_wait_s: float = Field(0.5, ge=0, description="seconds a put waits for room that others will free")
    pull_streams: int = Field(0, ge=0, le=16, description="parallel reads of one put; 0: one a CPU, at most 4")
    transport: str = Field("shm,ucx,tcp", description="transports in order of preference, comma list")
    lock_ttl_s: float = Field(2.0, gt=0.5, description="life of the leader's lock in the registry")
    max_replicas: int = Field(2, ge=1, le=8, description="most copies of an object that is asked for often; 1: never")
    hot_lookups: int = Field(16, ge=1, description="lookups within 10 s after which an object is hot")
    failpoints_dir: Path | None = Field(None, description="folder whose files arm failpoints of the RPCs; empty: none")

    @field_validator("ssd_path", "failpoints_dir")
    @classmethod
    def _empty_is_none(cls, value: Path | None) -> Path | None:
        return None if value == Path() else value

    @field_validator("roles")
    @classmethod
    def _known_roles(cls, value: str) -> str:
        if not value:
            raise ValueError("name at least one role")
        return comma_list(value, ROLES)

    @field_validator("transport")
    @classmethod
    def _known_transports(cls, value: str) -> str:
        if not value:
            raise ValueError("name at least one transport")
        return comma_list(value, DRIVER_NAMES)


class KvStoreSettings(Settings):
    """Everything a store process reads at start."""

    flat_section: ClassVar[str] = "kvstore"

    kvstore: KvStoreConfig = KvStoreConfig()
    registry: RegistryConfig = RegistryConfig()
