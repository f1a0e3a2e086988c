"""API keys and tenants: the file, who is let in, and what a name tells."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from common.base.errors import InvalidRequest
from services.gateway.tenants import InvalidApiKey, Tenant, Tenants, read_keys

KEY, OTHER, THIRD = "sk-0123456789", "sk-abcdefghij", "sk-third-of-them"
LINES = [
    "# tenants of the test",
    "",
    f"acme {KEY} 3",
    f"  lab\tsha256:{sha256(OTHER.encode()).hexdigest()}",
    f"acme {THIRD}",
]


def test_keys_tell_their_tenants_and_nobody_else_gets_in() -> None:
    tenants = Tenants(read_keys(LINES))
    assert tenants.needs_key
    assert tenants.identify(f"Bearer {KEY}") == Tenant("acme", 3)
    assert tenants.identify(f"bearer  {OTHER} ") == Tenant("lab", 1)
    assert tenants.identify(f"Bearer {THIRD}") == Tenant("acme", 1)
    digest = sha256(OTHER.encode()).hexdigest()
    for header in (None, "", "Bearer", "Bearer ", KEY, f"Basic {KEY}", f"Bearer {KEY}x", f"Bearer sha256:{digest}"):
        with pytest.raises(InvalidApiKey) as caught:
            tenants.identify(header)
        assert caught.value.http_status == 401 and caught.value.reason == "invalid_api_key"
        assert KEY not in caught.value.message


def test_an_empty_file_lets_nobody_in() -> None:
    with pytest.raises(InvalidApiKey):
        Tenants(read_keys([])).identify(f"Bearer {KEY}")


def test_without_keys_equal_headers_are_one_tenant_whose_name_tells_no_key() -> None:
    tenants = Tenants.load(None)
    assert not tenants.needs_key
    assert tenants.identify(None) == tenants.identify("") == Tenant()
    one, two = tenants.identify(f"Bearer {KEY}"), tenants.identify(f"Bearer {OTHER}")
    assert one == tenants.identify(f"Bearer {KEY}") != two
    assert KEY not in one.name and len(one.name) <= 64


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("acme", "tenant key"),
        (f"acme {KEY} 1 2", "tenant key"),
        (f"a/b {KEY}", "name"),
        ("acme short", "at least 8"),
        (f"acme {KEY} 0", "weight"),
        (f"acme {KEY} 101", "weight"),
        (f"acme {KEY} x", "weight"),
        ("acme sha256:1234567890", "64 hex"),
    ],
)
def test_a_wrong_line_is_named_and_its_key_is_not(line: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match="line 2") as caught:
        read_keys(["# first", line])
    assert says in caught.value.message and KEY not in caught.value.message


def test_a_key_of_two_tenants_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="twice"):
        read_keys([f"a {KEY}", f"b sha256:{sha256(KEY.encode()).hexdigest()}"])


def test_a_file_is_read_or_named(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("\n".join(LINES))
    assert Tenants.load(path).identify(f"Bearer {KEY}").name == "acme"
    with pytest.raises(InvalidRequest, match="nowhere"):
        Tenants.load(tmp_path / "nowhere")
