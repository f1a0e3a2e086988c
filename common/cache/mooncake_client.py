"""The one file that knows the package `mooncake`: its client, its return codes, the names of objects.

The package is imported when a store is started, not before: it is optional, loads 20 MB of libraries and needs
libibverbs. Its calls release the interpreter lock, block for up to MC_RPC_TIMEOUT_MS (30 s) when a peer hangs, and give
back a code per key. An address it is given must stay valid until the call returns: it does not check.

What the codes mean was found out with version 0.3.13 (docs/mooncake.md has the table).
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from common.base.errors import Leg, Unavailable
from common.base.logging import get_logger
from common.cache.l3 import BlockKey, PutState, State
from common.cache.mooncake_config import MooncakeConfig

BROKEN, TRANSFER_FAILED, NO_ROOM = -1, -800, -200
_GONE = frozenset({-703, -704, -707, -710, -712})
_LONGER = -600
_PROBE_S = 3.0
_FAILED = frozenset({TRANSFER_FAILED, BROKEN})


class Client(Protocol):
    """What is used of `mooncake.store.MooncakeDistributedStore`."""

    def register_buffer(self, buffer_ptr: int, size: int) -> int: ...
    def unregister_buffer(self, buffer_ptr: int) -> int: ...
    def batch_is_exist(self, keys: list[str]) -> list[int]: ...
    def batch_get_into(self, keys: list[str], buffer_ptrs: list[int], sizes: list[int]) -> list[int]: ...
    def batch_put_from(self, keys: list[str], buffer_ptrs: list[int], sizes: list[int]) -> list[int]: ...
    def batch_get_replica_desc(self, keys: list[str]) -> dict[str, list[Any]]: ...
    def batch_remove(self, keys: list[str], force: bool) -> list[int]: ...
    def remove_by_regex(self, regex_pattern: str, force: bool) -> int: ...
    def close(self) -> int: ...


def connect(config: MooncakeConfig) -> Client:
    """Load the package and connect; blocks, for a minute and a half when the master stops answering in between.

    Raises:
        Unavailable: no package, a library is missing, no master, or Mooncake refuses; the message says which.
    """
    try:
        from mooncake.store import MooncakeDistributedStore  # noqa: PLC0415 - optional and heavy
    except ImportError as error:
        raise Unavailable(
            f"Mooncake cannot be loaded ({error}): install pando[mooncake] and, from the system, libibverbs1",
            leg=Leg.STORE,
        ) from error
    if config.master is not None:
        try:
            socket.create_connection(config.master, _PROBE_S).close()
        except OSError as error:
            message = f"Mooncake's master {config.master_server_address} cannot be reached: {error.strerror or error}"
            raise Unavailable(message, leg=Leg.STORE) from error
    client = MooncakeDistributedStore()
    code = client.setup(
        config.local_hostname,
        config.metadata_server,
        config.segment_bytes,
        0,
        config.protocol,
        config.device_name,
        config.master_server_address,
    )
    if code != 0:
        message = f"Mooncake refuses to start with master {config.master_server_address}: code {code}, see its log"
        raise Unavailable(message, leg=Leg.STORE)
    return client  # type: ignore[no-any-return]


class Connection:
    """A client and who is inside it: closed once, after `close` was called and the last caller has left."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._num_inside = 0
        self._closing = False

    @contextlib.contextmanager
    def use(self) -> Iterator[Client | None]:
        """The client for a call; None once it is closing. Whoever leaves last closes it, which takes seconds."""
        with self._lock:
            entered = not self._closing
            self._num_inside += entered
        try:
            yield self._client if entered else None
        finally:
            with self._lock:
                self._num_inside -= entered
                last = entered and self._closing and self._num_inside == 0
            if last:
                self._client.close()

    def close(self) -> None:
        """Close soon; idempotent. Blocks for seconds when nobody is inside."""
        with self._lock:
            last = not self._closing and self._num_inside == 0
            self._closing = True
        if last:
            self._client.close()


def name_of(key: BlockKey) -> str:
    """The object's name: all of a key, so that different keys have different names."""
    return f"{_space(key.namespace)}{key.prefix_hash.hex()}/{key.part}"


def pattern_of(namespace: bytes) -> str:
    """A regular expression for the names of all blocks of a namespace."""
    return "^" + _space(namespace)


def _space(namespace: bytes) -> str:
    return f"pando/{namespace.hex()}/"


def codes_of(count: int, call: Callable[..., list[int]], *arguments: object) -> list[int]:
    """The codes of a batch call; BROKEN for all when it raises or does not answer for `count` keys."""
    try:
        codes = call(*arguments)
    except RuntimeError as error:
        get_logger().warning("a call of Mooncake failed", error=str(error))
        return [BROKEN] * count
    return codes if len(codes) == count else [BROKEN] * count


def found_state(code: int) -> State:
    """What a lookup learns: 1 is there, 0 is not, anything else is no answer."""
    return {1: State.HIT, 0: State.MISS}.get(code, State.ERROR)


def read_state(code: int, num_bytes: int) -> State:
    """What a read of an object of `num_bytes` bytes learns; it was found before, so that gone is EXPIRED.

    Nothing empty is ever stored: 0 bytes come from a node that is not there.
    """
    if code == num_bytes:
        return State.HIT
    if code > 0 or code == _LONGER:
        return State.CORRUPT
    return State.EXPIRED if code in _GONE else State.ERROR


def put_state(code: int) -> PutState:
    """What became of a put."""
    if code == 0:
        return PutState.STORED
    return PutState.NO_SPACE if code == NO_ROOM else PutState.ERROR


def left_bytes_behind(codes: Sequence[int]) -> bool:
    """Whether a transfer was given up, so that its memory may still be read or written."""
    return not _FAILED.isdisjoint(codes)
