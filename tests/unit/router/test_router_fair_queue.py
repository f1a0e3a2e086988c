"""Fair shares between tenants, priorities with ageing within one, and who gives way when there is no room."""

from __future__ import annotations

from collections import Counter

import pytest

from services.router.fair_queue import QUANTUM_TOKENS, Entry, FairQueue, rank, weight_of


def fill(queue: FairQueue, tenant: str, count: int, cost: int = 100, weight: int = 1, **fields: float) -> list[Entry]:
    entries = [Entry(tenant, cost, **fields) for _ in range(count)]  # type: ignore[arg-type]
    for entry in entries:
        queue.open(entry, weight)
    return entries


def served(queue: FairQueue, count: int) -> Counter[str]:
    """Tokens by tenant of the next `count` requests."""
    tokens: Counter[str] = Counter()
    for _ in range(count):
        entry = queue.pop()
        assert entry is not None
        tokens[entry.tenant] += entry.cost_tokens
    return tokens


def test_one_tenant_is_served_in_order_of_rank_then_arrival() -> None:
    queue = FairQueue()
    entries = [Entry("a", 10, rank=value) for value in (3.0, 1.0, 2.0, 1.0)]
    for entry in entries:
        queue.open(entry, 1)
    assert [queue.pop() for _ in range(5)] == [entries[1], entries[3], entries[2], entries[0], None]


def test_a_flood_takes_no_more_than_its_share() -> None:
    queue = FairQueue()
    fill(queue, "flood", 300)
    fill(queue, "small", 20)
    tokens = served(queue, 40)
    assert abs(tokens["flood"] - tokens["small"]) <= 2 * QUANTUM_TOKENS
    assert queue.queued_tokens == 280 * 100


def test_shares_are_in_tokens_not_requests() -> None:
    queue = FairQueue()
    fill(queue, "long", 50, cost=1000)
    fill(queue, "short", 500, cost=50)
    tokens = served(queue, 210)
    assert abs(tokens["long"] - tokens["short"]) <= 1000 + QUANTUM_TOKENS


@pytest.mark.parametrize("weight", [2, 5])
def test_weights_scale_the_share(weight: int) -> None:
    queue = FairQueue()
    fill(queue, "heavy", 400, weight=weight)
    fill(queue, "light", 400)
    tokens = served(queue, 240)
    assert tokens["heavy"] / tokens["light"] == pytest.approx(weight, rel=0.15)


def test_output_is_paid_for_while_others_wait_and_debt_ends_when_nobody_does() -> None:
    queue = FairQueue()
    talker = fill(queue, "talker", 60)
    queue.pop()
    queue.charge("talker", 10_000)  # nobody else waits: free
    fill(queue, "quiet", 60)
    assert set(served(queue, 20)) == {"talker", "quiet"}
    queue.charge("talker", 2000)
    ahead = served(queue, 20)
    assert ahead["quiet"] == 2000, "the debt is paid off first"
    while queue.pop() is not None:
        pass
    fill(queue, "quiet", 10)
    queue.put_back(talker[0])
    assert set(served(queue, 11)) == {"talker", "quiet"}


def test_credit_is_not_saved_up() -> None:
    queue = FairQueue()
    fill(queue, "busy", 500)
    fill(queue, "brief", 1, cost=1)  # open all the time, so that the tenant is not forgotten
    for _ in range(20):
        assert served(queue, 10)["brief"] == 1
        fill(queue, "brief", 1, cost=1)
    fill(queue, "brief", 100)
    tokens = served(queue, 20)
    assert tokens["brief"] <= 1000 + 2 * QUANTUM_TOKENS


def test_a_tenant_alone_waits_for_no_credit_and_saves_none() -> None:
    queue = FairQueue()
    fill(queue, "alone", 60, cost=10 * QUANTUM_TOKENS)
    assert served(queue, 20)["alone"] == 200 * QUANTUM_TOKENS
    fill(queue, "late", 60, cost=10 * QUANTUM_TOKENS)
    tokens = served(queue, 20)
    assert abs(tokens["alone"] - tokens["late"]) <= 10 * QUANTUM_TOKENS


def test_put_back_restores_place_and_credit() -> None:
    queue = FairQueue()
    first, second = fill(queue, "a", 2)
    fill(queue, "b", 2)
    assert queue.pop() is first
    queue.put_back(first)
    assert queue.queued_tokens == 400
    order = [queue.pop() for _ in range(4)]
    assert order.index(first) < order.index(second)


def test_closing_forgets_a_tenant_with_its_last_request() -> None:
    queue = FairQueue()
    one, two = fill(queue, "a", 2)
    assert queue.pop() is one
    queue.close(two)
    assert (len(queue), queue.num_tenants, queue.num_known) == (0, 0, 1)
    queue.close(one)
    assert queue.num_known == 0


def test_what_is_before_a_new_request_counts_its_share_of_the_others() -> None:
    queue = FairQueue()
    fill(queue, "a", 10, rank=5.0)
    fill(queue, "b", 100, rank=5.0)
    assert queue.tokens_before("new", 1, 9.0) == 0
    assert queue.tokens_before("a", 1, 4.0) == 0, "it goes before all of its tenant"
    assert queue.tokens_before("a", 1, 9.0) == 2000
    assert queue.tokens_before("b", 1, 9.0) == queue.queued_tokens == 11_000


def test_the_fullest_tenant_gives_way_to_an_emptier_one() -> None:
    queue = FairQueue()
    flood = fill(queue, "flood", 10)
    fill(queue, "other", 3)
    assert queue.victims(Entry("new", 100), 1, 1, 0) == [flood[-1]]
    assert queue.victims(Entry("new", 100), 1, 0, 150) == flood[:-3:-1]
    assert queue.victims(Entry("flood", 100), 1, 1, 0) is None
    assert queue.victims(Entry("other", 800), 1, 1, 0) is None, "it would be the fullest"
    for entry in flood[2:]:
        queue.close(entry)
    victims = queue.victims(Entry("new", 100), 1, 1, 0)
    assert victims and victims[0].tenant == "other", "who was the fullest is not any more"


def test_a_higher_priority_takes_the_place_of_a_lower_one_of_its_tenant_only() -> None:
    queue = FairQueue()
    low = fill(queue, "a", 2, priority=0)
    assert queue.victims(Entry("a", 100, priority=1), 1, 1, 0) == [low[-1]]
    assert queue.victims(Entry("b", 500, priority=1), 1, 1, 0) is None


def test_ageing_lets_nobody_starve() -> None:
    """A low priority that waits goes before a high one that comes late enough, and only then."""
    assert rank(10.0, 3, 5.0) < rank(0.0, 0, 5.0) < rank(16.0, 3, 5.0)
    assert rank(0.0, 2**31 - 1, 5.0) == rank(0.0, 100, 5.0)


def test_weights_are_bounded() -> None:
    assert [weight_of(asked) for asked in (0, 1, 7, 10**9)] == [1, 1, 7, 100]
