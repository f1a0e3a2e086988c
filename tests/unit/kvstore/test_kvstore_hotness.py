"""What is asked for often, within a window and a bound."""

from __future__ import annotations

from services.kvstore.hotness import Hotness


def test_a_name_becomes_hot_once_per_window() -> None:
    hotness = Hotness(3, window_s=10.0)
    assert [hotness.count([b"a", b"b"], 0.0), hotness.count([b"a"], 5.0)] == [[], []]
    assert hotness.count([b"a"], 9.9) == [b"a"]
    assert hotness.count([b"a"] * 5, 9.9) == []
    assert hotness.count([b"b"], 10.0) == [], "a new window"
    assert hotness.count([b"a"] * 3, 11.0) == [b"a"]


def test_the_number_of_names_is_bounded() -> None:
    hotness = Hotness(2, max_names=10)
    for number in range(100):
        hotness.count([bytes([number])], 0.0)
        assert len(hotness._counts) <= 10
