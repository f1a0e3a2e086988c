"""A request's constraint: masks from another thread, in time or not, and what a drawn token brings with it."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from common.base.errors import InvalidRequest
from common.grammar.matcher import MASK_LIMIT_S, Matcher
from common.grammar.spec import GrammarKind, GrammarSpec
from common.grammar.store import GrammarStore
from common.grammar.threads import DaemonThreads
from tests.support.grammar_walks import END, fork, tiny_grammar_vocabulary

SOON_S = 10.0


class SlowAutomaton:
    """An automaton over the ids 0 .. 7 whose masks wait for `go`; 7 is forbidden, 5 forces 6, 6 completes."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.taken: list[int] = []

    @property
    def accepting(self) -> bool:
        return self.complete

    @property
    def complete(self) -> bool:
        return self.taken[-1:] == [6]

    def advance(self, token_ids: tuple[int, ...]) -> None:
        for token in token_ids:
            if token == 7:
                raise InvalidRequest("7 is forbidden")
            self.taken.append(token)

    def mask(self) -> bytes:
        assert self.go.wait(SOON_S)
        return bytes([0b01111111])

    def forced(self) -> list[int]:
        return [6] if self.taken[-1:] == [5] else []


@pytest.fixture
def threads() -> DaemonThreads:
    return DaemonThreads(1, "test-mask")


def slow(threads: DaemonThreads, **options: object) -> tuple[Matcher, SlowAutomaton]:
    automaton = SlowAutomaton()
    return Matcher(automaton, threads, (0,), **options), automaton  # type: ignore[arg-type]


def test_a_mask_that_is_late_comes_with_the_next_try(threads: DaemonThreads) -> None:
    matcher, automaton = slow(threads)
    matcher.prepare([1, 2])
    assert matcher.mask(0.0) is None
    matcher.prepare([1, 2])
    automaton.go.set()
    mask = matcher.mask(SOON_S)
    assert mask is not None and np.flatnonzero(mask).tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert automaton.taken == [1, 2], "the output was taken in twice"


def test_what_never_comes_ends_the_request(threads: DaemonThreads) -> None:
    now_s = 0.0
    matcher, automaton = slow(threads, clock=lambda: now_s)
    matcher.prepare([])
    now_s = MASK_LIMIT_S
    assert matcher.mask(0.0) is None
    now_s += 0.001
    with pytest.raises(InvalidRequest) as refused:
        matcher.mask(0.0)
    assert refused.value.reason == "grammar_too_complex"
    automaton.go.set()


def test_an_error_on_the_thread_is_told_to_who_waits(threads: DaemonThreads) -> None:
    matcher, _ = slow(threads)
    matcher.prepare([1, 7])
    with pytest.raises(InvalidRequest):
        matcher.mask(SOON_S)


def test_a_token_brings_what_it_forces_and_the_end(threads: DaemonThreads) -> None:
    matcher, automaton = slow(threads)
    automaton.go.set()
    matcher.prepare([])
    matcher.mask(SOON_S)
    accepted = matcher.accept(4, jump=True)
    assert not accepted.forced and not accepted.complete
    matcher.prepare([4])
    matcher.mask(SOON_S)
    accepted = matcher.accept(5, jump=True)
    assert list(accepted.forced) == [6] and accepted.complete
    assert automaton.taken == [4, 5, 6]


@pytest.mark.parametrize(("jump", "jump_forward"), [(False, True), (True, False)])
def test_without_jumps_forced_tokens_are_left_to_be_drawn(
    threads: DaemonThreads, jump: bool, jump_forward: bool
) -> None:
    matcher, automaton = slow(threads, jump_forward=jump_forward)
    automaton.go.set()
    matcher.prepare([])
    matcher.mask(SOON_S)
    assert not matcher.accept(5, jump).forced
    matcher.prepare([5])
    matcher.mask(SOON_S)
    assert matcher.accept(6, jump).complete and automaton.taken == [5, 6]


@pytest.mark.parametrize(("ignore_eos", "allowed"), [(False, True), (True, False)])
def test_ignore_eos_forbids_the_end_while_the_text_can_go_on(
    threads: DaemonThreads, ignore_eos: bool, allowed: bool
) -> None:
    matcher = Matcher(fork("regex", "a+"), threads, (END,), ignore_eos=ignore_eos)
    matcher.prepare(tiny_grammar_vocabulary().encode("a"))
    mask = matcher.mask(SOON_S)
    assert mask is not None and mask[END] == allowed


def test_ignore_eos_allows_the_end_where_nothing_else_can_come(threads: DaemonThreads) -> None:
    matcher = Matcher(fork("regex", ""), threads, (END,), ignore_eos=True)
    matcher.prepare([])
    mask = matcher.mask(SOON_S)
    assert mask is not None and np.flatnonzero(mask).tolist() == [END]
    assert matcher.accept(END, jump=True).complete


async def test_the_store_compiles_once_and_remembers_failures() -> None:
    store = GrammarStore(tiny_grammar_vocabulary(), max_grammars=2)
    good, bad = GrammarSpec(GrammarKind.REGEX, "ab+"), GrammarSpec(GrammarKind.REGEX, "(")
    first = await store.matcher(good, (), ignore_eos=False)
    second = await store.matcher(good, tiny_grammar_vocabulary().encode("ab"), ignore_eos=False)
    for matcher, output in ((first, []), (second, tiny_grammar_vocabulary().encode("ab"))):
        matcher.prepare(output)
        assert matcher.mask(SOON_S) is not None
    errors = []
    for _ in range(2):
        with pytest.raises(InvalidRequest) as refused:
            await store.matcher(bad, (), ignore_eos=False)
        errors.append(refused.value)
    assert errors[0] is not errors[1] and errors[0].message == errors[1].message
    assert len(store._grammars) == 2
    await store.matcher(GrammarSpec(GrammarKind.REGEX, "c"), (), ignore_eos=False)
    assert len(store._grammars) == 2
    store.close()


async def test_the_store_refuses_output_that_breaks_the_grammar() -> None:
    store = GrammarStore(tiny_grammar_vocabulary())
    with pytest.raises(InvalidRequest):
        await store.matcher(
            GrammarSpec(GrammarKind.REGEX, "ab"), tiny_grammar_vocabulary().encode("x"), ignore_eos=False
        )
    store.close()


async def test_a_grammar_that_compiles_for_ever_costs_its_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.grammar.store.COMPILE_LIMIT_S", 0.05)
    go = threading.Event()

    class Stuck:
        eos_token_ids = (END,)

        def compile(self, spec: GrammarSpec) -> object:
            go.wait(SOON_S)
            return tiny_grammar_vocabulary().compile(spec)

    store = GrammarStore(Stuck())  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest) as refused:
        await store.matcher(GrammarSpec(GrammarKind.REGEX, "a"), (), ignore_eos=False)
    assert refused.value.reason == "grammar_too_complex"
    go.set()
    store.close()
