"""A client of bench.store that spins is ended, and the others' figures stay."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from bench.store import processes, rounds
from bench.store.processes import ClientLost, Processes, RemoteClient
from bench.store.shapes import Cell

_CELL = Cell("get", 65536, 1, 2)


class _Contender:
    def __init__(self, name: str, answers: int) -> None:
        self.name = name
        self._left = answers

    def command(self, **fields: Any) -> dict[str, Any]:
        self._left -= 1
        if self._left < 0:
            raise ClientLost(f"{self.name} spins")
        return {"seconds": [0.001, 0.003], "cpu_s": 0.001, "server_cpu_s": 0.002}


def test_a_lost_contender_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    contenders = [_Contender("ours shm", 10), _Contender("mooncake shm", 2), _Contender("ours tcp", 10)]
    rows = rounds._rounds(cast("list[RemoteClient]", contenders), [_CELL, Cell("put", 65536, 1, 2)], 2)
    assert {row["contender"] for row in rows} == {"ours shm", "ours tcp"}
    assert len(rows) == 4
    assert all(row["median_ms"] == 2.0 for row in rows)
    assert "mooncake shm spins" in capsys.readouterr().err


def test_a_client_that_says_nothing_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(Processes):
        def start(self, name: str, *command: str, env: dict[str, str] | None = None) -> Any:
            spins = "print('{}', flush=True)\nwhile True: pass"
            return super().start(name, sys.executable, "-c", spins, env=env)

    started = Silent(tmp_path)
    try:
        client = RemoteClient(started, {"name": "mooncake tcp"}, [], {})
        monkeypatch.setattr(processes, "_ANSWER_S", 0.2)
        with pytest.raises(ClientLost, match="mooncake tcp"):
            client.command(**json.loads('{"fill": true}'))
    finally:
        started.close()
