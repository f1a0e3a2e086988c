"""The event log: order, and bounded memory for a reader who is too slow."""

from __future__ import annotations

from common.kv.events import BlockEvent, EventKind, EventLog, IndexDigest

STATE = [(b"a", b""), (b"b", b"a")]


def make_log(limit: int = 3) -> EventLog:
    """A log over an index that holds a and b."""
    return EventLog(lambda: STATE, limit)


def stored(name: bytes, parent: bytes = b"") -> BlockEvent:
    """A STORED event."""
    return BlockEvent(EventKind.STORED, name, parent)


def test_events_are_taken_once_and_in_order() -> None:
    log = make_log()
    log.stored(b"x", b"")
    log.stored(b"y", b"x")
    log.removed(b"y")
    assert log.take() == [stored(b"x"), stored(b"y", b"x"), BlockEvent(EventKind.REMOVED, b"y")]
    assert log.take() == []


def test_cleared_makes_earlier_events_pointless() -> None:
    log = make_log()
    log.stored(b"x", b"")
    log.cleared()
    log.stored(b"y", b"")
    assert log.take() == [BlockEvent(EventKind.CLEARED), stored(b"y")]


def test_an_overflow_is_told_as_the_current_state() -> None:
    log = make_log(limit=2)
    for name in (b"p", b"q", b"r", b"s"):
        log.stored(name, b"")
    assert len(log._events) == 0
    assert log.take() == [BlockEvent(EventKind.CLEARED), stored(b"a"), stored(b"b", b"a")]
    log.removed(b"b")
    assert log.take() == [BlockEvent(EventKind.REMOVED, b"b")]


def test_every_event_names_the_tier_of_its_log() -> None:
    log = EventLog(lambda: STATE, 2, tier=2)
    log.stored(b"x", b"")
    log.removed(b"x")
    assert [event.tier for event in log.take()] == [2, 2]
    for name in (b"p", b"q", b"r"):
        log.stored(name, b"")
    assert [(event.kind, event.tier) for event in log.take()] == [
        (EventKind.CLEARED, 2),
        (EventKind.STORED, 2),
        (EventKind.STORED, 2),
    ]
    log.cleared()
    assert log.take() == [BlockEvent(EventKind.CLEARED, tier=2)]


def test_cleared_heals_an_overflow() -> None:
    log = make_log(limit=1)
    log.stored(b"p", b"")
    log.stored(b"q", b"")
    log.cleared()
    assert log.take() == [BlockEvent(EventKind.CLEARED)]


def test_exactly_the_limit_is_no_overflow() -> None:
    log = make_log(limit=2)
    log.stored(b"p", b"")
    log.stored(b"q", b"p")
    assert log.take() == [stored(b"p"), stored(b"q", b"p")]


def test_the_digest_follows_the_index_whatever_is_taken() -> None:
    log, other = make_log(limit=2), make_log(limit=99)
    for name in (b"p", b"q", b"r", b"s"):
        log.stored(name, b"")
    log.removed(b"q")
    for name in (b"s", b"p", b"r"):
        other.stored(name, b"")
    assert log.digest == other.digest and log.digest.num_entries == 3
    log.take()
    assert log.digest == other.digest
    other.removed(b"r")
    other.stored(b"t", b"")
    assert log.digest != other.digest, "as many entries, but others"
    log.cleared()
    assert log.digest == IndexDigest()


def test_a_block_counts_in_each_tier() -> None:
    upper, lower = EventLog(list, 9), EventLog(list, 9, tier=2)
    for log in (upper, lower):
        log.stored(b"12345678 and the rest does not matter", b"")
    both = upper.digest.plus(lower.digest)
    assert both == IndexDigest(2, 3 * int.from_bytes(b"12345678", "little") % 2**64)
