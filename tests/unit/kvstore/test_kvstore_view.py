"""Whom a client asks: nodes that answer, and a leader where there is somebody else to lead."""

from __future__ import annotations

from common.cache.kvstore_view import StoreProcess, StoreView

A = StoreProcess("a", "h:1", frozenset({"node", "master", "leader"}))
B = StoreProcess("b", "h:2", frozenset({"node"}))
M = StoreProcess("m", "h:3", frozenset({"master"}))


def test_only_nodes_are_asked_for_objects() -> None:
    view = StoreView()
    view.listed([M, B, A])
    assert view.nodes(0.0) == [A, B] and view.leader(0.0) == A


def test_a_store_of_one_process_needs_no_leader() -> None:
    view = StoreView()
    view.listed([A])
    assert view.leader(0.0) is None and view.nodes(0.0) == [A]


def test_who_fails_is_left_alone_for_a_while() -> None:
    view = StoreView(back_off_s=1.0)
    view.listed([A, B])
    view.failed("h:1", 10.0)
    assert view.nodes(10.9) == [B] and view.leader(10.9) is None and not view.usable("h:1", 10.9)
    assert view.nodes(11.0) == [A, B] and view.leader(11.0) == A
    view.failed("h:1", 20.0)
    view.answered("h:1")
    assert view.nodes(20.0) == [A, B]


def test_a_new_life_at_another_address_is_asked_at_once() -> None:
    view = StoreView()
    view.listed([A, B])
    view.failed("h:2", 0.0)
    assert view.listed([A, StoreProcess("b", "h:9")]) == {"h:2"}
    assert [node.address for node in view.nodes(0.0)] == ["h:1", "h:9"]
