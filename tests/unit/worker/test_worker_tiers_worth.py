"""What a second tier saves, counted in prompt tokens that are computed: conversations in turns, in random order.

24 conversations of six turns, 16 blocks each at their ends; `L1` has room for a quarter of them.
"""

from __future__ import annotations

import random

import pytest

from common.cache.config import TierPolicies, WritePolicy
from tests.support.worker_rig import BLOCK_SIZE, Listener, Rig, make_request, running_core

CONVERSATIONS, TURNS, FIRST_TOKENS, TURN_TOKENS, OUTPUT_TOKENS = 24, 6, 24, 8, 4
ALL_BLOCKS = CONVERSATIONS * (FIRST_TOKENS + (TURNS - 1) * TURN_TOKENS) // BLOCK_SIZE
L1 = ALL_BLOCKS // 4


async def converse(rig: Rig) -> int:
    """Have the conversations; returns how many prompt tokens were computed."""
    draw = random.Random(5)
    computed = 0
    histories = [[draw.randrange(250) for _ in range(FIRST_TOKENS)] for _ in range(CONVERSATIONS)]
    for turn in range(TURNS):
        for number in draw.sample(range(CONVERSATIONS), CONVERSATIONS):
            history, listener = histories[number], Listener()
            request = make_request(f"{number}-{turn}", list(history), max_tokens=OUTPUT_TOKENS)
            rig.core.add(request, listener)
            await listener.wait()
            computed += len(history) - sum(request.num_cached_tokens.values())
            history += [*listener.tokens, *(draw.randrange(250) for _ in range(TURN_TOKENS - OUTPUT_TOKENS))]
            await rig.core.tiers.drained()
    return computed


async def computed(l1_blocks: int, l2_blocks: int = 0, write: WritePolicy = WritePolicy.WRITE_THROUGH) -> int:
    """Prompt tokens that a worker with such tiers computes."""
    async with running_core(l1_blocks, l2_blocks=l2_blocks, policies=TierPolicies(write)) as rig:
        return await converse(rig)


@pytest.mark.parametrize("write", [WritePolicy.WRITE_THROUGH, WritePolicy.WRITE_BACK])
async def test_l2_of_four_times_l1_saves_as_much_as_one_l1_of_all(write: WritePolicy) -> None:
    small, both, one = await computed(L1), await computed(L1, 4 * L1, write), await computed(5 * L1)
    assert both < 0.3 * small
    assert both < 1.05 * one


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("quarters", [10, 16], ids=["too few for all", "just enough for all"])
async def test_under_write_back_a_split_is_nearly_as_good_as_one_l1_of_the_same_bytes(
    quarters: int, parts: int
) -> None:
    total = quarters * L1 // 4
    split = await computed(total // parts, total - total // parts, WritePolicy.WRITE_BACK)
    assert split < 1.15 * await computed(total)


async def test_under_write_through_a_split_keeps_most_blocks_twice() -> None:
    """Shows that the ratios above tell policies apart."""
    total = 10 * L1 // 4
    assert await computed(total // 2, total // 2) > 1.3 * await computed(total)
