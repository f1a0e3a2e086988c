"""The keyed tag of block bytes: who does not know the key cannot make bytes that pass.

The checksum (checksum.py) finds accidents; anybody can compute it. Blocks that leave the process's host (a store,
another machine over tcp or ucx) carry this tag beside it: keyed BLAKE3, cut to 128 bits, over a domain name, namespace,
name, part, length and payload, each variable field preceded by its length. The same key lies in a file on every worker.

The tag is a function of its inputs (no nonce): equal blocks have equal tags, so a put stays idempotent. It costs about
0.5 ns per byte and releases the interpreter lock (docs/adr/0005-keyed-tag.md). It does not hide the bytes, and it does
not stop a replay of the same block under the same name, which is the same block.

Knows nothing of stores, peers or headers.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
import struct
from pathlib import Path

from blake3 import blake3

from common.base.errors import InvalidRequest

TAG_BYTES = 16
MIN_KEY_BYTES = 32

_DOMAIN = b"pando-block-tag-1"
_FIELDS = struct.Struct("<IIIQ")
_MAX_KEY_FILE_BYTES = 4096
_NO_TAG = bytes(TAG_BYTES)


class Tagger:
    """Makes and checks tags under one key; immutable, safe to share between threads.

    Attributes:
        keyed: whether there is a key. Without one all tags are zeros, which guard nothing.
        key_id: 16 bytes that name the key without revealing it; zeros without a key.
    """

    __slots__ = ("_key", "key_id", "keyed")

    def __init__(self, key: bytes | None) -> None:
        """Take a key of at least 32 bytes (any length above; it is hashed to 32), or None for no tags."""
        assert key is None or len(key) >= MIN_KEY_BYTES, f"tag key of {len(key or b'')} bytes"
        self.keyed = key is not None
        self._key = b"" if key is None else hashlib.sha256(_DOMAIN + key).digest()
        self.key_id = _NO_TAG if key is None else hashlib.sha256(b"pando-tag-key-id" + key).digest()[:TAG_BYTES]

    def tag(self, namespace: bytes, name: bytes, payload: bytes | bytearray | memoryview, part: int = 0) -> bytes:
        """Return the 16-byte tag of a block's contiguous bytes; zeros without a key.

        Args:
            namespace: the block key's namespace.
            name: the block key's prefix hash.
            payload: the bytes; read in full, outside the interpreter lock.
            part: the block key's part.
        """
        if not self.keyed:
            return _NO_TAG
        data = memoryview(payload).cast("B")
        digest = blake3(_DOMAIN, key=self._key)
        digest.update(_FIELDS.pack(len(namespace), len(name), part, data.nbytes) + namespace + name)
        digest.update(data)
        return digest.digest(length=TAG_BYTES)

    def matches(
        self, tag: bytes, namespace: bytes, name: bytes, payload: bytes | bytearray | memoryview, part: int = 0
    ) -> bool:
        """Whether `tag` belongs to these bytes under this name; the comparison takes constant time."""
        return hmac.compare_digest(tag, self.tag(namespace, name, payload, part))


def load_tag_key(path: str | Path) -> bytes:
    """Read a key file: its raw bytes without trailing line ends, 32 to 4,096 of them.

    Raises:
        InvalidRequest: the file is missing, not a plain file, readable by group or others, too short or too long.
            The message names the file and the cause, never the content.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as cause:
        raise _bad_key(path, f"cannot be opened: {cause.strerror}") from cause
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise _bad_key(path, "is not a plain file")
        if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise _bad_key(path, f"may be used by group or others (mode {found.st_mode & 0o777:04o}); chmod 600")
        key = os.read(fd, _MAX_KEY_FILE_BYTES + 1).rstrip(b"\r\n")
    finally:
        os.close(fd)
    if not MIN_KEY_BYTES <= len(key) <= _MAX_KEY_FILE_BYTES:
        raise _bad_key(path, f"holds {len(key)} bytes; a key has {MIN_KEY_BYTES} to {_MAX_KEY_FILE_BYTES}")
    return key


def _bad_key(path: str | Path, cause: str) -> InvalidRequest:
    return InvalidRequest(f"tag key file {path} {cause}", reason="bad_tag_key")
