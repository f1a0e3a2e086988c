"""The prefix view against a plain dict of sets."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from services.router.index_update import Change, ChangeKind, Update
from services.router.prefix_view import PrefixView, WorkerKey

HASHES = [sha256(bytes([n])).digest() for n in range(8)]
A, B = ("a", 1), ("b", 1)


def change(kind: ChangeKind, block: int, tier: int) -> Change:
    return kind, HASHES[block], tier


BLOCKS = st.integers(0, 7)
TIERS = st.sampled_from([1, 2])
CHANGES = st.lists(
    st.one_of(
        st.builds(change, st.just(ChangeKind.STORED), BLOCKS, TIERS),
        st.builds(change, st.just(ChangeKind.REMOVED), BLOCKS, TIERS),
        st.sampled_from([(ChangeKind.CLEARED, b"", tier) for tier in (0, 1, 2)]),
    ),
    max_size=6,
)
WORKERS = st.sampled_from([A, B, ("a", 2), ("c", 1)])
STEPS = st.lists(st.tuples(st.sampled_from(["update", "snapshot", "remove"]), WORKERS, CHANGES), max_size=25)


@given(STEPS)
def test_the_view_equals_a_dict_of_sets(steps: list[tuple[str, WorkerKey, list[Change]]]) -> None:
    view = PrefixView(1000)
    seqs: dict[WorkerKey, int] = {}
    model: dict[WorkerKey, set[tuple[bytes, int]]] = {}
    for step, key, changes in steps:
        if step == "remove":
            view.remove(key)
            seqs.pop(key, None)
            model.pop(key, None)
            continue
        fresh = step == "snapshot" or key not in seqs
        seqs[key] = 9 if fresh else seqs[key] + len(changes)
        assert view.handle(key, Update(seqs[key], changes, snapshot=fresh, snapshot_end=fresh))
        held = set() if fresh else model[key]
        for kind, block, tier in changes:
            if kind == ChangeKind.STORED:
                held.add((block, tier))
            elif kind == ChangeKind.REMOVED:
                held.discard((block, tier))
            else:
                held.difference_update({(name, t) for name, t in held if tier in (0, t)})
        model[key] = held
    names = {key: {block for block, _ in held} for key, held in model.items()}
    assert len(view) == len(set().union(*names.values()))
    for key, held_names in names.items():
        assert view.num_blocks(key) == len(held_names)
    for start in range(len(HASHES)):
        asked = HASHES[start:]
        lengths = {key: _head(asked, held_names) for key, held_names in names.items()}
        assert view.match(asked) == {key: length for key, length in lengths.items() if length}


def _head(asked: Sequence[bytes], held: set[bytes]) -> int:
    for depth, block in enumerate(asked):
        if block not in held:
            return depth
    return len(asked)
