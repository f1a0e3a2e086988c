"""The owning side of the `ucx` driver: answers requests for extents. All of it runs on the UCX thread.

A request is the header of one active message and has no payload, so whatever arrives costs no memory; what is not a
request is dropped. The payload is sent from the region's memory, and the generation is checked once the library has
let go of it.

It does not know what peers do with the bytes; see `common.transport.ucx` for the messages.
"""

from __future__ import annotations

import struct
from collections import deque

import numpy as np

from common.base.errors import LeaseLost, Overloaded, PandoError
from common.transport import wire
from common.transport.region import Region
from common.transport.segments import Lent, Segments
from common.transport.ucx_binding import OK, Endpoint, Message, UcxError, UcxWorker

REQUEST_ID, DATA_ID, STATUS_ID = 1, 2, 3
FETCH = struct.Struct("<Q")  # the reader's number of its fetch; heads every message
STATUS = struct.Struct("<QI")  # number, wire.Status
_REQUEST_BYTES = FETCH.size + wire.HEAD_BYTES + wire.WANT_BYTES
_MAX_PEERS = 256
_MAX_SENDING = 4096


class UcxOwner:
    """Lends this process's regions to peers that connect."""

    def __init__(self, worker: UcxWorker, segments: Segments, token: bytes, incarnation: int) -> None:
        """Handles request messages of `worker` from now on."""
        self._worker = worker
        self._segments = segments
        self._token = token
        self._incarnation = incarnation
        self._addresses: dict[int, int] = {}
        self._requests: deque[int] = deque()
        self._peers: set[Endpoint] = set()
        self._lost: set[Endpoint] = set()
        self.num_sending = 0
        worker.handle(REQUEST_ID, self._on_request)

    def listen(self, host: str, port: int) -> int:
        """Accept peers; returns the port. Raises Unsupported."""
        return self._worker.listen(host, port, self._requests.append)

    def step(self) -> None:
        """Admit who asked to connect and drop who was lost; between two calls of `progress`."""
        while self._requests:
            self._admit(self._requests.popleft())
        while self._lost:
            endpoint = self._lost.pop()
            if endpoint in self._peers:
                self._peers.discard(endpoint)
                self._worker.close(endpoint, lambda _: None)

    def close(self) -> None:
        """Hang up on everybody."""
        self._lost.update(self._peers)
        while self._requests:
            self._worker.reject(self._requests.popleft())
        self.step()

    def _admit(self, request: int) -> None:
        if len(self._peers) >= _MAX_PEERS:
            self._worker.reject(request)
            return
        accepted: list[Endpoint] = []
        try:
            accepted.append(self._worker.accept(request, lambda _: self._lost.update(accepted)))
        except UcxError:
            return  # the peer has gone already
        self._peers.update(accepted)

    def _on_request(self, message: Message) -> None:
        if message.length or message.sender not in self._peers or len(message.header) != _REQUEST_BYTES:
            return
        (number,) = FETCH.unpack_from(message.header)
        try:
            lent = self._lend(message.header[FETCH.size :])
        except PandoError as error:
            self._answer(message.sender, number, wire.status_of(error))
            return
        self._send(message.sender, number, lent)

    def _lend(self, request: bytes) -> Lent:
        if self.num_sending >= _MAX_SENDING // 2:
            raise Overloaded("too many extents are being sent")
        count = wire.unpack_head(request, self._token, self._incarnation)
        (want,) = wire.unpack_wants(request[wire.HEAD_BYTES :], count)
        return self._segments.lend(want)

    def _send(self, to: Endpoint, number: int, lent: Lent) -> None:
        def sent(status: int) -> None:
            self.num_sending -= 1
            if status != OK or to not in self._peers:
                return
            try:
                lent.check_generation()
            except LeaseLost as error:
                self._answer(to, number, wire.status_of(error))
            else:
                self._answer(to, number, wire.Status.OK)

        self.num_sending += 1
        payload = (self._address_of(lent.region) + lent.offset, lent.length)
        self._worker.send(to, DATA_ID, FETCH.pack(number), payload, sent)

    def _answer(self, to: Endpoint, number: int, status: wire.Status) -> None:
        """Tell a reader how its fetch ended; one that asks without ever listening is dropped."""
        if self.num_sending >= _MAX_SENDING:
            self._lost.add(to)
            return

        def sent(_: int) -> None:
            self.num_sending -= 1

        self.num_sending += 1
        self._worker.send(to, STATUS_ID, STATUS.pack(number, status), (0, 0), sent)

    def _address_of(self, region: Region) -> int:
        """Where a region's data lies; looked up once, for it outlives the driver and never moves."""
        address = self._addresses.get(id(region))
        if address is None:
            address = self._addresses[id(region)] = np.frombuffer(region.data, np.uint8).ctypes.data
        return address
