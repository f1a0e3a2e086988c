"""The stores that can stand behind L3, by name, and what each wants to know."""

from __future__ import annotations

import math
from collections.abc import Mapping

from common.base.errors import InvalidRequest
from common.cache.file_store import FileStore, FileStoreConfig
from common.cache.l3 import Backend

BACKENDS = ("file",)
_DEFAULT_SIZE_GB = "10"


def make_backend(name: str, settings: Mapping[str, str]) -> Backend:
    """Make a store that has not been started.

    Args:
        name: one of BACKENDS.
        settings: file: `path` (the folder), `size_gb` (its cap in 10^9 bytes).

    Raises:
        InvalidRequest: unknown name or setting, a setting that is missing or makes no sense.
    """
    if name != "file":
        raise InvalidRequest(f"no storage backend {name!r} (known: {', '.join(BACKENDS)})", param="backend")
    unknown = sorted(settings.keys() - {"path", "size_gb"})
    if unknown:
        raise InvalidRequest(f"backend file has no setting {unknown[0]!r} (known: path, size_gb)", param="settings")
    if not settings.get("path"):
        raise InvalidRequest("backend file needs a path: the folder that all workers share", param="settings")
    return FileStore(FileStoreConfig(settings["path"], _gigabytes(settings.get("size_gb", _DEFAULT_SIZE_GB))))


def _gigabytes(text: str) -> int:
    try:
        size = float(text)
    except ValueError:
        size = math.nan
    if not 0 < size < 1e9:
        raise InvalidRequest(f"size_gb is a number of GB above 0, not {text!r}", param="settings")
    return int(size * 1e9)
