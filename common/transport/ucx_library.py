"""libucp as C declares it: structures, prototypes, and where the library is found. The one file that imports UCX.

Structures may be shorter than a newer library's own: every one
begins with a mask of the fields that are set, and the library reads no others.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_int8, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any, ClassVar

from common.base.errors import Unsupported

OLDEST_VERSION = (1, 17)
_OLDEST = "1.17 or newer"


class SockAddr(Structure):
    _fields_: ClassVar = [("addr", c_void_p), ("addrlen", c_uint32)]


class Params(Structure):
    _fields_: ClassVar = [
        ("field_mask", c_uint64),
        ("features", c_uint64),
        ("request_size", c_size_t),
        ("request_init", c_void_p),
        ("request_cleanup", c_void_p),
        ("tag_sender_mask", c_uint64),
        ("mt_workers_shared", c_int),
        ("estimated_num_eps", c_size_t),
    ]


class WorkerParams(Structure):
    _fields_: ClassVar = [("field_mask", c_uint64), ("thread_mode", c_int)]


class EpParams(Structure):
    _fields_: ClassVar = [
        ("field_mask", c_uint64),
        ("address", c_void_p),
        ("err_mode", c_int),
        ("err_handler", c_void_p),
        ("err_handler_arg", c_void_p),
        ("user_data", c_void_p),
        ("flags", c_uint),
        ("sockaddr", SockAddr),
        ("conn_request", c_void_p),
    ]


class ListenerParams(Structure):
    _fields_: ClassVar = [
        ("field_mask", c_uint64),
        ("sockaddr", SockAddr),
        ("accept_handler", c_void_p * 2),
        ("conn_handler", c_void_p),
        ("conn_handler_arg", c_void_p),
    ]


class ListenerAttr(Structure):
    _fields_: ClassVar = [("field_mask", c_uint64), ("sockaddr", ctypes.c_uint8 * 128)]


class RequestParam(Structure):
    _fields_: ClassVar = [
        ("op_attr_mask", c_uint32),
        ("flags", c_uint32),
        ("request", c_void_p),
        ("cb", c_void_p),
        ("datatype", c_uint64),
        ("user_data", c_void_p),
        ("reply_buffer", c_void_p),
        ("memory_type", c_int),
        ("recv_info", c_void_p),
        ("memh", c_void_p),
        ("remote_datatype", c_uint64),
        ("remote", c_void_p),
        ("remote_count", c_size_t),
    ]


class AmHandlerParam(Structure):
    _fields_: ClassVar = [
        ("field_mask", c_uint64),
        ("id", c_uint),
        ("flags", c_uint32),
        ("cb", c_void_p),
        ("arg", c_void_p),
    ]


class AmRecvParam(Structure):
    _fields_: ClassVar = [("recv_attr", c_uint64), ("reply_ep", c_void_p)]


# A ucs_status_t is a packed enum of one byte, as argument and as result.
ConnectionCallback = ctypes.CFUNCTYPE(None, c_void_p, c_void_p)
ErrorCallback = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_int8)
SendCallback = ctypes.CFUNCTYPE(None, c_void_p, c_int8, c_void_p)
ReceiveCallback = ctypes.CFUNCTYPE(None, c_void_p, c_int8, c_size_t, c_void_p)
AmCallback = ctypes.CFUNCTYPE(c_int8, c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, POINTER(AmRecvParam))

_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "ucp_get_version": (None, [POINTER(c_uint), POINTER(c_uint), POINTER(c_uint)]),
    "ucp_get_version_string": (c_char_p, []),
    "ucp_config_read": (c_int8, [c_char_p, c_char_p, POINTER(c_void_p)]),
    "ucp_config_modify": (c_int8, [c_void_p, c_char_p, c_char_p]),
    "ucp_config_release": (None, [c_void_p]),
    "ucp_init_version": (c_int8, [c_uint, c_uint, POINTER(Params), c_void_p, POINTER(c_void_p)]),
    "ucp_cleanup": (None, [c_void_p]),
    "ucp_worker_create": (c_int8, [c_void_p, POINTER(WorkerParams), POINTER(c_void_p)]),
    "ucp_worker_destroy": (None, [c_void_p]),
    "ucp_worker_progress": (c_uint, [c_void_p]),
    "ucp_worker_get_efd": (c_int8, [c_void_p, POINTER(c_int)]),
    "ucp_worker_arm": (c_int8, [c_void_p]),
    "ucp_worker_set_am_recv_handler": (c_int8, [c_void_p, POINTER(AmHandlerParam)]),
    "ucp_listener_create": (c_int8, [c_void_p, POINTER(ListenerParams), POINTER(c_void_p)]),
    "ucp_listener_query": (c_int8, [c_void_p, POINTER(ListenerAttr)]),
    "ucp_listener_reject": (c_int8, [c_void_p, c_void_p]),
    "ucp_listener_destroy": (None, [c_void_p]),
    "ucp_ep_create": (c_int8, [c_void_p, POINTER(EpParams), POINTER(c_void_p)]),
    "ucp_ep_close_nbx": (c_void_p, [c_void_p, POINTER(RequestParam)]),
    "ucp_am_send_nbx": (
        c_void_p,
        [c_void_p, c_uint, c_char_p, c_size_t, c_void_p, c_size_t, POINTER(RequestParam)],
    ),
    "ucp_am_recv_data_nbx": (c_void_p, [c_void_p, c_void_p, c_void_p, c_size_t, POINTER(RequestParam)]),
    "ucp_request_free": (None, [c_void_p]),
}


def load_library(path: str = "") -> ctypes.CDLL:
    """Load libucp.

    UCX reads its log level and signal handling from the environment while it loads; unless the operator has set them,
    it is told to keep quiet on stdout and to leave fatal signals to Python.

    Args:
        path: file or soname; empty looks for the system's library and the PyPI wheel `libucx-cu12`. A machine with
            RDMA devices takes the system's first, for the wheel has no verbs; others take the wheel first.

    Raises:
        Unsupported: there is none, or it is too old: before 1.17 an owner crashed when a peer left a rendezvous open.
    """
    os.environ.setdefault("UCX_LOG_LEVEL", "fatal")
    os.environ.setdefault("UCX_HANDLE_ERRORS", "none")
    library = _open(path)
    for name, (result, arguments) in _PROTOTYPES.items():
        try:
            function = getattr(library, name)
        except AttributeError as error:
            raise Unsupported(f"ucx transport needs UCX {_OLDEST}: libucp has no {name}") from error
        function.restype, function.argtypes = result, arguments
    major, minor, release = c_uint(), c_uint(), c_uint()
    library.ucp_get_version(byref(major), byref(minor), byref(release))
    if (major.value, minor.value) < OLDEST_VERSION:
        found = f"{major.value}.{minor.value}.{release.value}"
        raise Unsupported(f"ucx transport needs UCX {_OLDEST}, found {found}: pip install libucx-cu12")
    return library


def _open(path: str) -> ctypes.CDLL:
    if path:
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            raise Unsupported(f"ucx transport cannot load {path}: {error}") from error
    has_rdma = any(Path("/sys/class/infiniband").glob("*"))
    for load in (_open_system, _open_wheel) if has_rdma else (_open_wheel, _open_system):
        library = load()
        if library is not None:
            return library
    raise Unsupported(f"ucx transport needs libucp {_OLDEST}: pip install libucx-cu12, or the system package libucx0")


def _open_system() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libucp.so.0")
    except OSError:
        return None


def _open_wheel() -> ctypes.CDLL | None:
    try:
        importlib.import_module("libucx").load_library()  # makes the soname known to the loader
    except ImportError:
        return None
    return _open_system()
