"""A Mooncake client in memory that answers as the real one was seen to, and fails as told."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class FakeReplica:
    """A descriptor of an object in memory: what is asked of it."""

    def __init__(self, size: int) -> None:
        self.buffer_descriptor = self
        self.size = size

    def is_memory_replica(self) -> bool:
        """Always."""
        return True

    def get_memory_descriptor(self) -> FakeReplica:
        """Itself."""
        return self


@dataclass(slots=True)
class FakeMooncake:
    """See `mooncake_client.Client`.

    Attributes:
        objects: by name.
        codes: by name of a call: what it answers for every key instead of doing anything.
        before: by name of a call: runs first, in the caller's thread.
        calls: names of calls, in order.
        registered: sizes by address.
        closed: how often it was closed.
    """

    objects: dict[str, bytes] = field(default_factory=dict)
    codes: dict[str, int] = field(default_factory=dict)
    before: dict[str, Callable[[], object]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    registered: dict[int, int] = field(default_factory=dict)
    closed: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        """0, or what `codes` says."""
        self.registered[buffer_ptr] = size
        return self.codes.get("register", 0)

    def unregister_buffer(self, buffer_ptr: int) -> int:
        """0."""
        del self.registered[buffer_ptr]
        return 0

    def batch_is_exist(self, keys: list[str]) -> list[int]:
        """1 or 0."""
        return self._answer("exist", keys, lambda index: int(keys[index] in self.objects))

    def batch_get_into(self, keys: list[str], buffer_ptrs: list[int], sizes: list[int]) -> list[int]:
        """Lengths, -704 for none, -600 for a buffer that is too small."""

        def get(index: int) -> int:
            content = self.objects.get(keys[index])
            if content is None or len(content) > sizes[index]:
                return -704 if content is None else -600
            self._check(buffer_ptrs[index], len(content))
            ctypes.memmove(buffer_ptrs[index], content, len(content))
            return len(content)

        return self._answer("get", keys, get)

    def batch_put_from(self, keys: list[str], buffer_ptrs: list[int], sizes: list[int]) -> list[int]:
        """0, also for what is there already, which stays."""

        def put(index: int) -> int:
            self._check(buffer_ptrs[index], sizes[index])
            self.objects.setdefault(keys[index], ctypes.string_at(buffer_ptrs[index], sizes[index]))
            return 0

        return self._answer("put", keys, put)

    def batch_get_replica_desc(self, keys: list[str]) -> dict[str, list[Any]]:
        """Of those that are there."""
        return {key: [FakeReplica(len(self.objects[key]))] for key in keys if key in self.objects}

    def batch_remove(self, keys: list[str], force: bool) -> list[int]:
        """0 or -704."""
        return self._answer("remove", keys, lambda index: 0 if self.objects.pop(keys[index], None) else -704)

    def remove_by_regex(self, regex_pattern: str, force: bool) -> int:
        """How many went."""

        def remove(_index: int) -> int:
            gone = [key for key in self.objects if re.search(regex_pattern, key)]
            for key in gone:
                del self.objects[key]
            return len(gone)

        return self._answer("regex", [""], remove)[0]

    def close(self) -> int:
        """Counted."""
        self.closed += 1
        return 0

    def _answer(self, call: str, keys: list[str], do: Callable[[int], int]) -> list[int]:
        self.calls.append(call)
        self.before.get(call, lambda: None)()
        with self.lock:
            code = self.codes.get(call)
            return [do(index) if code is None else code for index in range(len(keys))]

    def _check(self, address: int, size: int) -> None:
        inside = any(start <= address and address + size <= start + room for start, room in self.registered.items())
        assert inside, f"{size} bytes at {address:#x} are not registered"
