"""The leader that a node follows: a term that only rises, on disk before anybody relies on it.

A node without a disk forgets its term when it ends, and its objects with it: then no leader can have known them.
"""

from __future__ import annotations

import os
from pathlib import Path

import orjson

from common.base.errors import Leg, StepAborted, Unavailable
from common.base.logging import get_logger
from common.cache.kvstore_wire import require
from services.kvstore.leadership import MAX_TERM

STALE_TERM = "stale_term"
MAX_STEP = 1 << 32
"""Leaders come one after another: a term so far above the last one is a mistake, and would leave none above it."""
MAX_ID_CHARS = 256
_FILE = "term.json"


class Terms:
    """Used on one loop; writing blocks for a moment, at each change of leaders."""

    def __init__(self, folder: Path | None) -> None:
        """Read what an earlier life persisted; `folder` None: nothing is persisted."""
        self._path = None if folder is None else folder / _FILE
        self.term, self.leader_id = 0, ""
        if self._path is not None and self._path.exists():
            self._read(self._path)

    def accept(self, term: int, leader_id: str) -> None:
        """Follow this leader from now on.

        Raises:
            InvalidRequest: no leader can have come to this term, or has this id.
            StepAborted: reason `stale_term`; a later one is known, or another of the same term.
            Unavailable: the term cannot be persisted.
        """
        if term < self.term or (term == self.term and leader_id != self.leader_id):
            message = f"term {term} of {leader_id} is over: {self.leader_id} leads in term {self.term}"
            raise StepAborted(message, reason=STALE_TERM, leg=Leg.STORE, param=str(self.term))
        require(term <= min(self.term + MAX_STEP, MAX_TERM), f"term {term} cannot follow term {self.term}")
        require(len(leader_id) <= MAX_ID_CHARS, f"a leader's id of {len(leader_id)} characters")
        if (term, leader_id) != (self.term, self.leader_id):
            self._write(term, leader_id)
            self.term, self.leader_id = term, leader_id

    def _read(self, path: Path) -> None:
        try:
            content = orjson.loads(path.read_bytes())
            term, leader_id = int(content["term"]), str(content["leader_id"])
            if not 0 <= term <= MAX_TERM:
                raise ValueError(f"no leader can have term {term}")
            self.term, self.leader_id = term, leader_id
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            # A leader then computes its term from the other nodes, or begins anew, as after the first start.
            get_logger().warning("the store's term file makes no sense", path=str(path), error=str(error))

    def _write(self, term: int, leader_id: str) -> None:
        if self._path is None:
            return
        temporary = self._path.with_suffix(".new")
        try:
            with temporary.open("wb") as file:
                file.write(orjson.dumps({"term": term, "leader_id": leader_id}))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path)
        except OSError as error:
            raise Unavailable(f"the store's term cannot be written: {error}", leg=Leg.STORE) from error
