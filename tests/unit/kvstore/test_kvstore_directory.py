"""The leader's picture of the nodes, and what it advises."""

from __future__ import annotations

from collections import Counter

import pytest

from common.cache.kvstore_placement import Candidate, choose_holder, rank
from services.kvstore.directory import Directory

A, B, C = b"a", b"b", b"c"


@pytest.fixture
def directory() -> Directory:
    directory = Directory()
    directory.expect(["n1", "n2"])
    for node, names in (("n1", [A, B]), ("n2", [B, C])):
        directory.begin(node)
        directory.add(node, names)
        directory.end_snapshot(node)
    return directory


def test_knows_all_holders(directory: Directory) -> None:
    assert [directory.holders(name) for name in (A, B, C, b"d")] == [["n1"], ["n1", "n2"], ["n2"], []]
    directory.remove("n2", [C, b"unknown"])
    directory.add("n1", [C])
    assert directory.holders(C) == ["n1"] and len(directory) == 4


def test_is_complete_only_with_every_expected_inventory(directory: Directory) -> None:
    assert directory.complete and not Directory().complete
    directory.expect(None)
    assert not directory.complete
    directory.expect(["n1", "n2", "n3"])
    assert not directory.complete
    directory.begin("n3")
    assert not directory.complete
    directory.end_snapshot("n3")
    assert directory.complete
    directory.begin("n1")
    assert not directory.complete and directory.holders(A) == []


def test_a_lost_node_is_forgotten_at_once_and_swept_in_portions(directory: Directory) -> None:
    directory.add("n1", [bytes([0, number]) for number in range(100)])
    directory.drop("n1")
    directory.drop("n1")
    assert directory.holders(A) == [] and directory.holders(B) == ["n2"] and directory.num_nodes == 1
    assert [directory.sweep(40) for _ in range(4)] == [True, True, False, False]


NODES = [Candidate(f"n{number}", f"h:{number}", f"host{number}", 100, 50) for number in range(4)]


def test_a_path_always_goes_to_the_same_node_and_paths_spread() -> None:
    firsts = [rank(f"path{number}".encode(), 10, "", NODES)[0].node_id for number in range(2000)]
    assert firsts == [rank(f"path{number}".encode(), 10, "", NODES[::-1])[0].node_id for number in range(2000)]
    assert all(400 < count < 600 for count in Counter(firsts).values())


def test_a_lost_node_moves_only_its_own_share() -> None:
    for number in range(200):
        name = f"path{number}".encode()
        best = rank(name, 10, "", NODES)
        assert [one for one in best if one.node_id != "n2"] == rank(name, 10, "", [NODES[0], NODES[1], NODES[3]])


def test_room_attracts() -> None:
    nodes = [Candidate("small", "a", "", 100, 0), Candidate("large", "b", "", 100, 80)]
    chosen = Counter(rank(f"path{number}".encode(), 10, "", nodes)[0].node_id for number in range(1000))
    assert 850 < chosen["large"] < 930


def test_the_writers_host_comes_first_while_it_has_room() -> None:
    for number in range(50):
        assert rank(f"p{number}".encode(), 50, "host3", NODES)[0].node_id == "n3"
    assert {rank(f"p{number}".encode(), 51, "host3", NODES)[0].node_id for number in range(50)} == {
        "n0",
        "n1",
        "n2",
        "n3",
    }


def test_readers_take_the_copy_on_their_host_or_spread() -> None:
    assert choose_holder(["n1"], frozenset(), "me") == "n1"
    assert choose_holder(["n1", "n2"], frozenset({"n2"}), "me") == "n2"
    assert {choose_holder(["n1", "n2"], frozenset(), f"client{number}") for number in range(20)} == {"n1", "n2"}
