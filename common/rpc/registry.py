"""The registry: who is in the cluster, kept in any Redis-protocol server. The only file that imports redis.

Each worker writes one key with a time to live, from an OS thread of its own, so that a busy event loop does not look
like death. Readers list all keys; an entry that is gone only makes its worker *suspect*: ejection also needs a failed
ping, so that a lost registry ejects nobody. The processes of the KV store are entries of another kind, which only those
see who ask for it; they also share a lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields

import orjson
import redis
import redis.asyncio
import redis.asyncio.retry
from redis.backoff import NoBackoff
from redis.retry import Retry

from common.base.errors import Unavailable
from common.base.logging import get_logger


@dataclass(slots=True, frozen=True)
class WorkerRecord:
    """A worker's entry.

    Attributes:
        worker_id: its name.
        incarnation: this life of it.
        address: gRPC host:port.
        roles: "prefill", "decode"; of the store "node", "master", "leader".
        pid: process id on its host.
        metrics_address: host:port of its Prometheus exporter.
        engine_step_age_s: seconds since the engine's current step began; 0 when idle.
        draining: takes nothing new.
    """

    worker_id: str
    incarnation: int
    address: str
    roles: list[str] = field(default_factory=list)
    pid: int = 0
    metrics_address: str = ""
    engine_step_age_s: float = 0.0
    draining: bool = False


_FIELDS = tuple(field.name for field in fields(WorkerRecord))


WORKER, STORE = "worker", "store"
"""Kinds of entries."""

_KEEP_LOCK = """
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then redis.call('PEXPIRE', KEYS[1], ARGV[2]) return 1 end
if not holder then redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) return 1 end
return 0
"""
_WRITE_ENTRY = """
local entry = redis.call('GET', KEYS[1])
if entry and not string.find(entry, ARGV[1], 1, true) then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
"""
_REMOVE_ENTRY = """
local entry = redis.call('GET', KEYS[1])
if entry and string.find(entry, ARGV[1], 1, true) then redis.call('DEL', KEYS[1]) end
return 0
"""
_FREE_LOCK = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end return 0"


def _prefix(cluster: str, kind: str) -> str:
    return f"pando:{cluster}:{kind}:"


def _mark(record: WorkerRecord) -> str:
    """Text of every entry of this life and of no other's: a registry's scripts have no numbers of 63 bits."""
    return f'"incarnation":{record.incarnation},'


def _parse(worker_id: str, value: bytes | str) -> WorkerRecord:
    """The entry of a worker. Fields of other versions are left out, so that versions can mix.

    Raises:
        ValueError, TypeError: it is none; readers go on with the others.
    """
    entry = orjson.loads(value)
    if not isinstance(entry, dict):
        raise ValueError("not an object")
    record = WorkerRecord(**{name: entry[name] for name in _FIELDS if name in entry})
    right = {
        "worker_id": record.worker_id == worker_id,
        "incarnation": _is_count(record.incarnation),
        "address": isinstance(record.address, str),
        "roles": isinstance(record.roles, list) and all(isinstance(role, str) for role in record.roles),
        "pid": _is_count(record.pid),
        "metrics_address": isinstance(record.metrics_address, str),
        "engine_step_age_s": isinstance(record.engine_step_age_s, int | float),
        "draining": isinstance(record.draining, bool),
    }
    wrong = ", ".join(name for name, is_right in right.items() if not is_right)
    if wrong:
        raise ValueError(f"wrong: {wrong}")
    return record


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64


class Heartbeat:
    """Writes a worker's record every `interval_s` from its own thread until closed; then removes it.

    The latest life to come owns the entry: an earlier one that was frozen and goes on stays out while it is there.

    Args:
        url: of the registry.
        cluster: name of the cluster.
        record: called on the thread for the current record; must not block.
        interval_s, ttl_s: heartbeat period and life of an entry.
        kind: of the entry.
    """

    def __init__(
        self,
        url: str,
        cluster: str,
        record: Callable[[], WorkerRecord],
        *,
        interval_s: float,
        ttl_s: float,
        kind: str = WORKER,
    ) -> None:
        # No retries inside: the next beat is the retry, and leaving must not wait for a registry that is gone.
        self._client = redis.Redis.from_url(
            url, socket_timeout=ttl_s / 2, socket_connect_timeout=ttl_s / 2, retry=Retry(NoBackoff(), 0)
        )
        self._prefix = _prefix(cluster, kind)
        self._record = record
        self._interval_s = interval_s
        self._ttl_ms = int(ttl_s * 1000)
        self._stopping = threading.Event()
        self._reachable = True
        self._claimed = self._superseded = False
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin; the first write happens at once, on the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and remove the entry if the registry answers."""
        self._stopping.set()
        self._thread.join()
        record = self._record()
        try:
            self._client.eval(_REMOVE_ENTRY, 1, self._prefix + record.worker_id, _mark(record))
        except redis.RedisError as error:
            get_logger().debug("registry did not take the sign-off", error=str(error))
        self._client.close()

    def _run(self) -> None:
        while True:
            self._beat()
            if self._stopping.wait(self._interval_s):
                return

    def _beat(self) -> None:
        record = self._record()
        try:
            written = self._write(self._prefix + record.worker_id, record)
        except redis.RedisError as error:
            if self._reachable:
                get_logger().warning("registry unreachable; serving goes on", error=str(error))
            self._reachable = False
        else:
            if not self._reachable:
                get_logger().info("registry reachable again")
            self._reachable = True
            if not written and not self._superseded:
                get_logger().error("another life of this worker has registered; this one stays out of the registry")
            self._superseded = not written

    def _write(self, key: str, record: WorkerRecord) -> bool:
        """Claim the entry with the first write, keep it with all others; False when another life has claimed it."""
        value = orjson.dumps(asdict(record))
        if not self._claimed:
            self._client.set(key, value, px=self._ttl_ms)
            self._claimed = True
            return True
        written: int = self._client.eval(_WRITE_ENTRY, 1, key, _mark(record), value, str(self._ttl_ms))
        return written == 1


class RegistryReader:
    """Lists the entries of one kind of a cluster; used on one asyncio loop."""

    def __init__(self, url: str, cluster: str, timeout_s: float, kind: str = WORKER) -> None:
        self._client = redis.asyncio.Redis.from_url(
            url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=redis.asyncio.retry.Retry(NoBackoff(), 0),
        )
        self._prefix = _prefix(cluster, kind)
        self._unreadable: set[str] = set()

    async def list_workers(self) -> list[WorkerRecord]:
        """All live entries, by worker id; one that makes no sense is left out, and told of once.

        Raises:
            Unavailable: the registry does not answer; the caller goes on with what it knows.
        """
        try:
            keys = sorted([key async for key in self._client.scan_iter(self._prefix + "*", count=1000)])
            values = await self._client.mget(keys) if keys else []
        except (redis.RedisError, OSError) as error:
            raise Unavailable(f"registry: {error}", reason="registry_unreachable") from error
        records: list[WorkerRecord] = []
        unreadable: set[str] = set()
        for key, value in zip(keys, values, strict=True):
            name = bytes(key).decode(errors="replace")
            try:
                if value is not None:
                    records.append(_parse(name.removeprefix(self._prefix), value))
            except (ValueError, TypeError) as error:
                unreadable.add(name)
                if name not in self._unreadable:
                    get_logger().warning("a registry entry makes no sense", entry=name, error=str(error))
        self._unreadable = unreadable
        return records

    async def close(self) -> None:
        """Close the connection."""
        await self._client.aclose()


class RegistryLock:
    """A lock with a time to live that at most one of its contenders has; used on one asyncio loop.

    Args:
        url, cluster: of the registry.
        name: of the lock.
        owner: of this contender, different from all others'.
        ttl_s: life of the lock after each `keep`.
        timeout_s: for a call.
    """

    def __init__(self, url: str, cluster: str, name: str, owner: str, *, ttl_s: float, timeout_s: float) -> None:
        self._client = redis.asyncio.Redis.from_url(
            url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=redis.asyncio.retry.Retry(NoBackoff(), 0),
        )
        self._key = f"pando:{cluster}:lock:{name}"
        self._owner = owner
        self._ttl_ms = int(ttl_s * 1000)

    async def keep(self) -> bool:
        """Take the lock if it is free, extend it if it is ours; whether it is ours now.

        Raises:
            Unavailable: the registry does not answer; the lock may or may not be ours.
        """
        return await self._run(_KEEP_LOCK, self._owner, str(self._ttl_ms)) == 1

    async def free(self) -> None:
        """Let others have it. Raises Unavailable."""
        await self._run(_FREE_LOCK, self._owner)

    async def close(self) -> None:
        """Close the connection."""
        await self._client.aclose()

    async def _run(self, script: str, *arguments: str) -> int:
        try:
            answer: int = await self._client.eval(script, 1, self._key, *arguments)
        except (redis.RedisError, OSError) as error:
            raise Unavailable(f"registry: {error}", reason="registry_unreachable") from error
        return answer
