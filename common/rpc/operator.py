"""Who may operate a process: whoever has the operator token or, where none is configured, is on the same machine.

The token is a word in a file that both sides can read; it travels as `authorization: Bearer ...` in the metadata.
"""

from __future__ import annotations

import hmac
import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from common.base.errors import InvalidRequest, PermissionDenied

if TYPE_CHECKING:
    from common.rpc.server import Context

AUTHORIZATION = "authorization"
MAX_TOKEN_BYTES = 4096
MIN_TOKEN_BYTES = 8


class OperatorGuard:
    """Lets operators in: those with the token, or without one configured, those on this machine."""

    def __init__(self, token: str = "") -> None:
        self._token = token.encode()

    def check_call(self, context: Context) -> None:
        """Raise PermissionDenied unless the caller may administer."""
        metadata = dict(context.invocation_metadata() or ())
        self.check(context.peer(), str(metadata.get(AUTHORIZATION, "")))

    def check(self, peer: str, authorization: str) -> None:
        """Raise PermissionDenied unless the caller may administer.

        Args:
            peer: as gRPC names it, `ipv4:127.0.0.1:4711`.
            authorization: of the metadata; empty when there is none.
        """
        if self._token:
            scheme, _, token = authorization.partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), self._token):
                raise PermissionDenied("operators' calls want the operator token", reason="bad_operator_token")
        elif not is_local(peer):
            raise PermissionDenied(
                "without an operator token operators' calls are answered on loopback only", reason="not_local"
            )


def is_local(peer: str) -> bool:
    """Whether a peer, as gRPC names it, is on this machine. What cannot be understood is not."""
    kind, _, rest = unquote(peer).partition(":")
    if kind == "unix":
        return True
    host = rest.rpartition(":")[0].strip("[]")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def read_token(path: Path) -> str:
    """The operator token in a file, without the white space around it.

    Raises:
        InvalidRequest: param `admin_token_file`; it cannot be read or holds no token worth the name.
    """
    try:
        with path.open("rb") as file:
            token = file.read(MAX_TOKEN_BYTES + 1).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"operator token: {path}: {error}", param="admin_token_file") from error
    if not MIN_TOKEN_BYTES <= len(token) <= MAX_TOKEN_BYTES or not token.isprintable() or " " in token:
        raise InvalidRequest(
            f"operator token: {path} must hold {MIN_TOKEN_BYTES} to {MAX_TOKEN_BYTES} printable characters in one word",
            param="admin_token_file",
        )
    return token
