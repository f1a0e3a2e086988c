"""A binding of the part of libucp that the `ucx` driver needs: one worker with active messages, in Python's terms.

Why not a ready one: docs/adr/0002-ucx-binding.md. One binding serves a distribution's library (which has verbs) and
the PyPI wheel.

A `UcxWorker` and everything made from it belong to one thread at a time. All callbacks run inside `progress` on that
thread and must not raise. Memory given to `send` and `receive` stays the library's until `done` was called.
It does not know what the messages mean.
"""

from __future__ import annotations

import ctypes
import ipaddress
import itertools
import socket
import struct
from collections.abc import Callable
from ctypes import byref, c_int, c_void_p
from typing import Any

from common.base.errors import Unsupported
from common.transport.ucx_library import (
    AmCallback,
    AmHandlerParam,
    ConnectionCallback,
    EpParams,
    ErrorCallback,
    ListenerAttr,
    ListenerParams,
    Params,
    ReceiveCallback,
    RequestParam,
    SendCallback,
    WorkerParams,
    load_library,
)

OK = 0
_IN_PROGRESS = 1
_LAST_ERROR = 2**64 - 100
_API_MAJOR, _API_MINOR = 1, 10
_FEATURE_WAKEUP, _FEATURE_AM = 1 << 4, 1 << 6
_ERROR_MODE_PEER = 1
_CLOSE_FORCE = 1
_AM_SEND_REPLY = 1
_AM_RNDV_ATTRIBUTE = 1 << 17
_OP_CALLBACK, _OP_USER_DATA, _OP_FLAGS = 1 << 1, 1 << 2, 1 << 4

Endpoint = int
"""A `ucp_ep_h`, valid until its `close` is done."""

OnDone = Callable[[int], None]
"""Told the status of an operation once it has ended: 0, or a negative UCX error."""

OnMessage = Callable[["Message"], None]


class UcxError(Exception):
    """A call was refused; `status` is UCX's negative code."""

    def __init__(self, call: str, status: int) -> None:
        super().__init__(f"{call} failed with UCX status {status}")
        self.status = status


class Message:
    """An active message, valid during its callback only.

    Attributes:
        header: a copy of its header bytes.
        length: bytes of payload.
        sender: endpoint to reply on, 0 if the sender wants none.
        is_rendezvous: the payload is still at the sender; only `UcxWorker.receive` gets it.
        data: address of the payload, or of its rendezvous descriptor.
    """

    __slots__ = ("data", "header", "is_rendezvous", "is_taken", "length", "sender")

    def __init__(self, header: bytes, data: int, length: int, attributes: int, sender: int) -> None:
        self.header = header
        self.data = data
        self.length = length
        self.sender = sender
        self.is_rendezvous = bool(attributes & _AM_RNDV_ATTRIBUTE)
        self.is_taken = False


class UcxWorker:
    """One UCX context and worker with active messages, peer error handling and wake-up."""

    def __init__(self, options: dict[str, str], library: str = "") -> None:
        """Open the devices.

        Args:
            options: UCX settings without their prefix, such as `{"NET_DEVICES": "lo"}`.
            library: see `load_library`.

        Raises:
            Unsupported: no library, an unknown option or no usable device.
        """
        self._lib = load_library(library)
        self._pending: dict[int, OnDone] = {}
        self._numbers = itertools.count(1)
        self._on_error: dict[Endpoint, OnDone] = {}
        self._kept: list[Any] = []  # callbacks that C code points to
        self._send_done = SendCallback(self._sent)
        self._receive_done = ReceiveCallback(self._received)
        self._failed = ErrorCallback(self._endpoint_failed)
        self._context = c_void_p()
        self._worker = c_void_p()
        self._listener = c_void_p()
        try:
            self._open(options)
        except UcxError as error:
            raise Unsupported(f"ucx transport cannot open its devices: {error}") from error

    @property
    def version(self) -> str:
        """UCX's version."""
        text: bytes = self._lib.ucp_get_version_string()
        return text.decode()

    def progress(self) -> bool:
        """Move bytes and run callbacks; whether anything happened. The interpreter lock is free meanwhile."""
        return bool(self._lib.ucp_worker_progress(self._worker))

    def event_fd(self) -> int:
        """Becomes readable when there is something to progress, once `arm` has returned True."""
        fd = c_int()
        _check("ucp_worker_get_efd", self._lib.ucp_worker_get_efd(self._worker, byref(fd)))
        return fd.value

    def arm(self) -> bool:
        """Ask for the next event; False means that there is something to progress already."""
        return bool(self._lib.ucp_worker_arm(self._worker) == OK)

    def handle(self, message_id: int, on_message: OnMessage) -> None:
        """Route active messages of one id; a message of another id is dropped by the library."""

        def call(_: Any, header: int | None, header_length: int, data: int | None, length: int, param: Any) -> int:
            head = ctypes.string_at(header, header_length) if header and header_length else b""
            message = Message(head, data or 0, length, param.contents.recv_attr, param.contents.reply_ep or 0)
            on_message(message)
            return _IN_PROGRESS if message.is_taken else OK

        callback = AmCallback(call)
        self._kept.append(callback)
        param = AmHandlerParam(
            field_mask=0b1101, id=message_id, cb=ctypes.cast(callback, c_void_p)
        )  # id, callback, no flags, argument
        _check("ucp_worker_set_am_recv_handler", self._lib.ucp_worker_set_am_recv_handler(self._worker, byref(param)))

    def listen(self, host: str, port: int, on_request: Callable[[int], None]) -> int:
        """Accept connections on an address; `on_request` gets each request, to `accept` or `reject` later.

        Returns:
            The port.

        Raises:
            Unsupported: the address cannot be bound.
        """
        callback = ConnectionCallback(lambda request, _: on_request(request))
        self._kept.append(callback)
        address = _socket_address(host, port)
        params = ListenerParams(field_mask=0b101, conn_handler=ctypes.cast(callback, c_void_p))
        params.sockaddr.addr = ctypes.cast(address, c_void_p)
        params.sockaddr.addrlen = len(address)
        status = self._lib.ucp_listener_create(self._worker, byref(params), byref(self._listener))
        if status != OK:
            raise Unsupported(f"ucx transport cannot listen on {host}:{port}: UCX status {status}")
        attributes = ListenerAttr(field_mask=1)
        _check("ucp_listener_query", self._lib.ucp_listener_query(self._listener, byref(attributes)))
        return int(struct.unpack_from("!H", bytes(attributes.sockaddr), 2)[0])

    def accept(self, request: int, on_error: OnDone) -> Endpoint:
        """Make an endpoint of a connection request. Raises UcxError."""
        return self._endpoint(EpParams(field_mask=1 << 6, conn_request=request), on_error)

    def reject(self, request: int) -> None:
        """Turn a connection request down."""
        self._lib.ucp_listener_reject(self._listener, request)

    def connect(self, host: str, port: int, on_error: OnDone) -> Endpoint:
        """Begin to connect; messages may be sent at once. `on_error` is told when the peer is lost. Raises UcxError."""
        address = _socket_address(host, port)
        params = EpParams(field_mask=1 << 4 | 1 << 5, flags=1)  # sockaddr, flags; flags: client of a listener
        params.sockaddr.addr = ctypes.cast(address, c_void_p)
        params.sockaddr.addrlen = len(address)
        return self._endpoint(params, on_error)

    def send(self, to: Endpoint, message_id: int, header: bytes, payload: tuple[int, int], done: OnDone) -> None:
        """Send an active message; `payload` is (address, bytes). `done` may be called before this returns."""

        def ended(status: int) -> None:
            _ = header  # the library reads it until the operation ends: this closure keeps it that long
            done(status)

        param, number = self._operation(self._send_done, ended)
        param.op_attr_mask |= _OP_FLAGS
        param.flags = _AM_SEND_REPLY
        address, length = payload
        result = self._lib.ucp_am_send_nbx(to, message_id, header, len(header), address, length, byref(param))
        self._started(result, number)

    def receive(self, message: Message, address: int, done: OnDone) -> None:
        """Fetch a rendezvous payload to an address that has room for `message.length` bytes; in its callback only."""
        message.is_taken = True
        param, number = self._operation(self._receive_done, done)
        result = self._lib.ucp_am_recv_data_nbx(self._worker, message.data, address, message.length, byref(param))
        self._started(result, number)

    def close(self, endpoint: Endpoint, done: OnDone) -> None:
        """End an endpoint at once: what is in flight on it ends with an error before `done` is called."""
        self._on_error.pop(endpoint, None)
        param, number = self._operation(self._send_done, done)
        param.op_attr_mask |= _OP_FLAGS
        param.flags = _CLOSE_FORCE
        self._started(self._lib.ucp_ep_close_nbx(endpoint, byref(param)), number)

    def destroy(self) -> None:
        """Free everything; no callback runs afterwards. Endpoints should be closed before."""
        if self._listener:
            self._lib.ucp_listener_destroy(self._listener)
        if self._worker:
            self._lib.ucp_worker_destroy(self._worker)
        if self._context:
            self._lib.ucp_cleanup(self._context)

    def _open(self, options: dict[str, str]) -> None:
        config = c_void_p()
        _check("ucp_config_read", self._lib.ucp_config_read(None, None, byref(config)))
        try:
            for name, value in options.items():
                _check(f"setting {name}", self._lib.ucp_config_modify(config, name.encode(), value.encode()))
            params = Params(field_mask=1, features=_FEATURE_AM | _FEATURE_WAKEUP)
            status = self._lib.ucp_init_version(_API_MAJOR, _API_MINOR, byref(params), config, byref(self._context))
            _check("ucp_init", status)
        finally:
            self._lib.ucp_config_release(config)
        worker_params = WorkerParams(field_mask=1, thread_mode=1)  # serialised: made here, used by one other thread
        status = self._lib.ucp_worker_create(self._context, byref(worker_params), byref(self._worker))
        _check("ucp_worker_create", status)

    def _endpoint(self, params: EpParams, on_error: OnDone) -> Endpoint:
        params.field_mask |= 0b110  # error mode and handler
        params.err_mode = _ERROR_MODE_PEER
        params.err_handler = ctypes.cast(self._failed, c_void_p)
        endpoint = c_void_p()
        _check("ucp_ep_create", self._lib.ucp_ep_create(self._worker, byref(params), byref(endpoint)))
        assert endpoint.value is not None
        self._on_error[endpoint.value] = on_error
        return endpoint.value

    def _operation(self, callback: Any, done: OnDone) -> tuple[RequestParam, int]:
        number = next(self._numbers)
        self._pending[number] = done
        return (
            RequestParam(
                op_attr_mask=_OP_CALLBACK | _OP_USER_DATA, cb=ctypes.cast(callback, c_void_p), user_data=number
            ),
            number,
        )

    def _started(self, result: int | None, number: int) -> None:
        """An operation that ended at once calls nothing back: do it here."""
        if not result or result >= _LAST_ERROR:
            self._pending.pop(number)(result - 2**64 if result else OK)

    def _sent(self, request: int, status: int, number: int) -> None:
        self._lib.ucp_request_free(request)
        self._pending.pop(number)(status)

    def _received(self, request: int, status: int, _: int, number: int) -> None:
        self._lib.ucp_request_free(request)
        self._pending.pop(number)(status)

    def _endpoint_failed(self, _: Any, endpoint: int, status: int) -> None:
        on_error = self._on_error.pop(endpoint, None)
        if on_error is not None:
            on_error(status)


def _check(call: str, status: int) -> None:
    if status != OK:
        raise UcxError(call, status)


def _socket_address(host: str, port: int) -> ctypes.Array[ctypes.c_char]:
    """A C `sockaddr` for a literal IP address; UCX copies it."""
    address = ipaddress.ip_address(host)
    if address.version == 4:
        packed = struct.pack("=H", socket.AF_INET) + struct.pack("!H4s8x", port, address.packed)
    else:
        packed = struct.pack("=H", socket.AF_INET6) + struct.pack("!HI16sI", port, 0, address.packed, 0)
    return ctypes.create_string_buffer(packed, len(packed))
