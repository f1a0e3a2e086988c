"""What the policy does to a load, in virtual time: even where it should be, away from the slow, quick with prefixes."""

from __future__ import annotations

from collections import Counter
from random import Random
from statistics import median

import pytest

from services.router.planner import PlannerConfig
from tests.support.planner_rig import PlannerRig, chain, worker
from tests.support.planner_world import PlannerWorld, Served


def world(*names: str, policy: str = "prefix", **fields: object) -> PlannerWorld:
    config = PlannerConfig(policy=policy, remote_prefill_min_tokens=1 << 30)
    return PlannerWorld(PlannerRig([worker(name) for name in names], config), **fields)  # type: ignore[arg-type]


def shares(served: list[Served]) -> list[float]:
    counts = Counter(one.worker for one in served)
    return sorted(count / len(served) for count in counts.values())


@pytest.mark.parametrize("num_blocks", [3, 40])
def test_distinct_prompts_one_by_one_split_over_idle_workers(num_blocks: int) -> None:
    """Their first blocks are the same (a chat template), their rest is not."""
    template = chain("template", 2)
    prompts = [chain(f"own{number}", num_blocks, head=template) for number in range(40)]
    served = world("u1", "u2").run(prompts, num_clients=1)
    assert shares(served)[0] >= 0.35


def test_one_system_prompt_does_not_pin_everybody() -> None:
    system = chain("system", 125)
    prompts = [chain(f"tail{number}", 129, head=system) for number in range(320)]
    made = world("u1", "u2")
    made.run(prompts[:1], num_clients=1)
    made.served.clear()
    low, high = shares(made.run(prompts, num_clients=32))
    assert high / low <= 1.5


@pytest.mark.parametrize("num_clients", [1, 4])
def test_a_slow_worker_loses_traffic(num_clients: int) -> None:
    prompts = [chain(f"own{number}", 40) for number in range(40)]
    served = world("u1", "u2", slow={"u1": 4.0}).run(prompts, num_clients)
    assert sum(one.worker == "u2" for one in served) >= 0.6 * len(served)


def test_a_worker_that_stopped_answering_gets_nothing_more() -> None:
    """Before anybody calls it dead: its first request is late, and later ones would be later."""
    made = world("u1", "u2", slow={"u1": 1e6})
    served = made.run([chain(f"own{number}", 40) for number in range(40)], num_clients=8)
    assert sum(one.worker == "u1" for one in served) <= 5


def test_prefixes_are_worth_more_than_twice_the_time() -> None:
    """Documents of 2,000 tokens, each asked about many times in any order, over four workers."""
    documents = [chain(f"document{number}", 125) for number in range(100)]
    random = Random(5)
    asked = [random.randrange(100) for _ in range(400)]
    prompts = [chain(f"question{turn}", 129, head=documents[which]) for turn, which in enumerate(asked)]
    times = {}
    for policy in ("prefix", "round_robin"):
        served = world("u1", "u2", "u3", "u4", policy=policy).run(prompts, num_clients=8)
        times[policy] = median(one.first_token_s for one in served)
        assert policy != "prefix" or shares(served)[-1] <= 2 * shares(served)[0], "and nobody is left idle"
    assert times["round_robin"] >= 2 * times["prefix"], times


def test_a_new_worker_gets_its_part_of_a_hot_prefix() -> None:
    """It is fetched from a busy owner rather than computed."""
    system = chain("system", 125)
    made = world("u1", "u2", "u3", fetch_token_s=0.00005)
    prompts = [chain(f"tail{number}", 129, head=system) for number in range(200)]
    absent = made.rig.workers.pop()
    made.run(prompts, num_clients=16)
    made.rig.workers.append(absent)
    made.served.clear()
    served = made.run([chain(f"other{number}", 129, head=system) for number in range(200)], num_clients=16)
    counts = Counter(one.worker for one in served)
    assert counts["u3"] >= 0.25 * len(prompts)
    assert max(one.first_token_s for one in served) < 1.0, "nobody computed all of it again"
