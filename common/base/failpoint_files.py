"""Failpoints armed by files: a file named like a failpoint holds its rules; removing it disarms.

Files are looked at only when somebody polls, and read only when they changed. Write a file elsewhere (or under a name
that begins with a dot) and rename it, and it is never seen half written.

It does not know which failpoints there are.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from common.base.errors import InvalidRequest
from common.base.failpoint_rules import MAX_TEXT_CHARS, Rule, parse_rules
from common.base.logging import get_logger

MAX_FILES = 256


class _Stamp(NamedTuple):
    mtime_ns: int
    size: int
    inode: int


class FailpointFiles:
    """The rule files of one folder, as they were at the last poll. A folder that is not there holds none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stamps: dict[str, _Stamp] = {}

    def poll(self) -> dict[str, tuple[Rule, ...]]:
        """Files that changed since the last poll: name to new rules, none when it is gone, empty or wrong.

        What is wrong is logged, once per change.
        """
        now = self._scan()
        gone = {name: () for name in self._stamps.keys() - now.keys()}
        changed = {name: self._read(name) for name, stamp in now.items() if self._stamps.get(name) != stamp}
        self._stamps = now
        return gone | changed

    def _scan(self) -> dict[str, _Stamp]:
        try:
            with os.scandir(self._folder) as entries:
                stats = {entry.name: entry.stat() for entry in entries if self._counts(entry)}
        except OSError:
            return {}
        names = sorted(stats)[:MAX_FILES]
        return {name: _Stamp(stats[name].st_mtime_ns, stats[name].st_size, stats[name].st_ino) for name in names}

    @staticmethod
    def _counts(entry: os.DirEntry[str]) -> bool:
        return not entry.name.startswith(".") and entry.is_file()

    def _read(self, name: str) -> tuple[Rule, ...]:
        try:
            with (self._folder / name).open("rb") as file:
                text = file.read(4 * MAX_TEXT_CHARS + 1).decode()
            return parse_rules(text) if text.strip() else ()
        except (InvalidRequest, OSError, UnicodeDecodeError) as error:
            get_logger().error("a failpoint file is not armed", file=str(self._folder / name), why=str(error))
            return ()
