"""Exact on real weights: a smaller matrix than `test_exact.py`'s, with the layer shapes and depth of SmolLM2."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from tests.support.exact_fleet import ExactFleet, FleetProcesses, start_fleet
from tests.support.oracle import Ask
from tests.support.prompts import varied_prompts

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
SMOLLM2 = Path(__file__).parents[2] / "models" / "SmolLM2-135M-Instruct"
BLOCK = 16
NUM_OUTPUT = 8
SMALL_POOL_TOKENS = 320


@pytest.fixture(scope="module", params=["bf16", "fp32"])
def processes(request: pytest.FixtureRequest) -> Generator[FleetProcesses, None, None]:
    flags = {"dtype": request.param, "max_total_tokens": "8000", "growth_reserve_blocks": "0"}
    with start_fleet(SMOLLM2, small_pool_tokens=SMALL_POOL_TOKENS, **flags) as fleet:
        yield fleet


@pytest.fixture
async def fleet(processes: FleetProcesses) -> AsyncGenerator[ExactFleet, None]:
    async with ExactFleet.connect(processes) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def prompts() -> list[tuple[int, ...]]:
    """Every fourth of the varied ones, and the two long ones at the end."""
    found = [tuple(prompt) for prompt in varied_prompts(SMOLLM2)]
    return [*found[:36:4], found[37], found[38]]


@pytest.mark.parametrize(("chunk", "way"), [(16, "pd"), (64, "local"), (512, "pd")])
async def test_chunks_hits_and_branches(
    fleet: ExactFleet, prompts: list[tuple[int, ...]], chunk: int, way: str
) -> None:
    story, salt = prompts[-1][:530], fleet.salt()
    async with fleet.chunked(chunk):
        for prompt, num_cached in ((story, 0), (story, 528), ((*story[:473], *prompts[3]), 464)):
            run = await fleet.check(fleet.decode, Ask(prompt, NUM_OUTPUT, salt, prefill=fleet.by(way)))
            assert run.num_cached == num_cached


@pytest.mark.parametrize("batch", [2, 8, 32])
async def test_beside_noise(fleet: ExactFleet, prompts: list[tuple[int, ...]], batch: int) -> None:
    noise = [Ask(prompts[i % 9], 200, fleet.salt(), temperature=1.0, choice=i) for i in range(batch - 1)]
    asks = [Ask(prompts[9], NUM_OUTPUT, fleet.salt(), prefill=fleet.by(way)) for way in ("local", "pd")]
    await fleet.cold(asks[0])
    async with fleet.decode.noise(noise):
        for ask in asks:
            await fleet.check(fleet.decode, ask)


async def test_preempted_resumed_and_moved(fleet: ExactFleet, prompts: list[tuple[int, ...]]) -> None:
    story = prompts[-1]
    asks = [Ask(story[start : start + 60], 44) for start in range(0, 240, 60)]
    cold = [await fleet.cold(ask) for ask in asks]
    runs = await asyncio.gather(*(fleet.small.run(ask) for ask in asks))
    assert sum(run.usage.num_preemptions for run in runs) > 0, "the pool was not small enough to preempt"
    fleet.compare(zip(asks, runs, cold, strict=True))
    for way in ("local", "pd"):
        moved = Ask(asks[0].prompt, 44, fleet.salt(), tuple(cold[0].token_ids[:35]), fleet.by(way))
        await fleet.check(fleet.decode, moved)


async def test_blocks_from_decode_and_from_a_peer(fleet: ExactFleet, prompts: list[tuple[int, ...]]) -> None:
    salt, text = fleet.salt(), prompts[9]
    first = await fleet.check(fleet.decode, Ask(text, 20, salt, prefill=fleet.by("pd")))
    known = (*text, *first.token_ids)
    follow_up = Ask((*known, *prompts[7], *prompts[8]), NUM_OUTPUT, salt, prefill=fleet.by("pd"))
    assert (await fleet.check(fleet.decode, follow_up)).usage.cached_tokens.peer > 0
    source = (fleet.decode.worker_id, fleet.decode.address, (len(known) - 1) // BLOCK)
    peer = Ask((*known, *prompts[5]), NUM_OUTPUT, salt, sources=(source,))
    assert (await fleet.check(fleet.small, peer)).usage.cached_tokens.peer == (len(known) - 1) // BLOCK * BLOCK
