"""The plan: decode by cost, remote prefill when it is worth it, sources that know more, plain rules to compare with."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.planner import PlannerConfig
from services.router.policy import Exclusions
from tests.support.planner_rig import NOBODY, PlannerRig, chain, keys, worker

P62 = chain("prompt", 62)


def rig(*names: str, **config: object) -> PlannerRig:
    return PlannerRig([worker(name) for name in names], PlannerConfig(remote_prefill_min_tokens=64, **config))  # type: ignore[arg-type]


def test_nobody_can_decode() -> None:
    made = rig("d1", "p1")
    task = made.task(P62)
    plan = made.planner.plan
    assert plan(task, [], NOBODY, 0.0) is None
    assert plan(task, [worker("p1")], NOBODY, 0.0) is None
    assert plan(task, [worker("d1")], Exclusions(decode={("d1", 1)}), 0.0) is None


def test_a_long_prompt_goes_to_a_prefill_worker_and_both_are_charged() -> None:
    found = rig("d1", "p1").plan(rig("d1").task(P62))
    assert (keys(found), found.reason) == (("d1", "p1"), "remote")
    assert (found.prompt_tokens, found.output_tokens) == (1000, 100)


def test_a_short_suffix_stays_on_decode() -> None:
    made = rig("d1", "p1")
    made.store("d1", P62[:58])
    assert made.plan(made.task(P62)).reason == "remote"  # 1000 - 58 * 16 = 72 tokens
    made.store("d1", P62[58:59])
    found = made.plan(made.task(P62))
    assert (found.reason, found.prefill, found.prompt_tokens) == ("short_suffix", None, 56)


def test_blocks_that_may_still_be_on_their_way_have_a_prefill_worker_named() -> None:
    """Decode looks into its own index: what has landed is used, what has not is fetched, nothing is computed twice."""
    made = rig("d1", "p1", "p2")
    task = made.task(P62)
    first = made.start(task)
    assert keys(first.plan) == ("d1", "p1")
    sibling = made.plan(task)
    assert (keys(sibling), sibling.reason, sibling.prompt_tokens) == (("d1", "p1"), "landing", 8)
    first.release()
    assert made.plan(task).prompt_tokens == 1000, "what failed promises nothing"


def test_the_last_token_is_always_computed() -> None:
    made = rig("u1")
    made.store("u1", P62)
    assert made.plan(made.task(P62, tail_tokens=0)).prompt_tokens == 1


def test_without_prefill_workers_decode_computes() -> None:
    assert rig("d1").plan(rig("d1").task(P62)).reason == "no_prefill_worker"
    made = rig("d1", "p1")
    assert made.plan(made.task(P62), Exclusions(prefill={("p1", 1)})).reason == "no_prefill_worker"


def test_a_prefix_counts_against_the_queue() -> None:
    made = rig("u1", "u2")
    made.store("u2", P62[:40])  # 640 tokens
    task = made.task(P62)
    assert keys(made.plan(task)) == ("u2", None)
    made.planner.load.charge(("u2", 1), 100.0, prompt_tokens=600)
    assert keys(made.plan(task)) == ("u2", None)
    made.planner.load.charge(("u2", 1), 100.0, prompt_tokens=500)
    assert keys(made.plan(task)) == ("u1", None)


def test_ties_go_to_the_least_recently_used() -> None:
    made = rig("u1", "u2", "u3")
    assert [made.run(made.task(chain(f"own{n}", 10))) for n in range(6)] == ["u1", "u2", "u3"] * 2


def test_a_short_match_earns_nothing() -> None:
    """The first block of a chat template is the same in all prompts: it must not pin them to one worker."""
    made = rig("u1", "u2")
    made.run(made.task(chain("a", 10)))
    made.store("u1", chain("a", 10))
    made.planner.load.charge(("u2", 1), 100.0).release()
    assert made.run(made.task(chain("b", 10, head=chain("a", 1)))) == "u1"
    assert made.run(made.task(chain("c", 10, head=chain("a", 1)))) == "u2"


def test_the_decode_worker_of_a_failed_handoff_is_kept() -> None:
    made = rig("d1", "d2", "p1", "p2")
    made.planner.load.charge(("d2", 1), 100.0, output_tokens=500)
    excluded = Exclusions(prefill={("p1", 1)}, keep_decode=("d2", 1))
    assert keys(made.plan(made.task(P62), excluded)) == ("d2", "p2")
    assert keys(rig("d1").plan(made.task(P62), excluded)) == ("d1", None)


def test_a_unified_worker_prefills_itself_unless_another_is_cheaper() -> None:
    made = rig("u1", "u2")
    assert made.plan(made.task(P62)).reason == "decode_is_best"
    made = rig("u1", "p1")
    made.store("p1", P62[:30])
    assert keys(made.plan(made.task(P62))) == ("u1", "p1")


def test_sources_hold_more_than_the_one_who_computes() -> None:
    made = rig("d1", "d2", "p1", "p2")
    for name, num_blocks in (("d1", 3), ("d2", 9), ("p1", 3), ("p2", 7)):
        made.store(name, P62[:num_blocks])
    for name in ("d2", "p2"):
        made.planner.load.charge((name, 1), 100.0, prompt_tokens=5000)
    found = made.plan(made.task(P62), Exclusions(decode={("d2", 1)}))
    assert keys(found) == ("d1", "p1")
    assert [(source.worker.key[0], source.num_blocks) for source in found.sources] == [("d2", 9), ("p2", 7)]
    assert rig("d1", max_sources=0).plan(made.task(P62)).sources == ()


def test_a_hot_prefix_is_fetched_when_its_owner_is_busy() -> None:
    made = rig("u1", "u2")
    made.store("u1", P62)
    task = made.task(P62)
    moving = type(task)(P62, task.num_tokens, 16, 100, block_bytes=16_000)
    made.planner.load.charge(("u1", 1), 100.0, prompt_tokens=500)
    assert keys(made.plan(task)) == ("u1", None), "computing all of it takes longer than waiting"
    found = made.plan(moving)
    assert (keys(found), found.prompt_tokens) == (("u2", None), 8)
    assert [source.worker.key[0] for source in found.sources] == ["u1"]


def test_a_session_stays_where_it_was_if_all_else_is_equal() -> None:
    made = rig("u1", "u2", "u3")
    assert made.run(made.task(chain("x", 10), session_id="s")) == "u1"
    assert made.run(made.task(chain("y", 10))) == "u2"
    assert made.run(made.task(chain("z", 10), session_id="s")) == "u1"
    made.planner.load.charge(("u1", 1), 100.0, prompt_tokens=5000)
    assert made.run(made.task(chain("w", 10), session_id="s")) == "u3", "a hint only"


@pytest.mark.parametrize("policy", ["round_robin", "random", "least_loaded"])
def test_plain_policies_do_not_look_at_prefixes(policy: str) -> None:
    made = rig("u1", "u2", "u3", "u4", policy=policy)
    made.store("u1", P62)
    used = Counter(made.run(made.task(P62)) for _ in range(40))
    assert len(used) == 4
    assert policy == "random" or set(used.values()) == {10}
    made.planner.load.charge(("u1", 1), 100.0, output_tokens=50)
    chosen = {made.run(made.task(P62)) for _ in range(12)}
    assert ("u1" in chosen) == (policy != "least_loaded")


KEYS = st.sampled_from(["d1", "d2", "p1", "p2", "u1", "u2"])


@given(
    known=st.dictionaries(KEYS, st.tuples(st.integers(0, 3000), st.integers(0, 62)), max_size=6),
    out_decode=st.sets(KEYS),
    out_prefill=st.sets(KEYS),
    tail_tokens=st.integers(1, 40),
    policy=st.sampled_from(["prefix", "random", "round_robin", "least_loaded"]),
)
def test_every_plan_keeps_the_rules(
    known: dict[str, tuple[int, int]], out_decode: set[str], out_prefill: set[str], tail_tokens: int, policy: str
) -> None:
    made = rig(*known, policy=policy)
    for name, (queued, num_blocks) in known.items():
        made.store(name, P62[:num_blocks])
        made.planner.load.charge((name, 1), 100.0, prompt_tokens=queued)
    task = made.task(P62, tail_tokens)
    excluded = Exclusions({(name, 1) for name in out_decode}, {(name, 1) for name in out_prefill})
    found = made.planner.plan(task, made.workers, excluded, made.now_s)
    able = [name for name in known if name[0] in "du" and name not in out_decode]
    if found is None:
        assert not able
        return
    decode, prefill = keys(found)
    held = {name: min(num_blocks * 16, task.num_tokens - 1) for name, (_, num_blocks) in known.items()}
    assert decode in able
    if prefill:
        assert prefill[0] in "pu" and prefill not in out_prefill | {decode}
        assert task.num_tokens - held[decode] >= 64
    computing = prefill or decode
    credited = held[computing] if held[computing] >= 64 else 0
    assert (found.prompt_tokens, found.output_tokens) == (task.num_tokens - credited, 100)
    assert len(found.sources) <= 2
    for source in found.sources:
        assert source.num_blocks > known[computing][1] and source.worker.key[0] != computing


def test_of_two_equals_the_one_that_holds_the_prompt_is_taken() -> None:
    """Fetching is so quick here that it costs next to nothing: it is spared nevertheless."""
    made = rig("u1", "u2")
    made.store("u2", P62)
    for _ in range(3):
        assert keys(made.plan(made.task(P62, block_bytes=16))) == ("u2", None)
        made.planner.load.charge(("u2", 1), 100.0).release()
