"""Who may operate a process, and what a token file may hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.base.errors import InvalidRequest, PermissionDenied
from common.rpc.operator import OperatorGuard, is_local, read_token

TOKEN = "a-long-secret"


@pytest.mark.parametrize(
    ("peer", "local"),
    [
        *((peer, True) for peer in ("ipv4:127.0.0.1:1", "ipv4:127.1.2.3:1", "ipv6:%5B::1%5D:1", "ipv6:[::1]:1")),
        *((peer, True) for peer in ("unix:/tmp/x", "unix:", "ipv6:[::ffff:127.0.0.1]:1")),
        *(
            (peer, False)
            for peer in ("ipv4:10.0.0.7:1", "ipv4:0.0.0.0:1", "ipv6:[fe80::1]:1", "ipv6:[::ffff:10.0.0.7]:1")
        ),
        *((peer, False) for peer in ("", "ipv4:", "localhost:1", "ipv4:127.0.0.1.example.org:1", "unknown")),
    ],
)
def test_who_is_local(peer: str, local: bool) -> None:
    assert is_local(peer) is local


def test_without_a_token_only_loopback_is_served() -> None:
    guard = OperatorGuard()
    guard.check("ipv4:127.0.0.1:1", "")
    with pytest.raises(PermissionDenied) as caught:
        guard.check("ipv4:10.0.0.7:1", f"Bearer {TOKEN}")
    assert caught.value.reason == "not_local"


@pytest.mark.parametrize(
    "authorization", ["", TOKEN, "Bearer", "Bearer ", "Bearer wrong", f"Basic {TOKEN}", "Bearer ä"]
)
def test_a_token_is_wanted_from_everybody(authorization: str) -> None:
    guard = OperatorGuard(TOKEN)
    guard.check("ipv4:10.0.0.7:1", f"Bearer {TOKEN}")
    guard.check("ipv4:127.0.0.1:1", f"bearer {TOKEN}")
    with pytest.raises(PermissionDenied) as caught:
        guard.check("ipv4:127.0.0.1:1", authorization)
    assert caught.value.reason == "bad_operator_token" and TOKEN not in caught.value.message


def test_the_token_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"  {TOKEN}\n")
    assert read_token(path) == TOKEN
    for content in (b"", b"\n", b"short", b"two words of token", b"\xff" * 20, b"x" * 5000):
        path.write_bytes(content)
        with pytest.raises(InvalidRequest) as caught:
            read_token(path)
        assert caught.value.param == "admin_token_file"
    with pytest.raises(InvalidRequest, match="No such file"):
        read_token(tmp_path / "missing")
