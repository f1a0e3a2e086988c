"""Exact: however a request is served, the logits of every step are those of a cold run of it alone, bit by bit.

Three real worker processes (one prefill, two decode, the second with a small pool) serve a tiny random model, once per
dtype; what is seen is what any client of their public gRPC sees. `tests/e2e/test_exact_smollm2.py` does the same with
real weights, `tests/integration/test_exact_controls.py` shows that the oracle goes red.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator

import pytest

from tests.support.exact_fleet import ExactFleet, FleetProcesses, start_fleet
from tests.support.oracle import Ask, Run, WorkerClient
from tests.support.tiny_model import tiny_model_dir
from tests.support.tiny_vocab import tiny_vocab

pytestmark = pytest.mark.e2e
BLOCK = 16
NUM_OUTPUT = 24
LENGTHS = (3, 16, 17, 63, 130)
LONG = 600
VOCAB = len(tiny_vocab().tokens)
WAYS = ("local", "pd")
SMALL_POOL_TOKENS = 640


def tokens(length: int, kind: int = 0) -> tuple[int, ...]:
    """A prompt; equal kinds share their heads."""
    return tuple(2 + (i * i * 31 + i * 7 + kind * (i + 101)) % (VOCAB - 2) for i in range(length))


def full_blocks(num_tokens: int) -> int:
    """Tokens in the full blocks that a prompt of `num_tokens` can find: its last token is always computed."""
    return (num_tokens - 1) // BLOCK * BLOCK


@pytest.fixture(scope="module", params=[("bf16", "bf16"), ("fp32", "fp32"), ("fp32", "int8")], ids="-kv-".join)
def processes(request: pytest.FixtureRequest) -> Generator[FleetProcesses, None, None]:
    dtype, kv = request.param
    flags = {"dtype": dtype, "kv_cache_dtype": kv, "max_total_tokens": "150000"}
    with start_fleet(tiny_model_dir(), small_pool_tokens=SMALL_POOL_TOKENS, **flags) as fleet:
        yield fleet


@pytest.fixture
async def fleet(processes: FleetProcesses) -> AsyncGenerator[ExactFleet, None]:
    async with ExactFleet.connect(processes) as fleet:
        yield fleet


def test_the_oracle_is_not_blind(processes: FleetProcesses) -> None:
    async def digests() -> list[list[bytes]]:
        async with ExactFleet.connect(processes) as fleet:
            prompts = [tokens(40), tokens(40, 1), (*tokens(40)[:39], 5), tokens(41)]
            return [(await fleet.cold(Ask(prompt, NUM_OUTPUT))).digests for prompt in prompts]

    rows = [row for run in asyncio.run(digests()) for row in run]
    assert len(rows) == 4 * NUM_OUTPUT
    assert len(set(rows)) == len(rows)


@pytest.mark.parametrize("way", WAYS)
async def test_cold_anywhere(fleet: ExactFleet, way: str) -> None:
    for length in (*LENGTHS, LONG):
        for worker in (fleet.decode, fleet.small):
            run = await fleet.check(worker, Ask(tokens(length), NUM_OUTPUT, fleet.salt(), prefill=fleet.by(way)))
            assert run.num_cached == 0
            moved = -(-length // BLOCK) * await worker.block_bytes() if way == "pd" else 0
            assert run.usage.transfer_bytes == moved


@pytest.mark.parametrize("way", WAYS)
async def test_radix_hit(fleet: ExactFleet, way: str) -> None:
    for length in (*LENGTHS, LONG):
        ask = Ask(tokens(length), NUM_OUTPUT, fleet.salt(), prefill=fleet.by(way))
        await fleet.check(fleet.decode, ask)
        hit = await fleet.check(fleet.decode, ask)
        assert hit.num_cached == full_blocks(length)


@pytest.mark.parametrize("way", WAYS)
async def test_branch(fleet: ExactFleet, way: str) -> None:
    salt, trunk = fleet.salt(), tokens(150)
    await fleet.check(fleet.decode, Ask(trunk, NUM_OUTPUT, salt, prefill=fleet.by(way)))
    for shared in (16, 33, 64, 95, 128, 149):
        ask = Ask((*trunk[:shared], *tokens(30, shared)), NUM_OUTPUT, salt, prefill=fleet.by(way))
        branch = await fleet.check(fleet.decode, ask)
        assert branch.num_cached == shared // BLOCK * BLOCK
    again = await fleet.check(fleet.decode, Ask(trunk, NUM_OUTPUT, salt, prefill=fleet.by(way)))
    assert again.num_cached == full_blocks(150)


@pytest.mark.parametrize("way", WAYS)
async def test_partial_block_and_conversation(fleet: ExactFleet, way: str) -> None:
    for length in (30, 31, 32, 33):
        salt, prompt = fleet.salt(), tokens(length)
        num_known = 0
        for turn in range(3):
            ask = Ask(prompt, NUM_OUTPUT, salt, prefill=fleet.by(way))
            run = await fleet.check(fleet.decode, ask)
            assert run.num_cached >= full_blocks(num_known)
            num_known = len(prompt) + NUM_OUTPUT
            prompt = (*prompt, *run.token_ids, *tokens(5 + turn, turn))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("chunk", [16, 64, 512, -1])
async def test_chunks(fleet: ExactFleet, chunk: int, way: str) -> None:
    async with fleet.chunked(chunk):
        for length in (63, 130, LONG):
            ask = Ask(tokens(length), NUM_OUTPUT, fleet.salt(), prefill=fleet.by(way))
            assert (await fleet.check(fleet.decode, ask)).num_cached == 0
            await fleet.check(
                fleet.decode, Ask((*ask.prompt, *tokens(77, 5)), NUM_OUTPUT, ask.salt, prefill=ask.prefill)
            )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("batch", [1, 2, 8, 32])
async def test_beside_noise(fleet: ExactFleet, batch: int, way: str) -> None:
    noise = [
        Ask(tokens(5 + 9 * i, i + 1), 3000, fleet.salt(), prefill=fleet.by(way if i % 2 else "local"), temperature=1.3)
        for i in range(batch - 1)
    ]
    salt = fleet.salt()
    await fleet.cold(Ask(tokens(130), NUM_OUTPUT))
    async with fleet.decode.noise(noise):
        assert (await fleet.decode.stats()).num_running == batch - 1
        for _ in range(2):
            await fleet.check(fleet.decode, Ask(tokens(130), NUM_OUTPUT, salt, prefill=fleet.by(way)))


@pytest.mark.parametrize("way", WAYS)
async def test_all_at_once(fleet: ExactFleet, way: str) -> None:
    asks = [Ask(tokens(10 + 23 * i, i % 4), NUM_OUTPUT, prefill=fleet.by(way)) for i in range(24)]
    cold = [await fleet.cold(ask) for ask in asks]
    salted = [
        Ask(a.prompt, a.max_tokens, fleet.salt() if i % 3 else "shared", prefill=a.prefill) for i, a in enumerate(asks)
    ]
    async with fleet.chunked(64):
        runs = await asyncio.gather(*(fleet.decode.run(ask) for ask in salted))
    fleet.compare(zip(salted, runs, cold, strict=True))


@pytest.mark.parametrize("way", WAYS)
async def test_preempted_and_resumed(fleet: ExactFleet, way: str) -> None:
    asks = [Ask(tokens(40 + i, i), 110, prefill=fleet.by(way)) for i in range(8)]
    cold = [await fleet.cold(ask) for ask in asks]
    runs = await asyncio.gather(*(patient(fleet.small, ask) for ask in asks))
    assert sum(run.usage.num_preemptions for run in runs) > 0, "the pool was not small enough to preempt"
    fleet.compare(zip(asks, runs, cold, strict=True))


async def patient(worker: WorkerClient, ask: Ask) -> Run:
    """Run a request, trying again while the worker has no room."""
    while True:
        run = await worker.run_unless_full(ask)
        if run is not None:
            return run
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("way", WAYS)
async def test_resumed_elsewhere(fleet: ExactFleet, way: str) -> None:
    for length in (16, 130):
        prompt, salt = tokens(length), fleet.salt()
        first = await fleet.check(fleet.decode, Ask(prompt, NUM_OUTPUT, salt, prefill=fleet.by(way)))
        for known in (1, 7, 16, NUM_OUTPUT - 1):
            ask = Ask(prompt, NUM_OUTPUT, fleet.salt(), tuple(first.token_ids[:known]), fleet.by(way))
            run = await fleet.check(fleet.small, ask)
            assert (run.first, len(run.token_ids)) == (known, NUM_OUTPUT - known)
        back = Ask(prompt, NUM_OUTPUT, salt, tuple(first.token_ids[:9]), fleet.by(way))
        assert (await fleet.check(fleet.decode, back)).num_cached >= full_blocks(length)


async def test_prefill_fetches_what_decode_holds(fleet: ExactFleet) -> None:
    salt = fleet.salt()
    first = await fleet.check(fleet.decode, Ask(tokens(100), 40, salt, prefill=fleet.prefill.address))
    known = (*tokens(100), *first.token_ids)
    follow_up = Ask((*known, *tokens(90, 3)), NUM_OUTPUT, salt, prefill=fleet.prefill.address)
    run = await fleet.check(fleet.decode, follow_up)
    cached = run.usage.cached_tokens
    assert cached.peer > 0, "nothing was fetched from decode"
    assert cached.l1 + cached.peer == full_blocks(len(known))


@pytest.mark.parametrize("way", WAYS)
async def test_prefix_from_a_peer(fleet: ExactFleet, way: str) -> None:
    prompt, salt = tokens(215), fleet.salt()
    await fleet.check(fleet.decode, Ask(prompt, NUM_OUTPUT, salt))
    source = (fleet.decode.worker_id, fleet.decode.address, full_blocks(215) // BLOCK)
    ask = Ask(prompt, NUM_OUTPUT, salt, prefill=fleet.by(way), sources=(source,))
    run = await fleet.check(fleet.small, ask)
    assert run.usage.cached_tokens.peer == full_blocks(215)


async def test_flushed_is_cold(fleet: ExactFleet) -> None:
    ask = Ask(tokens(130), NUM_OUTPUT, fleet.salt())
    await fleet.check(fleet.decode, ask)
    assert await fleet.decode.flush() > 0
    assert (await fleet.check(fleet.decode, ask)).num_cached == 0


@pytest.mark.parametrize("choice", [0, 3])
async def test_sampled_tokens_are_the_same_too(fleet: ExactFleet, choice: int) -> None:
    ask = Ask(tokens(90), NUM_OUTPUT, temperature=1.1, seed=12345, choice=choice)
    cold = await fleet.cold(ask)
    runs: list[Run] = []
    for prefill in ("", fleet.prefill.address):
        for output in ((), tuple(cold.token_ids[:10])):
            asked = Ask(ask.prompt, NUM_OUTPUT, fleet.salt(), output, prefill, (), 1.1, 12345, choice)
            runs.append(await fleet.check(fleet.small, asked))
    greedy = await fleet.cold(Ask(ask.prompt, NUM_OUTPUT))
    assert cold.token_ids != greedy.token_ids
    assert all(run.token_ids == cold.token_ids[run.first :] for run in runs)
