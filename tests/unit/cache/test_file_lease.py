"""A descriptor is closed once, and never under a reader: its number might mean another file by then."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from common.cache.file_lease import OpenFile, OpenFiles
from tests.support.l3_contract import key_of


class Closings:
    """Counts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def fd(tmp_path: Path) -> int:
    return os.open(tmp_path, os.O_RDONLY)


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_closes_at_once_without_readers_and_only_once(fd: int) -> None:
    closings = Closings()
    file = OpenFile(fd, closings)
    file.close()
    file.close()
    assert closings.count == 1 and not is_open(fd)


def test_waits_for_the_last_reader(fd: int) -> None:
    closings = Closings()
    file = OpenFile(fd, closings)
    assert file.enter() and file.enter()
    file.close()
    file.leave()
    assert closings.count == 0 and is_open(fd)
    file.leave()
    assert closings.count == 1 and not is_open(fd)


def test_lets_nobody_in_once_it_is_closing(fd: int) -> None:
    closings = Closings()
    file = OpenFile(fd, closings)
    assert file.enter()
    file.close()
    assert not file.enter(), "a new reader of a descriptor that is about to be closed"
    file.leave()
    assert not file.enter()
    assert closings.count == 1


def test_readers_that_come_and_go_leave_it_open(fd: int) -> None:
    file = OpenFile(fd, Closings())
    for _ in range(3):
        assert file.enter()
        file.leave()
    assert is_open(fd)
    file.close()


def test_what_cannot_be_opened_does_not_count(tmp_path: Path) -> None:
    files = OpenFiles(str(tmp_path), limit=1)
    for _ in range(3):
        with pytest.raises(FileNotFoundError):
            files.open(key_of(1))
    assert files.num_open == 0
