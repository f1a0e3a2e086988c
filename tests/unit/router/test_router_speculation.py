"""Prompts on their way, popularity of prefixes, sessions: small bounded memories against plain models."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from services.router.affinity import Affinity
from services.router.popularity import DEPTHS, Popularity
from services.router.speculation import Speculations
from tests.support.planner_rig import PlannerRig, chain, worker

A, B = ("a", 1), ("b", 1)


def test_a_promise_holds_from_the_plan_until_a_while_after_the_first_token() -> None:
    book = Speculations(2.0, 10)
    prompt = chain("x", 20)
    promise = book.add(A, prompt, landing=False)
    assert promise is not None and book.add(A, [], landing=False) is None
    assert book.match(chain("y", 20, head=prompt[:7]), 1e6) == {A: (7, False)}
    assert book.match(chain("z", 3), 0.0) == {}
    book.computed(promise, 10.0)
    assert book.match(prompt, 11.9) == {A: (20, False)}
    assert book.match(prompt, 12.0) == {}
    book.lapse(12.0)
    assert len(book) == 0
    book.drop(promise)


def test_what_is_computed_there_counts_more_than_what_lands_there() -> None:
    book = Speculations(2.0, 10)
    prompt = chain("x", 20)
    book.add(A, prompt, landing=True)
    assert book.match(prompt, 0.0) == {A: (20, True)}
    book.add(A, prompt, landing=False)
    assert book.match(prompt, 0.0) == {A: (20, False)}


def test_promises_are_bounded_and_go_with_their_worker() -> None:
    book = Speculations(2.0, 3)
    for number in range(5):
        book.add(A if number % 2 else B, chain(f"p{number}", 2), landing=False)
    assert len(book) == 3 and not book.match(chain("p0", 2), 0.0)
    book.forget(B)
    assert len(book) == 1
    assert Speculations(2.0, 0).add(A, chain("x", 1), landing=False) is None


SHAPES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 12)), max_size=12)


def _prompt(shape: tuple[int, int, int]) -> list[bytes]:
    which, shared, own = shape
    return chain(f"own{which}.{shared}", shared + own, head=chain("shared", shared))


@given(SHAPES, st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 12)))
def test_matching_equals_comparing_all_heads(shapes: list[tuple[int, int, int]], asked: tuple[int, int, int]) -> None:
    book, prompts = Speculations(2.0, 99), [_prompt(shape) for shape in shapes]
    for number, prompt in enumerate(prompts):
        book.add((A, B)[number % 2], prompt, landing=False)
    wanted = _prompt(asked)
    expected: dict[object, tuple[int, bool]] = {}
    for number, prompt in enumerate(prompts):
        common = next((n for n, pair in enumerate(zip(prompt, wanted, strict=False)) if pair[0] != pair[1]), None)
        length = min(len(prompt), len(wanted)) if common is None else common
        key = (A, B)[number % 2]
        if length > expected.get(key, (0, False))[0]:
            expected[key] = (length, False)
    assert book.match(wanted, 0.0) == expected


def test_depths_are_dense_at_first_and_then_a_half_apart() -> None:
    assert DEPTHS[:12] == (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
    assert all(later <= 1.5 * earlier for earlier, later in pairwise(DEPTHS[3:]))


def test_a_popular_head_counts_less_and_the_books_end_empty() -> None:
    popularity = Popularity()
    prompt = chain("x", 20)
    assert popularity.curve(prompt, 20, 2) is None
    siblings = [chain(f"s{number}", 24, head=prompt[:8]) for number in range(4)]
    for hashes in siblings:
        popularity.enter(hashes)
    curve = popularity.curve(prompt, 20, 2)
    assert curve is not None
    assert curve.blocks(8) == 8 / (1 + 4 / 2) and curve.blocks(0) == 0
    assert curve.total == curve.blocks(20) == 8 / 3 + 12
    assert curve.blocks(4) == 4 / 3
    part = popularity.curve(prompt, 4, 2)
    assert part is not None and part.total == 4 / 3 + 16, "nobody has the rest yet"
    assert popularity.curve(prompt, 0, 2) is None
    for hashes in siblings:
        popularity.leave(hashes)
    assert len(popularity) == 0


def test_sessions_are_bounded_and_forgotten_with_their_worker() -> None:
    affinity = Affinity(2)
    for session, key in (("s", A), ("t", B), ("s", A), ("u", A), ("", B)):
        affinity.note(session, key)
    assert [affinity.worker(one) for one in ("s", "t", "u", "")] == [A, None, A, None]
    affinity.forget(A)
    assert len(affinity) == 0


def test_a_burst_of_siblings_lands_together() -> None:
    rig = PlannerRig([worker("u1"), worker("u2"), worker("u3"), worker("u4")])
    system = chain("system", 125)
    placed = [rig.start(rig.task(chain(f"tail{number}", 128, head=system))) for number in range(6)]
    assert len({placement.plan.decode.key for placement in placed}) <= 2, "nobody computes the same prompt four times"
    assert sum(placement.plan.prompt_tokens for placement in placed) < 2 * 2060 + 4 * 70
