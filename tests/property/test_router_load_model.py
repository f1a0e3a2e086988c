"""Charges and placements against plain lists: what is outstanding is the sum of what is open, on every path."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.router.load import Charge, LoadBook
from services.router.placement import Placement, Reuse
from tests.support.planner_rig import PlannerRig, chain, worker

KEYS = [("a", 1), ("a", 2), ("b", 1)]

OPS = st.lists(
    st.tuples(
        st.sampled_from(["charge", "progress", "computed", "release", "forget"]), st.integers(0, 2), st.integers(0, 50)
    ),
    max_size=60,
)


@given(OPS)
def test_outstanding_is_the_sum_of_open_charges(ops: list[tuple[str, int, int]]) -> None:
    book = LoadBook()
    model: list[tuple[Charge, int, list[int]]] = []  # charge, worker, [prompt left, output left] or []
    for op, worker_index, number in ops:
        if op == "charge":
            charge = book.charge(KEYS[worker_index], 0.0, prompt_tokens=number, output_tokens=2 * number)
            model.append((charge, worker_index, [number, 2 * number]))
        elif op == "forget":
            book.forget(KEYS[worker_index])
        elif model:
            charge, _, left = model[number % len(model)]
            if op == "release":
                charge.release()
                left.clear()
            elif op == "computed":
                charge.computed(1.0)
                left[:1] = [0] if left else []
            else:
                charge.progress(number)
                left[1:] = [max(0, tokens - number) for tokens in left[1:]]
        for index, key in enumerate(KEYS):
            mine = [left for _, owner, left in model if owner == index and left]
            assert book.outstanding_tokens(key) == sum(sum(left) for left in mine)
            assert book.of(key).num_charges == len(mine)
    for charge, _, _ in model:
        charge.release()
    assert all(book.outstanding_tokens(key) == book.of(key).num_charges == 0 for key in KEYS)


PATHS = st.lists(
    st.tuples(
        st.sampled_from(["start", "tokens", "finished", "release", "remove", "stats"]),
        st.integers(0, 30),
        st.integers(0, 40),
    ),
    max_size=60,
)


@given(PATHS, st.sampled_from([("d1", "d2", "p1"), ("u1", "u2")]))
def test_placements_leave_nothing_behind(ops: list[tuple[str, int, int]], names: tuple[str, ...]) -> None:
    """Whatever a request meets (tokens, an abort before them, a lost worker, a second release), the books end empty."""
    rig = PlannerRig([worker(name) for name in names])
    planner = rig.planner
    open_ones: list[Placement] = []
    closed: list[Placement] = []
    for op, which, number in ops:
        rig.now_s += number / 10
        if op == "start":
            open_ones.append(rig.start(rig.task(chain(f"p{which % 3}", 1 + number, head=chain("head", which % 7)))))
        elif op == "remove":
            planner.remove(rig.workers[which % len(rig.workers)].key)
        elif op == "release" and open_ones:
            closed.append(open_ones.pop(which % len(open_ones)))
            closed[-1].release()
            closed[which % len(closed)].release()
        elif open_ones or closed:
            placement = [*open_ones, *closed][which % (len(open_ones) + len(closed))]
            if op == "tokens":
                placement.progress(1 + number, rig.now_s)
            elif op == "finished":
                placement.finished(Reuse({}, number, 0.1), rig.now_s)
        decoding = sum(planner.load.of(one.key).num_generating for one in rig.workers)
        assert decoding == len(open_ones)
    for placement in open_ones:
        placement.release()
    for one in rig.workers:
        load = planner.load.of(one.key)
        assert (load.num_charges, load.prompt_tokens, load.output_tokens, load.context_tokens) == (0, 0, 0, 0)
        assert load.num_generating == 0 and load.queue_s(1.0, 1e9) == load.foreign_tokens
    assert planner.num_running == 0
