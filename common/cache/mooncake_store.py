"""The `mooncake` backend of L3: blocks in a Mooncake Store, for fleets that run one already.

Header and payload are one object. Mooncake's calls block, for half a minute when master or node hang, so they run in
threads that callers leave at their deadline (threads.py); bytes pass through slabs (mooncake_staging.py), so that what
comes late lands nowhere. What Mooncake says is told apart: not there (MISS), gone since the lookup (EXPIRED), another
length (CORRUPT), a dead node or master (ERROR).

A lease of Mooncake (10 s unless its master is told otherwise) starts with the lookup. It keeps blocks from eviction but
not from `remove_namespace` and not from the death of their node.

Knows nothing of headers, checksums or tags: the seal above tells wrong bytes.
"""

from __future__ import annotations

import functools
import http.client
import time
from collections.abc import Callable, Sequence

from common.base.errors import Leg, Unavailable
from common.cache.l3 import HEADER_BYTES, BlockKey, L3Stats, PutState, SealedBlock
from common.cache.mooncake_client import (
    Client,
    Connection,
    codes_of,
    connect,
    found_state,
    name_of,
    pattern_of,
)
from common.cache.mooncake_config import MooncakeConfig
from common.cache.mooncake_lease import MooncakeLease
from common.cache.mooncake_put import put_objects
from common.cache.mooncake_staging import Staging, chunks
from common.cache.threads import IoThreads, Job

_STATS_S = 1.0
_MAX_METRICS_BYTES = 1 << 20


class MooncakeStore:
    """See `Backend`. Start it before use.

    Args:
        config: of this worker's client.
        connect_client: makes the client, in a thread; see `mooncake_client.connect`.
    """

    name = "mooncake"

    def __init__(self, config: MooncakeConfig, connect_client: Callable[[MooncakeConfig], Client] = connect) -> None:
        self._config = config
        self._connect = connect_client
        self._connection: Connection | None = None
        self._staging = Staging(config.slab_bytes, config.staging_bytes, config.quarantine_s)
        self._readers = IoThreads("mooncake-read", config.num_readers, config.max_jobs)
        self._writers = IoThreads("mooncake-write", config.num_writers, config.max_jobs)
        self._admin = IoThreads("mooncake-admin", 1, 4)

    async def start(self) -> None:
        """See `Backend.start`."""
        problems: list[Unavailable] = []

        def open_client(job: Job, _number: int) -> None:
            try:
                connection = Connection(self._connect(self._config))
            except Unavailable as error:
                problems.append(error)
                return
            if not job.commit(lambda: setattr(self, "_connection", connection)):
                connection.close()

        await self._admin.for_each([0], open_client, self._config.start_s)
        if problems:
            raise problems[0]
        if self._connection is None:
            message = f"Mooncake's master {self._config.master_server_address} did not answer within"
            raise Unavailable(f"{message} {self._config.start_s:g} s", leg=Leg.STORE)

    async def lookup(self, keys: Sequence[BlockKey], deadline_s: float) -> MooncakeLease:
        """See `Backend.lookup`."""
        names = [name_of(key) for key in keys]
        connection = self._connection
        lease = MooncakeLease(names, connection, self._staging, self._readers, self._config.slab_bytes)

        def find(job: Job, _number: int) -> None:
            assert connection is not None, "no job without a connection"
            with connection.use() as client:
                if client is not None:
                    codes = codes_of(len(names), client.batch_is_exist, names)
                    job.commit(lambda: lease.fill([found_state(code) for code in codes]))

        if names and connection is not None:
            await self._readers.for_each([0], find, deadline_s)
        return lease

    async def put(self, blocks: Sequence[SealedBlock], deadline_s: float) -> list[PutState]:
        """See `Backend.put`."""
        answers = [PutState.ERROR] * len(blocks)
        connection = self._connection
        if connection is None:
            return answers
        ends_s = time.monotonic() + deadline_s
        shares = chunks([HEADER_BYTES + block.payload.nbytes for block in blocks], self._config.slab_bytes)

        def write(job: Job, number: int) -> None:
            share = shares[number]
            with connection.use() as client:
                if client is not None:
                    states = put_objects(client, self._staging, job, [blocks[one] for one in share], ends_s)
                    for one, state in zip(share, states, strict=True):
                        job.commit(functools.partial(answers.__setitem__, one, state))

        await self._writers.for_each(range(len(shares)), write, deadline_s)
        return answers

    async def discard(self, keys: Sequence[BlockKey]) -> None:
        """See `Backend.discard`."""
        if self._connection is not None:
            self._writers.submit(functools.partial(_remove, self._connection, [name_of(key) for key in keys]))

    async def remove_namespace(self, namespace: bytes) -> int:
        """See `Backend.remove_namespace`; also removes leased blocks, whose readers then see EXPIRED."""
        removed = -1
        connection = self._connection

        def remove(_job: Job, _number: int) -> None:
            nonlocal removed
            assert connection is not None, "no job without a connection"
            with connection.use() as client:
                if client is not None:
                    removed = codes_of(1, lambda: [client.remove_by_regex(pattern_of(namespace), True)])[0]

        if connection is not None:
            await self._admin.for_each([0], remove, self._config.admin_s)
        if removed < 0:
            raise Unavailable(f"Mooncake did not remove the namespace (code {removed})", leg=Leg.STORE)
        return removed

    async def stats(self) -> L3Stats:
        """See `Backend.stats`: all that the store holds, also for others. The master's HTTP server knows."""
        master, port = self._config.master, self._config.master_metrics_port
        found = L3Stats(0, 0)

        def ask(job: Job, _number: int) -> None:
            nonlocal found
            assert master is not None, "no job without an address"
            stats = _ask_master(master[0], port)
            if stats is not None:
                found = stats

        if master is not None and port:
            await self._readers.for_each([0], ask, _STATS_S)
        return found

    async def close(self) -> None:
        """See `Backend.close`. A client with calls that hang is closed when they return; nobody waits for that."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._admin.for_each([0], lambda _job, _number: connection.close(), self._config.close_s)
        for threads in (self._readers, self._writers, self._admin):
            threads.close()


def _remove(connection: Connection, names: list[str]) -> None:
    """Forget objects, leased or not."""
    with connection.use() as client:
        if client is not None:
            codes_of(len(names), client.batch_remove, names, True)


def _ask_master(host: str, port: int) -> L3Stats | None:
    """The master's gauges, from its HTTP server; None when it does not answer."""
    connection = http.client.HTTPConnection(host, port, timeout=_STATS_S)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read(_MAX_METRICS_BYTES).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    gauges = dict(line.split()[:2] for line in text.splitlines() if line.startswith("master_") and " " in line)
    names = ("master_key_count", "master_allocated_bytes", "master_total_capacity_bytes")
    return L3Stats(*(int(float(gauges.get(name, 0))) for name in names))
