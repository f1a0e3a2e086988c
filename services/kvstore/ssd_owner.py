"""Who may use a directory of the SSD log: one process at a time, and one store for ever.

Two files beside the log files: `store` names the store (written once, so that a copied or moved directory stays the
same store) and `owner` is locked by the process that has the directory open; what is written in it only tells a person
who that is. The kernel drops the lock with the process, whatever ends it. A filesystem without locks is refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from datetime import UTC, datetime
from pathlib import Path

from common.base.errors import Leg, Unavailable
from services.kvstore.ssd_format import VERSION

OWNER_NAME, STORE_NAME = "owner", "store"
_MAX_FILE_BYTES = 4096


class Owner:
    """The right to use a directory.

    Attributes:
        owner_id: random name of this opening.
    """

    def __init__(self, fd: int, owner_id: str) -> None:
        """Take ownership of the locked `fd`; use `Owner.acquire`."""
        self._fd = fd
        self.owner_id = owner_id

    @classmethod
    def acquire(cls, path: Path) -> Owner:
        """Make the directory if need be and take it.

        Raises:
            Unavailable: another process has it (reason ssd_in_use; the message names it), or it cannot be used.
        """
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(path / OWNER_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise unusable(path, error) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            owner_id = secrets.token_hex(8)
            now = datetime.now(UTC).isoformat(timespec="seconds")
            facts = {"owner_id": owner_id, "pid": os.getpid(), "host": os.uname().nodename, "since": now}
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps(facts).encode() + b"\n", 0)
        except BlockingIOError as error:
            holder = _holder(fd)
            os.close(fd)
            message = f"the SSD path {path} is in use by {holder}: one store, one process"
            raise Unavailable(message, reason="ssd_in_use", leg=Leg.STORE) from error
        except OSError as error:
            os.close(fd)
            raise unusable(path, error) from error
        return cls(fd, owner_id)

    def release(self) -> None:
        """Let others have it; idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read_store_id(path: Path) -> int | None:
    """The store that a directory belongs to; `None` when nothing there says so.

    Raises:
        Unavailable: a newer version wrote it, or it cannot be read.
    """
    try:
        with open(path / STORE_NAME, "rb") as file:
            text = file.read(_MAX_FILE_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unusable(path, error) from error
    try:
        facts = json.loads(text)
        version, store_id = int(facts["version"]), int(facts["store_id"], 16)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    if version != VERSION:
        message = f"the SSD path {path} has format {version}, this build knows {VERSION}"
        raise Unavailable(message, reason="ssd_format", leg=Leg.STORE)
    return store_id if 0 < store_id < 1 << 64 else None


def write_store_id(path: Path, store_id: int) -> None:
    """Name the store of a directory, for good.

    Raises:
        Unavailable: it cannot be written.
    """
    temp = path / (STORE_NAME + ".new")
    try:
        with open(temp, "wb") as file:
            file.write(json.dumps({"version": VERSION, "store_id": f"{store_id:016x}"}).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.rename(temp, path / STORE_NAME)
    except OSError as error:
        with contextlib.suppress(OSError):
            temp.unlink(missing_ok=True)
        raise unusable(path, error) from error


def new_store_id() -> int:
    """Random, never 0."""
    return secrets.randbits(63) + 1


def unusable(path: Path, error: OSError) -> Unavailable:
    """The error for a directory that does not work."""
    message = f"the SSD path {path} cannot be used: {error.strerror or error}"
    return Unavailable(message, reason="ssd_unusable", leg=Leg.STORE)


def _holder(fd: int) -> str:
    """Who is written in the owner file: a description for a person."""
    try:
        facts = json.loads(os.pread(fd, _MAX_FILE_BYTES, 0))
        return f"process {facts['pid']} on {facts['host']} since {facts['since']} (owner {facts['owner_id']})"
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return "another process"
