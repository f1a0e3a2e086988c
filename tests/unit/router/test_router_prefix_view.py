"""The prefix view: contiguous heads, tiers, gaps, snapshots, bounds."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from common.kv.events import EventLog, IndexDigest
from services.router.index_update import Change, ChangeKind, Update
from services.router.prefix_view import PrefixView, Trust, WorkerKey

HASHES = [sha256(bytes([n])).digest() for n in range(8)]
A, B = ("a", 1), ("b", 1)


def stored(*blocks: int, tier: int = 1) -> list[Change]:
    return [(ChangeKind.STORED, HASHES[n], tier) for n in blocks]


def removed(*blocks: int, tier: int = 1) -> list[Change]:
    return [(ChangeKind.REMOVED, HASHES[n], tier) for n in blocks]


def snapshot(view: PrefixView, key: WorkerKey, changes: Sequence[Change] = (), seq: int = 0) -> None:
    assert view.handle(key, Update(seq, changes, snapshot=True, snapshot_end=True))


def test_only_the_contiguous_head_counts() -> None:
    view = PrefixView(100)
    snapshot(view, A, stored(0, 1, 2, 4))
    snapshot(view, B, stored(0))
    snapshot(view, ("c", 1), stored(1, 2))
    assert view.match(HASHES) == {A: 3, B: 1}
    assert view.match(HASHES[:2]) == {A: 2, B: 1}
    assert view.match([]) == {} == view.match(HASHES[7:])


def test_a_block_counts_until_its_last_tier_is_gone() -> None:
    view = PrefixView(100)
    snapshot(view, A, [*stored(0), *stored(0, tier=2)])
    assert view.handle(A, Update(1, removed(0)))
    assert view.match(HASHES) == {A: 1}
    assert view.handle(A, Update(2, removed(0, tier=2)))
    assert view.match(HASHES) == {} and len(view) == 0


def test_a_gap_asks_for_a_snapshot_and_keeps_the_hints() -> None:
    view = PrefixView(100)
    snapshot(view, A, stored(0), seq=5)
    assert view.handle(A, Update(7, stored(1, 2)))
    assert not view.handle(A, Update(9, stored(4)))
    assert not view.is_exact(A) and view.match(HASHES) == {A: 3}
    assert not view.handle(A, Update(10, stored(5))), "nothing is believed before the snapshot"
    snapshot(view, A, stored(0, 1), seq=10)
    assert view.is_exact(A) and view.match(HASHES) == {A: 2}


def test_a_snapshot_in_pieces_is_exact_at_its_end() -> None:
    view = PrefixView(100)
    view.handle(A, Update(3, stored(0), snapshot=True))
    assert not view.is_exact(A)
    view.handle(A, Update(3, stored(1), snapshot=True, snapshot_end=True))
    assert view.is_exact(A) and view.match(HASHES) == {A: 2}
    view.handle(A, Update(3, stored(2), snapshot=True))
    view.lost_track(A)
    snapshot(view, A, stored(0), seq=4)
    assert view.match(HASHES) == {A: 1}, "the broken snapshot is not mixed into the next"


def test_cleared_counts_as_one_change() -> None:
    view = PrefixView(100)
    snapshot(view, A, stored(0, 1))
    assert view.handle(A, Update(2, [(ChangeKind.CLEARED, b"", 0), *stored(3)]))
    assert view.num_blocks(A) == 1


def test_cleared_empties_the_tier_it_names_and_no_other() -> None:
    view = PrefixView(100)
    snapshot(view, A, [*stored(0, 1, 2), *stored(0, 1, tier=2)])
    snapshot(view, B, [*stored(0), *stored(0, tier=2)])
    assert view.handle(A, Update(1, [(ChangeKind.CLEARED, b"", 1)]))
    assert view.match(HASHES) == {A: 2, B: 1}
    assert view.handle(A, Update(3, [(ChangeKind.CLEARED, b"", 2), *stored(0)]))
    assert view.match(HASHES) == {A: 1, B: 1}
    assert view.handle(A, Update(4, removed(0)))
    assert view.match(HASHES) == {B: 1}


def test_a_tier_this_router_does_not_know_touches_nobody() -> None:
    view = PrefixView(100)
    snapshot(view, A, stored(0))
    snapshot(view, B)
    assert view.handle(A, Update(3, [*stored(0, 1, tier=4), (ChangeKind.CLEARED, b"", 3)]))
    assert view.match(HASHES) == {A: 1} and view.num_blocks(A) == 1


def test_a_removed_worker_leaves_nothing_and_its_slot_is_used_again() -> None:
    view = PrefixView(100)
    snapshot(view, A, stored(0, 1))
    snapshot(view, B, stored(0))
    view.remove(A)
    view.remove(A)
    assert view.match(HASHES) == {B: 1} and view.num_blocks(A) == 0 and len(view) == 1
    snapshot(view, ("a", 2))
    assert view.match(HASHES) == {B: 1}


def test_memory_is_bounded() -> None:
    view = PrefixView(3)
    snapshot(view, A, stored(0, 1, 2, 3, 4))
    snapshot(view, B, stored(0, 1, 5))
    assert len(view) == 3 and view.num_dropped == 3
    assert view.match(HASHES) == {A: 3, B: 2}


def test_a_digest_that_differs_degrades_until_the_next_snapshot() -> None:
    """The worker's own digest over a real event log is the view's, and a change that went missing shows."""
    view, log = PrefixView(100), EventLog(list, 99)
    names = [bytes([number]) * 32 for number in range(5)]
    view.handle(A, Update(0, [], snapshot=True, snapshot_end=True))
    for name in names:
        log.stored(name, b"")
    log.removed(names[4])
    right = IndexDigest(*log.digest)
    changes: list[Change] = [(ChangeKind.STORED, name, 1) for name in names]
    changes.append((ChangeKind.REMOVED, names[4], 1))
    assert view.handle(A, Update(6, changes, digest=right))
    assert view.trust(A) is Trust.EXACT
    assert not view.handle(A, Update(7, [(ChangeKind.REMOVED, names[0], 1)], digest=right))
    assert view.trust(A) is Trust.DEGRADED and view.match(names[1:2]) == {A: 1}, "what is known stays a hint"
    view.handle(A, Update(7, changes[:2], snapshot=True))
    assert view.trust(A) is Trust.CATCHING_UP
    view.handle(A, Update(7, changes[2:4], snapshot=True, snapshot_end=True))
    assert view.handle(A, Update(7, [], digest=right)) and view.trust(A) is Trust.EXACT


def test_what_did_not_fit_is_no_reason_to_ask_for_snapshots_for_ever() -> None:
    view = PrefixView(1)
    view.handle(A, Update(0, [], snapshot=True, snapshot_end=True))
    changes: list[Change] = [(ChangeKind.STORED, b"x", 1), (ChangeKind.STORED, b"y", 1)]
    assert view.handle(A, Update(2, changes, digest=IndexDigest(2, 5)))
    assert view.trust(A) is Trust.DEGRADED and view.num_dropped == 1


def test_the_head_in_l1_is_told_apart_from_the_whole_match() -> None:
    view = PrefixView(100)
    names = [bytes([number]) for number in range(6)]
    changes: list[Change] = [(ChangeKind.STORED, name, 1) for name in names[:2]]
    changes += [(ChangeKind.STORED, name, 2) for name in names[:5]]
    view.handle(A, Update(0, changes, snapshot=True, snapshot_end=True))
    view.handle(B, Update(0, changes[2:], snapshot=True, snapshot_end=True))
    assert view.match_tiers(names) == ({A: 5, B: 5}, {A: 2, B: 0})
    assert view.match_tiers(names[:2]) == ({A: 2, B: 2}, {B: 0}), "all that A has of it is in L1"
    assert view.match_tiers([]) == ({}, {})
