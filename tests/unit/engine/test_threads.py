"""Thread settings: applied, and loud about what makes steps slow."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from common.engine.threads import apply_thread_settings


@pytest.fixture(autouse=True)
def _restore_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_quiet_when_the_environment_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    assert apply_thread_settings(1) == []
    assert torch.get_num_threads() == 1
    assert apply_thread_settings(0) == []
    assert torch.get_num_threads() == len(os.sched_getaffinity(0))


def test_notes_name_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    notes = apply_thread_settings(len(os.sched_getaffinity(0)) + 1)
    assert [any(word in note for note in notes) for word in ("cores: steps will be slow", "OMP_WAIT_POLICY")] == [
        True,
        True,
    ]
