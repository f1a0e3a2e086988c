"""The roles that a worker may have, by the names that the wire, the registry and the command line use."""

from __future__ import annotations

PREFILL, DECODE = "prefill", "decode"
ROLES = (PREFILL, DECODE)
