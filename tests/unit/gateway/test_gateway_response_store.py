"""The store of responses: its bounds at both ends, and what it shares."""

from __future__ import annotations

from typing import Any

from services.gateway.response_store import ResponseStore, Stored, stored


def response(number: int, before: Stored | None = None, text: str = "x" * 100) -> Stored:
    unique = f"u{number:03}"
    output = [{"id": f"msg_{unique}_0", "text": text}]
    inputs = [{"id": f"msg_{unique}_in_0", "text": "q"}, {"id": "made up", "text": "q"}]
    document: dict[str, Any] = {"id": f"resp_{unique}", "output": output}
    return stored(document, inputs, before)


SIZE = response(0).size_bytes


def test_the_least_recently_used_goes_first() -> None:
    store = ResponseStore(2, 10 * SIZE)
    for number in (1, 2):
        store.put(response(number))
    assert store.get("resp_u001") is not None
    store.put(response(3))
    assert store.get("resp_u002") is None and len(store) == 2 and store.num_bytes == 2 * SIZE


def test_bytes_are_bounded_at_both_ends() -> None:
    store = ResponseStore(100, 3 * SIZE)
    for number in range(10):
        store.put(response(number))
        assert store.num_bytes <= 3 * SIZE
    assert len(store) == 3
    store.put(response(50, text="x" * (100 + SIZE)))
    assert len(store) == 1 and store.num_bytes == 3 * SIZE, "exactly the bound"
    store.put(response(51, text="x" * (101 + SIZE)))
    assert store.get("resp_u051") is None and store.get("resp_u050") is not None


def test_a_response_is_charged_for_its_whole_conversation() -> None:
    first = response(1)
    second = response(2, first)
    assert second.size_bytes == 2 * SIZE and len(second.conversation) == 6
    assert second.conversation[0] is first.inputs[0], "shared, not copied"


def test_zero_keeps_nothing() -> None:
    for store in (ResponseStore(0, 10**9), ResponseStore(10, 0)):
        store.put(response(1))
        assert len(store) == 0 and store.num_bytes == 0


def test_items_are_found_by_ids_that_nobody_can_guess() -> None:
    store = ResponseStore(10, 10**6)
    store.put(response(1))
    store.put(response(1))
    assert store.item("msg_u001_0") == {"id": "msg_u001_0", "text": "x" * 100}
    assert store.item("msg_u001_in_0") is not None and store.item("made up") is None
    assert store.remove("resp_u001") and not store.remove("resp_u001")
    assert store.item("msg_u001_0") is None and store.num_bytes == 0
