"""How small calls travel over a plain byte stream, for both sides: frames of a head and a protobuf message.

::

    head    body length u32 | call u32 | what u16 | zero u16 | seconds f32          little-endian
    asks    HELLO: body names protocol, version and the incarnation that is meant; answered with OK, or the end
            method number: body is its request, `seconds` what is left of its deadline
            CANCEL: nobody waits for the call any more; no answer
            PING: answered with OK
    tells   OK: body is the answer            status code of gRPC: body is an ErrorDetail

Invariants: a call's number is chosen by the asker and answered at most once, in any order. A frame is bounded; what is
no frame is a ValueError, after which the stream makes no sense any more. Knows no sockets and no methods.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from google.protobuf.message import Message

MAX_BODY_BYTES = 1024 * 1024
MAX_CALLS = 256
"""Of one connection at a time."""
OK = 0
HELLO, CANCEL, PING = 0xFFF0, 0xFFF1, 0xFFF2
_HEAD = struct.Struct("<IIHHf")
_HELLO = struct.Struct("<8sQ")
_MAGIC = b"PNDCALL1"
_MAX_S = 86400.0
_Request = TypeVar("_Request", bound=Message)
_Answer = TypeVar("_Answer", bound=Message)


class Frame(NamedTuple):
    """One frame.

    Attributes:
        call: its number.
        what: see the module.
        seconds: of a request.
        body: the message.
    """

    call: int
    what: int
    seconds: float
    body: bytes


@dataclass(frozen=True, slots=True)
class Method(Generic[_Request, _Answer]):
    """A unary method as both sides know it.

    Attributes:
        number: in frames.
        name: in its service.
        parse_request, parse_answer: of its messages.
    """

    number: int
    name: str
    parse_request: Callable[[bytes], _Request]
    parse_answer: Callable[[bytes], _Answer]


def pack(call: int, what: int, body: bytes = b"", seconds: float = 0.0) -> bytes:
    """A frame as it travels; the body has at most MAX_BODY_BYTES."""
    assert len(body) <= MAX_BODY_BYTES, len(body)
    return _HEAD.pack(len(body), call, what, 0, min(seconds, _MAX_S)) + body


def hello(incarnation: int) -> bytes:
    """Body of a HELLO to one life of a process."""
    return _HELLO.pack(_MAGIC, incarnation)


class Frames:
    """Cuts a stream into frames; keeps at most one that is not complete, and looks at it again when it is."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._needed = _HEAD.size

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete with this; take all before the next call. Raises ValueError for what is none."""
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed:
                return
            data, self._rest = bytes(self._rest), bytearray()
        place, size = 0, len(data)
        while size - place >= _HEAD.size:
            length, call, what, zero, seconds = _HEAD.unpack_from(data, place)
            if length > MAX_BODY_BYTES or zero or not 0 <= seconds <= _MAX_S:  # no number is not either
                raise ValueError("this is no frame")
            end = place + _HEAD.size + length
            if end > size:
                self._needed = end - place
                break
            yield Frame(call, what, seconds, data[place + _HEAD.size : end])
            place = end
        else:
            self._needed = _HEAD.size
        self._rest += data[place:]
