"""The shared folder on disk: where a block's file lies, and the blocking calls that touch it.

::

    root/<namespace, hex>/<first two hex digits of the prefix hash>/<prefix hash, hex><part, 8 hex digits>
                                                                    .tmp-<random>     being written
    root/.trash-<random>/...                                                          a namespace being removed

Names are hex digits made from keys, never text from outside. Every step below the root opens a folder by descriptor and
refuses symbolic links, so nothing outside the root is read, written or removed. A file appears by a rename within its
own folder: it is whole or not there. A crash leaves `.tmp-` files, which `sweep` removes once they are old.

All functions block and raise OSError. They know nothing of leases, caps, deadlines or what the bytes mean.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from common.cache.l3 import BlockKey

TEMP_PREFIX = ".tmp-"
_TRASH_PREFIX = ".trash-"
_NAMESPACE = re.compile(r"(?:[0-9a-f]{2}){1,64}")
_SHARD = re.compile(r"[0-9a-f]{2}")
_BLOCK = re.compile(r"(?:[0-9a-f]{2}){5,68}")
_NOT_OURS = (FileNotFoundError, NotADirectoryError, PermissionError)
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_BLOCK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OPEN_TEMP = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Found:
    """A plain file met on a walk. `shard` is an open folder, valid until the walk goes on."""

    shard: int
    name: str
    num_bytes: int
    used_s: float
    is_temp: bool


def shard_path(key: BlockKey) -> tuple[str, str]:
    """Names of the folders above a block's file, from the root."""
    assert 1 <= len(key.namespace) <= 64 and 1 <= len(key.prefix_hash) <= 64 and 0 <= key.part < 1 << 32, f"{key}"
    return key.namespace.hex(), key.prefix_hash[:1].hex()


def block_name(key: BlockKey) -> str:
    """Name of a block's file in its shard; the part has fixed width, so that no two keys share a name."""
    return f"{key.prefix_hash.hex()}{key.part:08x}"


@contextlib.contextmanager
def open_shard(root: str, key: BlockKey, create: bool = False) -> Iterator[int]:
    """The open folder of a block. Without `create`, FileNotFoundError when there is none."""
    if create:
        os.makedirs(root, mode=0o700, exist_ok=True)
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in shard_path(key):
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, mode=0o700, dir_fd=folder)
            inner = os.open(name, _OPEN_FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


def open_block(root: str, key: BlockKey) -> int:
    """Open a block's file for reading and return the descriptor, the caller's to close.

    Raises:
        FileNotFoundError: there is none.
        OSError: anything else, and what is there is not a plain file.
    """
    with open_shard(root, key) as shard:
        fd = os.open(block_name(key), _OPEN_BLOCK, dir_fd=shard)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"{block_name(key)} is not a plain file")
    return fd


def block_bytes(shard: int, name: str) -> int | None:
    """Size of a plain file in an open folder; None when there is no such plain file."""
    try:
        found = os.stat(name, dir_fd=shard, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def write_temp(shard: int, pieces: Sequence[bytes | memoryview]) -> str:
    """Write pieces into a new temporary file and return its name; nothing is left behind when that fails."""
    name = TEMP_PREFIX + secrets.token_hex(16)
    fd = os.open(name, _OPEN_TEMP, 0o600, dir_fd=shard)
    try:
        with os.fdopen(fd, "wb", buffering=0) as file:
            for piece in pieces:
                _write_all(file.fileno(), memoryview(piece).cast("B"))
    except BaseException:
        remove(shard, name)
        raise
    return name


def remove(shard: int, name: str) -> bool:
    """Remove a file of an open folder; returns whether it is gone by this call."""
    try:
        os.unlink(name, dir_fd=shard)
    except (FileNotFoundError, PermissionError):
        return False
    return True


def read_exactly(fd: int, target: memoryview) -> bool:
    """Fill `target` from the start of a file; returns False when the file is shorter or longer than it."""
    if os.fstat(fd).st_size != target.nbytes:
        return False
    done = 0
    while done < target.nbytes:
        num_bytes = os.preadv(fd, [target[done:]], done)
        if num_bytes == 0:
            return False
        done += num_bytes
    return True


def touch(file: int | str, after_s: float, shard: int | None = None) -> None:
    """Mark a file as used now, unless it was within the last `after_s` seconds.

    One that cannot be set (another user's file, a read-only mount, a block that has just gone) costs eviction some
    accuracy, nothing else.

    Args:
        file: an open descriptor, or a name in the open folder `shard`.
        after_s: seconds; keeps readers from writing to the medium all the time.
        shard: folder of a name.
    """
    with contextlib.suppress(OSError):
        seen = os.fstat(file) if isinstance(file, int) else os.stat(file, dir_fd=shard, follow_symlinks=False)
        if time.time() - seen.st_mtime >= after_s:
            os.utime(file) if isinstance(file, int) else os.utime(file, dir_fd=shard, follow_symlinks=False)


def walk(root: str) -> Iterator[Found]:
    """All blocks and temporary files below the root, a shard at a time.

    Skips what vanishes meanwhile, what is not ours by name or kind, and folders that may not be opened.
    """
    with contextlib.suppress(FileNotFoundError), _opened(root, None) as top:
        for namespace in _folders(top, _NAMESPACE):
            yield from _walk_namespace(top, namespace)


def remove_namespace(root: str, namespace: bytes) -> int:
    """Remove a namespace: at once out of sight, then file by file. Returns how many blocks went."""
    trash = _TRASH_PREFIX + secrets.token_hex(16)
    with _opened(root, None) as top:
        try:
            os.rename(namespace.hex(), trash, src_dir_fd=top, dst_dir_fd=top)
        except FileNotFoundError:
            return 0
        return _remove_tree(top, trash)


def sweep_trash(root: str) -> None:
    """Finish removals that a crash cut short."""
    with contextlib.suppress(FileNotFoundError), _opened(root, None) as top:
        for name in os.listdir(top):
            if name.startswith(_TRASH_PREFIX):
                _remove_tree(top, name)


def _write_all(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


@contextlib.contextmanager
def _opened(name: str, parent: int | None) -> Iterator[int]:
    """An open folder; the root (no parent) may be reached through a link, nothing below it may."""
    fd = os.open(name, _OPEN_FOLDER if parent is not None else os.O_RDONLY | os.O_DIRECTORY, dir_fd=parent)
    try:
        yield fd
    finally:
        os.close(fd)


def _folders(parent: int, pattern: re.Pattern[str]) -> list[str]:
    with os.scandir(parent) as entries:
        return [e.name for e in entries if pattern.fullmatch(e.name) and e.is_dir(follow_symlinks=False)]


def _walk_namespace(top: int, namespace: str) -> Iterator[Found]:
    with contextlib.suppress(*_NOT_OURS), _opened(namespace, top) as folder:
        for name in _folders(folder, _SHARD):
            with contextlib.suppress(*_NOT_OURS), _opened(name, folder) as shard:
                yield from _files(shard)


def _files(shard: int) -> Iterator[Found]:
    with os.scandir(shard) as entries:
        for entry in entries:
            is_temp = entry.name.startswith(TEMP_PREFIX)
            if not (is_temp or _BLOCK.fullmatch(entry.name)) or not entry.is_file(follow_symlinks=False):
                continue
            with contextlib.suppress(FileNotFoundError):
                seen = entry.stat(follow_symlinks=False)
                yield Found(shard, entry.name, seen.st_size, seen.st_mtime, is_temp)


def _remove_tree(top: int, name: str) -> int:
    """Remove a folder of folders of files, without following links; returns how many blocks it held."""
    num_blocks = 0
    with contextlib.suppress(FileNotFoundError), _opened(name, top) as folder:
        for shard_name in _folders(folder, _SHARD):
            with contextlib.suppress(FileNotFoundError), _opened(shard_name, folder) as shard:
                for file in _files(shard):
                    num_blocks += remove(shard, file.name) and not file.is_temp
            _remove_folder(folder, shard_name)
    _remove_folder(top, name)
    return num_blocks


def _remove_folder(parent: int, name: str) -> None:
    """Remove a folder unless a late writer or a stranger left something in it; a later sweep finishes that."""
    with contextlib.suppress(OSError):
        os.rmdir(name, dir_fd=parent)
