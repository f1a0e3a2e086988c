"""A trial of a grammar: compile it, then walk through it at random, as a model without a mind would.

The engine meets the cost of a grammar late: some compile in a millisecond and then need seconds, or more than the
limits, for the first masks. A walk finds out before a request depends on it. Deterministic but for the time.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from common.grammar.llg import Grammar, Vocabulary
from common.grammar.spec import GrammarSpec, too_complex

NUM_WALKS = 3
STEPS_PER_WALK = 40
LONGEST_STEP_S = 0.15
WALKS_S = 0.3


def try_out(vocabulary: Vocabulary, spec: GrammarSpec, clock: Callable[[], float]) -> None:
    """Compile `spec` and walk through it, for `WALKS_S` at most; `clock` tells seconds of CPU time.

    Raises:
        InvalidRequest: it is no grammar, it leads nowhere, or a step of it is too slow.
    """
    grammar = vocabulary.compile(spec)
    end_s = clock() + WALKS_S
    for seed in range(NUM_WALKS):
        _walk(grammar, random.Random(seed), clock, end_s)


def _walk(grammar: Grammar, choice: random.Random, clock: Callable[[], float], end_s: float) -> None:
    automaton = grammar.fork()
    for _ in range(STEPS_PER_WALK):
        began_s = clock()
        if automaton.complete or began_s >= end_s:
            return
        automaton.advance([pick(automaton.mask(), choice)])
        if clock() - began_s > LONGEST_STEP_S:
            raise too_complex(f"a step through the grammar takes more than {LONGEST_STEP_S * 1000:.0f} ms")


def pick(mask: bytes, choice: random.Random) -> int:
    """A token of a mask that has one: the first at or after a random place, wrapping around."""
    start = choice.randrange(len(mask))
    for offset in range(len(mask)):
        place = (start + offset) % len(mask)
        if mask[place]:
            bits = [bit for bit in range(8) if mask[place] >> bit & 1]
            return place * 8 + choice.choice(bits)
    raise AssertionError("an empty mask")
