"""The stores that can stand behind L3, by name, and what each wants to know."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from common.base.comma_list import split_list
from common.base.config import TimeoutsConfig
from common.base.errors import InvalidRequest
from common.cache.file_store import FileStore, FileStoreConfig
from common.cache.kvstore_backend import KvStoreBackend, KvStoreConfig
from common.cache.kvstore_staging import InPlace
from common.cache.l3 import Backend
from common.cache.mooncake_config import parse_settings
from common.cache.mooncake_store import MooncakeStore
from common.transport.base import DRIVER_NAMES

_DEFAULT_SIZE_GB = "10"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the process around a store gives it.

    Attributes:
        client_id: name of the process.
        registry_url, cluster: where it registers itself; empty: nowhere.
        drivers: of transports, best first.
        in_place: regions that it lends anyway; None: none.
        timeouts: its limits.
    """

    client_id: str = ""
    registry_url: str = ""
    cluster: str = ""
    drivers: tuple[str, ...] = DRIVER_NAMES
    in_place: InPlace | None = None
    timeouts: TimeoutsConfig = field(default_factory=TimeoutsConfig)


def make_backend(name: str, settings: Mapping[str, str], around: Surroundings | None = None) -> Backend:
    """Make a store that has not been started.

    Args:
        name: one of BACKENDS.
        settings: file: `path` (the folder), `size_gb` (its cap in 10^9 bytes). kvstore: `address` (host:port of all its
            nodes, comma list) or `registry` and `cluster`, those of the process by default; `staging_mb` (memory for
            puts in 10^6 bytes). mooncake: see `mooncake_config`.
        around: of the process.

    Raises:
        InvalidRequest: unknown name or setting, a setting that is missing or makes no sense.
    """
    maker = _MAKERS.get(name)
    if maker is None:
        raise InvalidRequest(f"no storage backend {name!r} (known: {', '.join(BACKENDS)})", param="backend")
    return maker(settings, around or Surroundings())


def _make_file(settings: Mapping[str, str], _: Surroundings) -> Backend:
    _check_known("file", settings, ("path", "size_gb"))
    if not settings.get("path"):
        raise InvalidRequest("backend file needs a path: the folder that all workers share", param="settings")
    return FileStore(
        FileStoreConfig(settings["path"], _bytes("size_gb", settings.get("size_gb", _DEFAULT_SIZE_GB), 1e9))
    )


def _make_kvstore(settings: Mapping[str, str], around: Surroundings) -> Backend:
    _check_known("kvstore", settings, ("address", "registry", "cluster", "staging_mb"))
    addresses = tuple(split_list(settings.get("address", "")))
    registry = settings.get("registry") or around.registry_url
    if not addresses and not registry:
        raise InvalidRequest("backend kvstore needs an address or a registry to find its nodes in", param="settings")
    config = KvStoreConfig(
        addresses=addresses,
        registry_url=registry,
        cluster=settings.get("cluster") or around.cluster or "pando",
        client_id=around.client_id,
        drivers=around.drivers,
        timeouts=around.timeouts,
    )
    if "staging_mb" in settings:
        config = replace(config, staging_bytes=_bytes("staging_mb", settings["staging_mb"], 1e6))
    return KvStoreBackend(config, around.in_place)


_MAKERS: Mapping[str, Callable[[Mapping[str, str], Surroundings], Backend]] = {
    "file": _make_file,
    "kvstore": _make_kvstore,
    "mooncake": lambda settings, _: MooncakeStore(parse_settings(settings)),
}
BACKENDS = tuple(_MAKERS)


def _check_known(backend: str, settings: Mapping[str, str], known: tuple[str, ...]) -> None:
    unknown = sorted(settings.keys() - set(known))
    if unknown:
        message = f"backend {backend} has no setting {unknown[0]!r} (known: {', '.join(known)})"
        raise InvalidRequest(message, param="settings")


def _bytes(name: str, text: str, unit: float) -> int:
    try:
        size = float(text)
    except ValueError:
        size = math.nan
    if not 0 < size < 1e18 / unit:
        raise InvalidRequest(f"{name} is a number above 0, not {text!r}", param="settings")
    return int(size * unit)
