"""Whose request it is: by API key where keys are configured, else by whatever the client sends as one.

A file of keys has one line for each: a tenant's name, its key or `sha256:` and the key's digest in hex, and the
tenant's weight (1 unless it says otherwise)::

    acme    sk-0123456789abcdef                    3
    lab     sha256:9f86d081884c7d659a2feaa0c55a...

A tenant may have several keys. With a file, who brings none of its keys is refused; without one, equal `Authorization`
headers are one tenant, and all who send none are another. A key is kept and compared as its digest, in a time that does
not tell which one, or whether any, was right. Knows nothing about what tenants may do.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from common.base.errors import InvalidRequest, PermissionDenied
from common.base.limits import MAX_TENANT_WEIGHT

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_MIN_KEY_CHARS = 8
_ANONYMOUS_HEX = 16


class InvalidApiKey(PermissionDenied):
    """The request brings no key, or one that is not configured."""

    http_status, default_reason = 401, "invalid_api_key"


@dataclass(slots=True, frozen=True)
class Tenant:
    """Whose request it is; `weight` 0 is the usual share."""

    name: str = ""
    weight: int = 0


@dataclass(slots=True, frozen=True)
class ApiKey:
    """A key of a tenant, as its SHA-256."""

    tenant: Tenant
    digest: bytes


class Tenants:
    """Tells tenants from `Authorization` headers; `keys` is None where none are configured."""

    def __init__(self, keys: Sequence[ApiKey] | None = None) -> None:
        self._keys = keys

    @property
    def needs_key(self) -> bool:
        """Whether requests without a configured key are refused."""
        return self._keys is not None

    @classmethod
    def load(cls, path: Path | None) -> Tenants:
        """From a file of keys, or without one. Raises InvalidRequest: it cannot be read, or which line is wrong."""
        if path is None:
            return cls()
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"{path}: {error}", param="api_keys_file") from error
        return cls(read_keys(lines))

    def identify(self, authorization: str | None) -> Tenant:
        """The tenant of a request. Raises InvalidApiKey."""
        if self._keys is None:
            return _anonymous(authorization)
        scheme, _, key = (authorization or "").partition(" ")
        presented = sha256(key.strip().encode()).digest()
        found: Tenant | None = None
        for one in self._keys:
            if hmac.compare_digest(one.digest, presented):
                found = one.tenant
        if found is None or scheme.lower() != "bearer":
            told = "Incorrect API key provided" if key else "No API key provided; send it as Authorization: Bearer KEY"
            raise InvalidApiKey(f"{told}.")
        return found


def _anonymous(authorization: str | None) -> Tenant:
    """A name that tells equal headers without telling the header."""
    if not authorization:
        return Tenant()
    return Tenant(f"auth-{sha256(authorization.encode()).hexdigest()[:_ANONYMOUS_HEX]}")


def read_keys(lines: Iterable[str]) -> list[ApiKey]:
    """The keys of a file's lines; empty ones and those that begin with # say nothing.

    Raises:
        InvalidRequest: the number of the line that is wrong, never its key.
    """
    keys: list[ApiKey] = []
    for number, line in enumerate(lines, 1):
        fields = line.split()
        if fields and not line.lstrip().startswith("#"):
            keys.append(_read_key(fields, number))
    if len({key.digest for key in keys}) < len(keys):
        raise InvalidRequest("api_keys_file: a key appears twice", param="api_keys_file")
    return keys


def _read_key(fields: Sequence[str], number: int) -> ApiKey:
    problem = _problem(fields)
    if problem:
        raise InvalidRequest(f"api_keys_file: line {number}: {problem}", param="api_keys_file")
    name, key, weight = fields if len(fields) == 3 else (*fields, "1")
    match = _DIGEST.fullmatch(key)
    digest = bytes.fromhex(match[1]) if match else sha256(key.encode()).digest()
    return ApiKey(Tenant(name, int(weight)), digest)


def _problem(fields: Sequence[str]) -> str:
    """What is wrong with a line; empty: nothing."""
    if len(fields) not in (2, 3):
        return "a line is: tenant key [weight]"
    if not _NAME.fullmatch(fields[0]):
        return "a tenant's name has 1 to 64 letters, digits, dots, dashes and underscores"
    if len(fields[1]) < _MIN_KEY_CHARS or (fields[1].startswith("sha256:") and not _DIGEST.fullmatch(fields[1])):
        return f"a key has at least {_MIN_KEY_CHARS} characters, a digest is sha256: and 64 hex digits"
    if len(fields) == 3 and not (fields[2].isdecimal() and 1 <= int(fields[2]) <= MAX_TENANT_WEIGHT):
        return f"a weight is a number from 1 to {MAX_TENANT_WEIGHT}"
    return ""
