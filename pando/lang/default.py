"""The backend that programs use when they are given none. The one piece of state that belongs to the process: the
language's users set it once and run programs from anywhere.
"""

from __future__ import annotations

from common.base.errors import InvalidRequest
from pando.lang.backend import Backend


class _Holder:
    """Where it is kept."""

    backend: Backend | None = None


def set_default_backend(backend: Backend | None) -> None:
    """Use this backend where none is named; None forgets it. The caller still closes it."""
    _Holder.backend = backend


def backend() -> Backend:
    """The default backend. Raises InvalidRequest when there is none."""
    if _Holder.backend is None:
        raise InvalidRequest("no backend: call pando.lang.set_default_backend(...) or pass backend=...")
    return _Holder.backend
