"""The constraint of one request: an automaton that follows its output, with masks found on another thread.

Invariants: the automaton has taken in exactly `_num_taken` leading tokens of the output; while `_pending` runs, only
its thread touches the automaton. Once something went wrong, everything later fails alike: no token passes unchecked.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime

import numpy as np

from common.base.clock import Clock
from common.grammar.constraint import Accepted, Mask
from common.grammar.llg import Automaton
from common.grammar.spec import too_complex
from common.grammar.threads import DaemonThreads

MASK_LIMIT_S = 5.0
"""Longest time from asking for a mask to having it; beyond, the request fails."""


class Matcher:
    """A `Constraint` over one automaton.

    Args:
        automaton: fresh; owned from here on.
        threads: where masks are found; shared.
        eos_token_ids: end-of-sequence tokens.
        ignore_eos: the output ends only where nothing else can follow.
        jump_forward: tell forced tokens.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        automaton: Automaton,
        threads: DaemonThreads,
        eos_token_ids: Sequence[int],
        *,
        ignore_eos: bool = False,
        jump_forward: bool = True,
        clock: Clock = time.monotonic,
    ) -> None:
        self._automaton = automaton
        self._threads = threads
        self._eos = list(eos_token_ids) if ignore_eos else []
        self._jump_forward = jump_forward
        self._clock = clock
        self._num_taken = 0
        self._pending: Future[Mask] | None = None
        self._asked_s = 0.0

    @property
    def complete(self) -> bool:
        """See `Constraint`; not while a mask is being found."""
        return self._automaton.complete

    def replay(self, output_ids: Sequence[int]) -> None:
        """Take in output of an earlier attempt, here and now. Raises InvalidRequest: the grammar forbids it."""
        self._automaton.advance(output_ids[self._num_taken :])
        self._num_taken = len(output_ids)

    def prepare(self, output_ids: Sequence[int]) -> None:
        """See `Constraint`."""
        if self._pending is not None:
            return
        new = list(output_ids[self._num_taken :])
        self._num_taken = len(output_ids)
        self._asked_s = self._clock()
        self._pending = self._threads.submit(lambda: self._find(new))

    def mask(self, timeout_s: float) -> Mask | None:
        """See `Constraint`."""
        assert self._pending is not None, "prepare comes first"
        try:
            return self._pending.result(timeout_s)
        except NotInTime:
            if self._clock() - self._asked_s > MASK_LIMIT_S:
                raise too_complex(f"the grammar needed more than {MASK_LIMIT_S:g} s for one token") from None
            return None

    def accept(self, token_id: int, jump: bool) -> Accepted:
        """See `Constraint`."""
        self._pending = None
        self._automaton.advance((token_id,))
        self._num_taken += 1
        if self._automaton.complete:
            return Accepted(complete=True)
        if not (jump and self._jump_forward):
            return Accepted()
        forced = self._automaton.forced()
        self._automaton.advance(forced)
        self._num_taken += len(forced)
        return Accepted(forced, self._automaton.complete)

    def _find(self, new: Sequence[int]) -> Mask:
        """Take in `new` and find what may follow."""
        self._automaton.advance(new)
        mask = np.unpackbits(np.frombuffer(self._automaton.mask(), np.uint8), bitorder="little").view(np.bool_)
        if self._eos:
            without = mask.copy()
            without[self._eos] = False
            return without if without.any() else mask
        return mask
