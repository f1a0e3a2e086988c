"""The reading side of the `ucx` driver: fetches under way and the endpoints they use. All on the UCX thread.

A fetch lands in its slab. It is *matched* once its payload has been announced and the library was given the slab's
address; from then on the slab belongs to the library until the receive has ended, whatever becomes of the fetch. A
fetch that is abandoned while matched leaves its slab in quarantine; if the receive has not ended `_GRACE_S` later,
the peer does not deliver, and closing the endpoint ends it.

It does not know blocks: see `common.transport.ucx` for who verifies and copies.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable

from common.base.errors import Leg, PandoError, PeerLost
from common.transport import wire
from common.transport.address import Address
from common.transport.base import Extent
from common.transport.ucx_binding import OK, Endpoint, Message, UcxError, UcxWorker
from common.transport.ucx_owner import DATA_ID, FETCH, REQUEST_ID, STATUS, STATUS_ID
from common.transport.ucx_slabs import Slab, Slabs

_GRACE_S = 0.5


class Fetch:
    """One extent on its way into a slab.

    Attributes:
        address: the owner.
        incarnation: of the owner, as its endpoint said.
        source: what is wanted.
        slab: where it lands; the caller's again once `done` was called, unless it abandons the fetch.
        done: called once, on the UCX thread, when the fetch has ended and was not abandoned.
        error: how it ended; None means that the bytes are in the slab, unverified.
    """

    def __init__(
        self, address: Address, incarnation: int, source: Extent, slab: Slab, done: Callable[[Fetch], None]
    ) -> None:
        self.address = address
        self.incarnation = incarnation
        self.source = source
        self.slab = slab
        self.done = done
        self.error: PandoError | None = None
        self.endpoint: Endpoint = 0
        self.number = 0
        self.is_matched = False
        self.has_landed = False
        self.has_status = False
        self.abandoned_at: float | None = None


class UcxReader:
    """Fetches extents from peers."""

    def __init__(self, worker: UcxWorker, slabs: Slabs) -> None:
        """Handles data and status messages of `worker` from now on."""
        self._worker = worker
        self._slabs = slabs
        self._numbers = itertools.count(1)
        self._fetches: dict[int, Fetch] = {}
        self._quarantine: dict[int, Fetch] = {}
        self._endpoints: dict[Address, Endpoint] = {}
        self._lost: list[Address] = []
        self._closing = 0
        worker.handle(DATA_ID, self._on_data)
        worker.handle(STATUS_ID, self._on_status)

    @property
    def is_quiet(self) -> bool:
        """Whether the library holds no slab and no endpoint of ours."""
        return not (self._fetches or self._quarantine or self._endpoints or self._closing)

    def begin(self, fetch: Fetch) -> None:
        """Ask the owner for an extent."""
        try:
            fetch.endpoint = self._connect(fetch.address)
        except UcxError as error:
            self._end(fetch, PeerLost(f"ucx peer: {error}", leg=Leg.TRANSFER))
            return
        fetch.number = next(self._numbers)
        self._fetches[fetch.number] = fetch
        request = wire.pack_request(fetch.address.token, fetch.incarnation, [fetch.source])
        self._worker.send(fetch.endpoint, REQUEST_ID, FETCH.pack(fetch.number) + request, (0, 0), lambda _: None)

    def abandon(self, fetch: Fetch, now: float) -> None:
        """Nobody waits for the fetch any more; its slab goes back to the pool as soon as that is safe."""
        self._fetches.pop(fetch.number, None)
        if fetch.is_matched and not fetch.has_landed:
            fetch.abandoned_at = now
            self._quarantine[fetch.number] = fetch
            self._slabs.quarantine()
        else:
            self._slabs.give(fetch.slab)

    def step(self, now: float) -> float | None:
        """Close what must be closed; between two calls of `progress`.

        Returns:
            Seconds until it wants to be called again at the latest; None: not before something happens.
        """
        overdue = [fetch for fetch in self._quarantine.values() if now - (fetch.abandoned_at or now) >= _GRACE_S]
        self._lost.extend(fetch.address for fetch in overdue if self._endpoints.get(fetch.address) == fetch.endpoint)
        while self._lost:
            self.drop(self._lost.pop())
        return _GRACE_S if self._quarantine else None

    def drop(self, address: Address) -> None:
        """Close the endpoint to a peer; fetches over it end with PeerLost."""
        endpoint = self._endpoints.pop(address, None)
        if endpoint is None:
            return
        self._closing += 1
        self._worker.close(endpoint, self._closed)
        for fetch in [fetch for fetch in self._fetches.values() if fetch.endpoint == endpoint]:
            if fetch.has_landed or not fetch.is_matched:  # else it ends when its receive does
                self._end(fetch, PeerLost("the ucx peer was lost", leg=Leg.TRANSFER))

    def close(self) -> None:
        """Close all endpoints."""
        for address in list(self._endpoints):
            self.drop(address)

    def _connect(self, address: Address) -> Endpoint:
        endpoint = self._endpoints.get(address)
        if endpoint is None:
            endpoint = self._worker.connect(address.host, address.port, lambda _: self._lost.append(address))
            self._endpoints[address] = endpoint
        return endpoint

    def _closed(self, _: int) -> None:
        self._closing -= 1

    def _on_data(self, message: Message) -> None:
        """A payload has arrived or can be fetched; one that nobody asked for is dropped by the library."""
        if len(message.header) != FETCH.size:
            return
        fetch = self._fetches.get(FETCH.unpack(message.header)[0])
        if fetch is None or fetch.is_matched or fetch.endpoint != message.sender:
            return
        if message.length != fetch.source.length:
            self._end(fetch, PeerLost(f"the ucx peer sent {message.length} bytes", leg=Leg.TRANSFER))
            return
        fetch.is_matched = True
        if message.is_rendezvous:
            self._worker.receive(message, fetch.slab.address, lambda status: self._received(fetch, status))
        else:
            ctypes.memmove(fetch.slab.address, message.data, message.length)
            self._received(fetch, OK)

    def _received(self, fetch: Fetch, status: int) -> None:
        """The library has let go of the slab."""
        fetch.has_landed = True
        if self._quarantine.pop(fetch.number, None) is not None:
            self._slabs.release(fetch.slab)
        elif status != OK:
            self._end(fetch, PeerLost(f"the ucx peer was lost: status {status}", leg=Leg.TRANSFER))
        else:
            self._end_if_complete(fetch)

    def _on_status(self, message: Message) -> None:
        if len(message.header) != STATUS.size or message.length:
            return
        number, status = STATUS.unpack(message.header)
        fetch = self._fetches.get(number)
        if fetch is None or fetch.endpoint != message.sender:
            return
        fetch.has_status = True
        try:
            wire.raise_for(status)
        except PandoError as error:
            fetch.error = error
        self._end_if_complete(fetch)

    def _end_if_complete(self, fetch: Fetch) -> None:
        """A fetch ends when its status has come and the library does not hold its slab (any more, or yet)."""
        if fetch.has_status and (fetch.has_landed or (fetch.error is not None and not fetch.is_matched)):
            self._end(fetch, fetch.error)

    def _end(self, fetch: Fetch, error: PandoError | None) -> None:
        self._fetches.pop(fetch.number, None)
        fetch.error = error
        fetch.done(fetch)
