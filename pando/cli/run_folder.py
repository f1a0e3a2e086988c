"""The run folder: lock, state, logs and data of one local cluster.

::

    run/lock                      held (flock) by the supervisor as long as it lives; the kernel releases it
    run/state.json                what runs, replaced atomically
    run/scale.json                the last order of `pando scale`
    run/logs/<service>.log
    run/registry/                 data of the embedded registry
    run/kvstore/                  log of the KV store, kept from one start to the next
    run/prometheus/targets.json   for Prometheus' file_sd

The lock decides whether a cluster runs, never the presence of a file: what a killed supervisor left behind is stale
and is overwritten.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson

from pando.cli.errors import CliError
from pando.cli.processes import ProcessId

MIN_FREE_BYTES = 64 * 1024 * 1024
_LOG_KEEP_BYTES = 16 * 1024 * 1024


@dataclass(slots=True, frozen=True)
class ServiceState:
    """What is known of one service."""

    name: str
    phase: str
    process: ProcessId
    log: str
    restarts: int = 0
    last_exit: str = ""
    address: str = ""
    metrics_address: str = ""


@dataclass(slots=True, frozen=True)
class ClusterState:
    """What state.json holds."""

    state: str
    url: str
    router: str
    registry: str
    supervisor: ProcessId
    services: tuple[ServiceState, ...] = field(default_factory=tuple)
    failure: str = ""

    @staticmethod
    def from_json(values: dict[str, Any]) -> ClusterState:
        """The inverse of orjson's serialisation."""
        services = tuple(
            ServiceState(**{**one, "process": ProcessId(**one["process"])}) for one in values.pop("services")
        )
        supervisor = ProcessId(**values.pop("supervisor"))
        return ClusterState(**values, services=services, supervisor=supervisor)


class RunFolder:
    """Paths and files of one run folder. Does not create anything until `prepare`."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @property
    def logs(self) -> Path:
        """Folder of the logs."""
        return self.path / "logs"

    @property
    def registry(self) -> Path:
        """Folder of the embedded registry."""
        return self.path / "registry"

    @property
    def store(self) -> Path:
        """Folder of the KV store's log."""
        return self.path / "kvstore"

    def log(self, service: str) -> Path:
        """The log file of a service."""
        return self.logs / f"{service}.log"

    def prepare(self) -> None:
        """Make the folder and its parts.

        Raises:
            CliError: it cannot be written, or the disk is full.
        """
        try:
            for folder in (self.path, self.logs, self.registry, self.path / "prometheus"):
                folder.mkdir(parents=True, exist_ok=True)
            free_bytes = shutil.disk_usage(self.path).free
        except OSError as error:
            raise CliError(f"{self.path} cannot be used ({error.strerror})", fix="choose another --run-dir") from error
        if not os.access(self.path, os.W_OK):
            raise CliError(f"{self.path} is not writable", fix="choose another --run-dir or fix its owner")
        if free_bytes < MIN_FREE_BYTES:
            raise CliError(
                f"only {free_bytes // 2**20} MiB are free on the disk of {self.path}",
                fix=f"free at least {MIN_FREE_BYTES // 2**20} MiB or choose another --run-dir",
            )

    def open_log(self, service: str) -> tuple[Path, int]:
        """The log to append to and its size now; one that grew large is set aside as .1 first."""
        path = self.log(service)
        size = path.stat().st_size if path.exists() else 0
        if size > _LOG_KEEP_BYTES:
            path.replace(path.with_suffix(".log.1"))
            size = 0
        return path, size

    def log_sizes(self) -> dict[Path, int]:
        """The logs that are there and their sizes: what a later `last_lines` need not show."""
        return {path: path.stat().st_size for path in self.logs.glob("*.log")}

    def read_state(self) -> ClusterState | None:
        """What the last supervisor wrote, or None when there is nothing that can be read."""
        try:
            return ClusterState.from_json(orjson.loads((self.path / "state.json").read_bytes()))
        except (OSError, orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            return None

    def running(self) -> ClusterState | None:
        """The state of the cluster that runs here now; None when there is none. Raises CliError as `RunLock` does."""
        state = self.read_state()
        return state if state is not None and RunLock(self).held_by_another() else None

    def write_state(self, state: ClusterState) -> None:
        """Replace the state and Prometheus' targets. Raises OSError when the disk does not take it."""
        self._replace("state.json", orjson.dumps(state, option=orjson.OPT_INDENT_2))
        self._replace("prometheus/targets.json", orjson.dumps(prometheus_targets(state), option=orjson.OPT_INDENT_2))

    def write_order(self, counts: Mapping[str, int]) -> None:
        """Say how many workers of each kind there shall be. Raises CliError when the folder cannot be written."""
        try:
            self._replace("scale.json", orjson.dumps(dict(counts)))
        except OSError as error:
            raise CliError(f"{self.path} cannot be written ({error.strerror})", fix="fix its owner or disk") from error

    def read_order(self) -> dict[str, int]:
        """The last order; empty when there is none that can be read."""
        try:
            order = orjson.loads((self.path / "scale.json").read_bytes())
            return {str(kind): int(count) for kind, count in order.items()}
        except (OSError, orjson.JSONDecodeError, AttributeError, TypeError, ValueError):
            return {}

    def remove_state(self) -> None:
        """Forget the cluster; the logs stay.

        Raises:
            CliError: the folder cannot be written.
        """
        try:
            (self.path / "state.json").unlink(missing_ok=True)
            if (self.path / "prometheus").is_dir():
                self._replace("prometheus/targets.json", b"[]")
        except OSError as error:
            raise CliError(f"{self.path} cannot be written ({error.strerror})", fix="fix its owner or disk") from error

    def _replace(self, name: str, content: bytes) -> None:
        temporary = self.path / f"{name}.new"
        temporary.write_bytes(content)
        temporary.replace(self.path / name)


class RunLock:
    """The lock of a run folder; a context manager that holds it."""

    def __init__(self, folder: RunFolder) -> None:
        self._path = folder.path / "lock"
        self._descriptor = -1

    def acquire(self) -> bool:
        """Take the lock unless somebody has it. Raises CliError when the file cannot be opened."""
        descriptor = self._open()
        if not _try_flock(descriptor, fcntl.LOCK_EX):
            os.close(descriptor)
            return False
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor
        return True

    def held_by_another(self) -> bool:
        """Whether some process holds the lock now; leaves no trace."""
        if not self._path.exists():
            return False
        descriptor = self._open()
        try:
            return not _try_flock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)

    def _open(self) -> int:
        try:
            return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            reason = f"{self._path} cannot be opened ({error.strerror})"
            raise CliError(reason, fix="fix its owner or choose another --run-dir") from error

    def release(self) -> None:
        """Give the lock back; without effect when it is not held."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def owner(self) -> int:
        """Pid that the holder wrote, 0 when unreadable."""
        try:
            return int(self._path.read_text())
        except (OSError, ValueError):
            return 0

    def __enter__(self) -> RunLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _try_flock(descriptor: int, mode: int) -> bool:
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def prometheus_targets(state: ClusterState) -> list[dict[str, Any]]:
    """file_sd entries of all ready services that export metrics."""
    return [
        {
            "targets": [service.metrics_address],
            "labels": {"service": service.name.rpartition("-")[0] or service.name, "name": service.name},
        }
        for service in state.services
        if service.metrics_address and service.phase == "ready"
    ]
