"""Bytes by namespace, against a quota that holds for each of them. Pure."""

from __future__ import annotations


class Spaces:
    """What each namespace has taken, staged objects included.

    Args:
        quota_bytes: most bytes of one; 0: no quota.
    """

    def __init__(self, quota_bytes: int) -> None:
        self._quota_bytes = quota_bytes
        self._num_bytes: dict[bytes, int] = {}

    def fits(self, namespace: bytes, more_bytes: int) -> bool:
        """Whether it may take so many more."""
        return not self._quota_bytes or self._num_bytes.get(namespace, 0) + more_bytes <= self._quota_bytes

    def charge(self, namespace: bytes, num_bytes: int) -> None:
        """It has taken so many more, or fewer."""
        left = self._num_bytes.get(namespace, 0) + num_bytes
        assert left >= 0, (namespace, left)
        if left:
            self._num_bytes[namespace] = left
        else:
            self._num_bytes.pop(namespace, None)
