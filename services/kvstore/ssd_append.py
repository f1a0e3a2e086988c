"""Takes objects into the SSD log: who is new, whether there is room, and when an answer may be given.

The only place that knows the sync policy. Faults of the disk are answers per object here.
"""

from __future__ import annotations

from collections.abc import Sequence

from common.base.clock import Clock
from common.base.errors import Unavailable
from common.base.logging import get_logger
from common.cache.l3 import BlockKey, PutState
from common.transport.checksum import checksum
from services.kvstore.ssd_disk import FULL
from services.kvstore.ssd_durable import Durable
from services.kvstore.ssd_format import MAX_PAYLOAD_BYTES, record_bytes
from services.kvstore.ssd_options import SsdOptions, SyncPolicy
from services.kvstore.ssd_reclaim import Reclaim
from services.kvstore.ssd_records import Records
from services.kvstore.ssd_tail import Tail

Object = tuple[BlockKey, bytes | memoryview, memoryview]
"""Key, HEADER_BYTES bytes of header, contiguous payload."""


class Committer:
    """Pushes what was written to the medium, as the policy says."""

    def __init__(self, durable: Durable, options: SsdOptions, clock: Clock) -> None:
        self._durable = durable
        self._options = options
        self._clock = clock
        self._synced_at_s = clock()

    def sync(self) -> None:
        """Push all of it, whatever the policy is. Raises OSError."""
        self._durable.sync()
        self._synced_at_s = self._clock()

    def commit(self, sequence: int | None) -> None:
        """Records up to a sequence number (`None`: all) were written, and somebody waits for an answer.

        Raises:
            OSError: under BATCH, they may not be on the medium.
        """
        if self._options.sync is SyncPolicy.BATCH:
            if sequence is None:
                self._durable.sync()
            else:
                self._durable.sync_through(sequence)
        elif self._options.sync is SyncPolicy.INTERVAL:
            self._sync_if_due()

    def _sync_if_due(self) -> None:
        now_s = self._clock()
        if now_s - self._synced_at_s < self._options.sync_interval_s:
            return
        self._synced_at_s = now_s
        try:
            self._durable.sync()
        except OSError as error:  # Nobody was promised more.
            get_logger().warning("the SSD log cannot be synced", error=str(error))


class Appender:
    """See the module.

    Attributes:
        appended_bytes: payload bytes taken in.
    """

    def __init__(self, records: Records, reclaim: Reclaim, tail: Tail, committer: Committer) -> None:
        self.appended_bytes = 0
        self._records = records
        self._reclaim = reclaim
        self._tail = tail
        self._committer = committer

    def append(self, objects: Sequence[Object]) -> list[PutState]:
        """See `SsdLog.append_many`."""
        sums = [checksum(payload) for _, _, payload in objects]
        states: list[PutState] = []
        newest = 0
        with self._records.appending:
            for one, payload_sum in zip(objects, sums, strict=True):
                state, sequence = self._append(one, payload_sum)
                states.append(state)
                newest = max(newest, sequence)
        try:
            self._committer.commit(newest)
        except OSError as error:
            get_logger().warning("objects are not known to be on the SSD", error=str(error))
            return [state if state is PutState.NO_SPACE else PutState.ERROR for state in states]
        return states

    def _append(self, one: Object, payload_sum: int) -> tuple[PutState, int]:
        """Append one object unless it is there; returns the sequence number of its record as well."""
        key, _, payload = one
        if payload.nbytes > MAX_PAYLOAD_BYTES:
            return PutState.NO_SPACE, 0
        try:
            before = self._records.find(key)
            if before is not None and before.payload_bytes == payload.nbytes:
                return PutState.PRESENT, before.sequence
            if before is not None:
                self._records.remove([key])
            for _ in range(2):  # A medium that turns out full gives up old files once.
                if not self._reclaim.make_room(record_bytes(payload.nbytes)):
                    break
                sequence = self._write(one, payload_sum)
                if sequence:
                    return PutState.STORED, sequence
        except (OSError, Unavailable) as error:
            get_logger().warning("an object cannot be written to the SSD log", error=str(error))
            return PutState.ERROR, 0
        return PutState.NO_SPACE, 0

    def _write(self, one: Object, payload_sum: int) -> int:
        """Write one object; returns its sequence number, 0 when the medium has no room."""
        active = self._tail.active_number
        try:
            location = self._records.write(*one, payload_sum)
        except OSError as error:
            if error.errno not in FULL:
                raise
            self._reclaim.medium_is_full()
            return 0
        if location.number != active:
            self._reclaim.medium_has_room()
        self.appended_bytes += one[2].nbytes
        return location.sequence
