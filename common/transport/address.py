"""How drivers over IP name a peer: a literal address, a port and the owner's token, as a descriptor's bytes."""

from __future__ import annotations

import ipaddress
import socket
import struct
from dataclasses import dataclass

from common.transport import wire

_ADDRESS = struct.Struct(f"<B{wire.TOKEN_BYTES}sH")  # version, token, port; the address as text follows
_VERSION = 2


@dataclass(slots=True, frozen=True)
class Address:
    """A peer's listener and token."""

    host: str
    port: int
    token: bytes

    def pack(self) -> bytes:
        """As it travels in an endpoint."""
        return _ADDRESS.pack(_VERSION, self.token, self.port) + self.host.encode()

    @classmethod
    def unpack(cls, descriptor: bytes) -> Address:
        """Raises InvalidRequest unless it names a literal IP address: descriptors never cause a name look-up."""
        try:
            version, token, port = _ADDRESS.unpack_from(descriptor)
            host = str(ipaddress.ip_address(descriptor[_ADDRESS.size :].decode("ascii")))
        except (struct.error, ValueError) as error:
            raise wire.invalid("the peer's descriptor is no address") from error
        if version != _VERSION or port == 0:
            raise wire.invalid(f"a descriptor of version {version} with port {port}")
        return cls(host, port, token)


def literal(host: str) -> str:
    """The IP address of one of our own names, for descriptors. Raises OSError."""
    return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
