"""The plan: decode by cost, remote prefill when it is worth it, sources that know more."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from services.router.policy import Candidate, Exclusions, Plan, Task, plan
from services.router.prefix_view import WorkerKey

D1, D2, P1, P2, U1, U2 = (
    ("d1", 1), ("d2", 1), ("p1", 1), ("p2", 1), ("u1", 1), ("u2", 1)
)  # fmt: skip
NOBODY = Exclusions()


def worker(key: WorkerKey, queued: int = 0, last_used: int = 0) -> Candidate:
    kind = key[0][0]
    return Candidate(key, f"host:{key[0]}", kind in "du", kind in "pu", queued, last_used)


def place(
    workers: list[Candidate],
    matches: Mapping[WorkerKey, int] | None = None,
    num_tokens: int = 1000,
    excluded: Exclusions = NOBODY,
) -> Plan:
    found = plan(Task(num_tokens, 16, 100, matches or {}), workers, excluded, 64)
    assert found is not None
    return found


def test_nobody_can_decode() -> None:
    task = Task(10, 16, 100, {})
    assert plan(task, [], NOBODY, 64) is None
    assert plan(task, [worker(P1)], NOBODY, 64) is None
    assert plan(task, [worker(D1)], Exclusions(decode={D1}), 64) is None


def test_a_long_prompt_goes_to_a_prefill_worker_and_both_are_charged() -> None:
    found = place([worker(D1), worker(P1)])
    assert (found.decode.key, found.prefill and found.prefill.key, found.reason) == (D1, P1, "remote")
    assert (found.prompt_tokens, found.output_tokens) == (1000, 100)


def test_a_short_suffix_stays_on_decode() -> None:
    workers = [worker(D1), worker(P1)]
    assert place(workers, {D1: 59}).reason == "short_suffix"  # 1000 - 59 * 16 = 56 tokens
    assert place(workers, {D1: 58}).reason == "remote"  # 72 tokens
    found = place(workers, {D1: 59})
    assert (found.prefill, found.prompt_tokens, found.output_tokens) == (None, 56, 100)


def test_blocks_that_may_still_be_on_their_way_have_a_prefill_worker_named() -> None:
    """Decode looks into its own index: what has landed is used, what has not is fetched, nothing is computed twice."""
    workers = [worker(D1), worker(D2), worker(P1, queued=500), worker(P2)]
    task = Task(1000, 16, 100, {D1: 62, P1: 62}, landing={D1})
    found = plan(task, workers, NOBODY, 64)
    assert found is not None and found.prefill is not None
    assert (found.decode.key, found.prefill.key, found.reason, found.prompt_tokens) == (D1, P1, "landing", 8)
    lost = plan(task, [worker(D1)], NOBODY, 64)
    assert lost is not None and lost.prefill is None


def test_the_last_token_is_always_computed() -> None:
    found = place([worker(D1)], {D1: 1}, num_tokens=16)
    assert found.prompt_tokens == 1


def test_without_prefill_workers_decode_computes() -> None:
    assert place([worker(D1)]).reason == "no_prefill_worker"
    assert place([worker(D1), worker(P1)], excluded=Exclusions(prefill={P1})).reason == "no_prefill_worker"


def test_prefix_counts_against_queue_in_tokens() -> None:
    assert place([worker(D1), worker(D2)], {D2: 10}).decode.key == D2
    assert place([worker(D1), worker(D2, queued=159)], {D2: 10}).decode.key == D2
    assert place([worker(D1), worker(D2, queued=161)], {D2: 10}).decode.key == D1


def test_ties_go_to_the_least_recently_used() -> None:
    assert place([worker(D1, last_used=5), worker(D2, last_used=3)]).decode.key == D2
    assert place([worker(D1), worker(P1, last_used=2), worker(P2, last_used=1)]).prefill == worker(P2, last_used=1)


def test_the_decode_worker_of_a_failed_handoff_is_kept() -> None:
    excluded = Exclusions(prefill={P1}, keep_decode=D2)
    found = place([worker(D1), worker(D2, queued=500), worker(P1), worker(P2)], excluded=excluded)
    assert (found.decode.key, found.prefill and found.prefill.key) == (D2, P2)
    assert place([worker(D1)], excluded=excluded).decode.key == D1


def test_a_unified_worker_prefills_itself_unless_another_is_cheaper() -> None:
    assert place([worker(U1), worker(U2)]).reason == "decode_is_best"
    found = place([worker(U1, queued=10), worker(D1), worker(U2, queued=20)])
    assert (found.decode.key, found.prefill and found.prefill.key) == (D1, U1)
    assert place([worker(U1), worker(P1)], {P1: 30}).reason == "remote"


def test_sources_hold_more_than_the_one_who_computes() -> None:
    workers = [worker(D1), worker(D2, queued=5000), worker(P1), worker(P2, queued=5000)]
    found = place(workers, {D1: 3, D2: 9, P1: 3, P2: 7})
    assert [(source.worker.key, source.num_blocks) for source in found.sources] == [(D2, 9), (P2, 7)]
    found = place(workers, {D1: 4, P1: 3})
    assert [source.worker.key for source in found.sources] == [D1], "decode's own blocks are not computed again"
    local = place([worker(D1), worker(P1)], {D1: 59, P1: 60})
    assert local.prefill is None and [source.worker.key for source in local.sources] == [P1]


KEYS = st.sampled_from([D1, D2, P1, P2, U1, U2])


@given(
    known=st.dictionaries(KEYS, st.tuples(st.integers(0, 3000), st.integers(0, 9)), max_size=6),
    matches=st.dictionaries(KEYS, st.integers(1, 62)),
    out_decode=st.sets(KEYS),
    out_prefill=st.sets(KEYS),
    num_tokens=st.integers(1, 1000),
)
def test_every_plan_keeps_the_rules(
    known: dict[WorkerKey, tuple[int, int]],
    matches: dict[WorkerKey, int],
    out_decode: set[WorkerKey],
    out_prefill: set[WorkerKey],
    num_tokens: int,
) -> None:
    workers = [worker(key, queued, used) for key, (queued, used) in known.items()]
    task = Task(num_tokens, 16, 100, matches)
    found = plan(task, workers, Exclusions(out_decode, out_prefill), 64)
    able = [w for w in workers if w.can_decode and w.key not in out_decode]
    if found is None:
        assert not able
        return
    cost = {w.key: w.queued_tokens + task.uncached_tokens(w.key) for w in workers}
    assert found.decode in able and cost[found.decode.key] == min(cost[w.key] for w in able)
    computing = found.prefill or found.decode
    if found.prefill:
        assert found.prefill.can_prefill and found.prefill.key not in out_prefill | {found.decode.key}
        assert task.uncached_tokens(found.decode.key) >= 64
    assert (found.prompt_tokens, found.output_tokens) == (task.uncached_tokens(computing.key), 100)
    assert len(found.sources) <= 2
    assert all(s.num_blocks > matches.get(computing.key, 0) and s.worker != computing for s in found.sources)
