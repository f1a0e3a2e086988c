"""The scheduler through long busy days: random walks with hundreds of requests, tiny pools, and everything going wrong.

The state machine finds short bad stories; these walks get to states that need a long one, such as preempted requests
that come back several times beside landing ones. The counts at the end make sure that they get there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from common.sched.config import Policy
from common.sched.params import SamplingParams
from common.sched.request import Request
from tests.support.sched_world import World

NUM_EVENTS = 600


def random_config(dice: Random) -> dict[str, Any]:
    """Small limits, so that each of them is met."""
    return {
        "max_num_seqs": dice.randint(1, 6),
        "max_batch_tokens": dice.randint(6, 40),
        "chunked_prefill_size": dice.choice([1, 3, 16, -1]),
        "shared_prefill_min_tokens": dice.choice([1, 4, 32]),
        "policy": dice.choice(list(Policy)),
        "growth_reserve_blocks": dice.choice([0, 0, 1, 3]),
        "max_model_len": dice.choice([64, 1000]),
        "max_landing_blocks": dice.choice([2, 1000]),
        "high_water_ratio": dice.choice([0.5, 1.0, 1.0]),
    }


def random_arrival(dice: Random) -> tuple[list[int], SamplingParams, int, int, bool]:
    """A prompt that shares its head with many others, and what is wanted of it."""
    head = dice.choice([[2] * 17, [3] * dice.randint(1, 30), [0, 1] * 6, []])
    prompt = head + [dice.randint(0, 1) for _ in range(dice.randint(1, 8))]
    params = SamplingParams(
        max_tokens=dice.randint(1, 24),
        min_tokens=dice.randint(0, 3),
        stop_token_ids=dice.choice([(), (), (7,), (1, 2)]),
        prompt_logprobs=dice.choice([None, None, None, 1]),
    )
    return prompt, params, dice.randint(0, 2), dice.choice([0, 0, 3]), dice.random() < 0.2


def random_event(world: World, dice: Random) -> None:
    """One thing happens; most of the time it is a step."""
    which = dice.randrange(100)
    events: list[tuple[int, Callable[[], None]]] = [
        (14, lambda: world.arrive(*random_arrival(dice))),
        (9, lambda: world.reserve(*random_arrival(dice))),
        (12, lambda: world.land(which, dice.randint(1, 5))),
        (9, lambda: world.resume(which, dice.random() < 0.5)),
        (20, world.schedule),
        (20, lambda: world.update(dice.random() < 0.02)),
        (10, lambda: world.steps(dice.randint(1, 5))),
        (2, lambda: world.abort(which)),
        (1, lambda: world.finish(which)),
        (4, lambda: world.release(which)),
        (3, lambda: world.lend(which)),
        (4, world.give_back),
        (1, world.flush),
        (1, lambda: world.configure(random_config(dice))),
    ]
    weights, actions = zip(*events, strict=True)
    dice.choices(actions, weights)[0]()


def undamaged(world: World) -> None:
    """Leave the world as it is."""


def walk(seed: int, block_size: int, damage: Callable[[World], None] = undamaged) -> Counter[str]:
    """Live through one day; returns how often the interesting things happened."""
    dice = Random(seed)
    world = World(block_size, dice.randint(40, 120), random_config(dice))
    damage(world)
    for _ in range(NUM_EVENTS):
        random_event(world, dice)
        world.check()
    counts = Counter[str](preempted=world.scheduler.num_preemptions, evicted=world.cache.num_evictions)
    world.close()
    counts.update(str(reason) for reason in world.ended.values())
    for request in world.all.values():
        counts["requests"] += 1
        counts["hit"] += request.num_cached_tokens.get("l1", 0) > 0
        counts["preempted twice"] += request.num_preemptions > 1
        counts["preempted after landing"] += request.num_preemptions > 0 and request.request_id in world.elsewhere
        counts["prompt logprobs preempted"] += request.num_preemptions > 0 and request.num_prompt_logprobs > 0
    return counts


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_every_request_ends_right_and_nothing_leaks(block_size: int) -> None:
    counts = Counter[str]()
    for seed in range(12):
        counts += walk(seed, block_size)
    common = ("requests", "stop", "length", "abort", "hit", "preempted", "evicted")
    assert all(counts[name] >= 10 for name in common), counts
    rare = ("error", "preempted twice", "preempted after landing", "prompt logprobs preempted")
    assert all(counts[name] for name in rare), counts


def test_the_same_day_twice_is_the_same() -> None:
    assert walk(1, 4) == walk(1, 4)


def index_too_early(world: World) -> None:
    """A block is indexed before all of it is computed."""
    tables = world.scheduler._tables
    index = tables.index

    def index_one_more(request: Request, num_tokens: int) -> None:
        num_blocks = num_tokens // world.block_size + 1
        index(request, min(len(request.chain.hashes), len(request.block_table), num_blocks) * world.block_size)

    tables.index = index_one_more  # type: ignore[method-assign]


def keep_the_table(world: World) -> None:
    """A request keeps the table of blocks that it gave back."""
    tables = world.scheduler._tables
    close = tables.close

    def close_in_part(request: Request) -> None:
        table = list(request.block_table)
        close(request)
        request.block_table = table

    tables.close = close_in_part  # type: ignore[method-assign]


@pytest.mark.parametrize("damage", [index_too_early, keep_the_table])
def test_a_day_goes_red(damage: Callable[[World], None]) -> None:
    """Negative controls: an oracle that cannot fail proves nothing."""
    with pytest.raises(AssertionError):
        for seed in range(12):
            walk(seed, 4, damage)
