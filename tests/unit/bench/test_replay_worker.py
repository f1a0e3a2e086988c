"""A simulated worker: exact times of hand-computed steps, batches, chunks, room."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from bench.replay.job import Emission, Job, WorkerShape
from bench.replay.times import ServiceTimes
from bench.replay.worker import SimWorker

TIMES = ServiceTimes(
    prefill_base_ms=10,
    prefill_token_ms=1,
    prefill_token2_ms=0,
    decode_base_ms=2,
    decode_fill_ms=0,
    decode_fill2_ms=0,
)
"""A step: 10 ms + 1 ms a prompt token, + 2 ms if anybody decodes."""


def shape(num_blocks: int = 100, max_num_seqs: int = 8, max_step_tokens: int = 50, merged: int = 16) -> WorkerShape:
    return WorkerShape(
        num_blocks=num_blocks,
        block_size=10,
        max_num_seqs=max_num_seqs,
        max_step_tokens=max_step_tokens,
        max_merged_steps=merged,
        times=TIMES,
    )


def job(index: int, num_prompt: int, num_to_generate: int, path: str = "") -> Job:
    """`path`: a letter per full block; the blocks' names tell the path."""
    hashes = [path[: end + 1].encode() for end in range(num_prompt // 10)] if path else []
    hashes = hashes or [f"{index}/{end}".encode() for end in range(num_prompt // 10)]
    return Job(index, hashes, num_prompt, num_prompt, num_to_generate)


def run(worker: SimWorker, now_s: float = 0.0) -> list[tuple[int, list[int]]]:
    """Step until idle; [(end in ms, indices of who got a token)]."""
    steps = []
    while (end_s := worker.start(now_s)) is not None:
        now_s = end_s
        steps.append((round(1000 * end_s), [one.job.index for one in worker.finish()]))
    return steps


def test_a_prompt_in_one_step_then_a_token_a_step() -> None:
    worker = SimWorker(shape(merged=1))
    worker.enqueue(job(0, 25, 3))
    assert run(worker) == [(35, [0]), (37, [0]), (39, [0])]
    assert worker.cache.num_held == 0
    assert worker.num_computed_tokens == 25 + 2


def test_a_long_prompt_is_computed_in_chunks() -> None:
    worker = SimWorker(shape(max_step_tokens=20))
    worker.enqueue(job(0, 45, 1))
    assert run(worker) == [(30, []), (60, []), (75, [0])]


def test_decoding_goes_first_and_the_step_takes_both_times() -> None:
    worker = SimWorker(shape(max_step_tokens=20, merged=1))
    worker.enqueue(job(0, 20, 3))
    assert worker.start(0.0) == pytest.approx(0.030)
    worker.enqueue(job(1, 30, 1))
    assert [one.job.index for one in worker.finish()] == [0]
    # 19 prompt tokens beside one decoding request, then 11 more beside it
    assert run(worker, 0.030) == [(61, [0]), (84, [0, 1])]


def test_a_hit_is_not_computed_and_the_last_token_always_is() -> None:
    worker = SimWorker(shape())
    worker.enqueue(job(0, 30, 1, "abc"))
    assert run(worker) == [(40, [0])]
    again, longer = job(1, 30, 1, "abc"), job(2, 40, 1, "abcd")
    worker.enqueue(again)
    assert run(worker) == [(20, [1])]
    worker.enqueue(longer)
    assert run(worker) == [(20, [2])]
    assert (again.num_cached, longer.num_cached) == (20, 30)


@pytest.mark.parametrize(("shared", "cached", "end"), [(False, 0, 60), (True, 20, 40)])
def test_when_blocks_of_the_same_step_are_found(shared: bool, cached: int, end: int) -> None:
    one = shape()
    worker = SimWorker(WorkerShape(one.num_blocks, 10, max_step_tokens=50, share_when_scheduled=shared, times=TIMES))
    second = job(1, 25, 1, "ab")
    worker.enqueue(job(0, 25, 1, "ab"))
    worker.enqueue(second)
    assert run(worker) == [(end, [0, 1])]
    assert second.num_cached == cached
    assert worker.cache.num_cached == 2
    assert worker.cache.num_held == 0


def test_the_batch_is_bounded() -> None:
    worker = SimWorker(shape(max_num_seqs=1))
    worker.enqueue(job(0, 10, 2))
    worker.enqueue(job(1, 10, 1))
    assert run(worker) == [(20, [0]), (22, [0]), (42, [1])]


def test_who_does_not_fit_waits_and_nobody_overtakes() -> None:
    worker = SimWorker(shape(num_blocks=5, merged=1))
    worker.enqueue(job(0, 30, 2))
    worker.enqueue(job(1, 30, 1))
    worker.enqueue(job(2, 5, 1))
    steps = run(worker)
    assert [who for _, who in steps] == [[0], [0], [1, 2]]
    assert worker.num_preemptions == 0


def test_without_room_for_output_the_last_that_entered_starts_again() -> None:
    worker = SimWorker(shape(num_blocks=4, merged=1))
    worker.enqueue(job(0, 19, 5))
    worker.enqueue(job(1, 20, 2))
    steps = run(worker)
    # Both prompts fill the cache; the next token of 0 opens its third block, so 1 goes and comes back at the end.
    assert [who for _, who in steps] == [[0, 1], [0], [0], [0], [0], [1]]
    assert worker.num_preemptions == 1
    assert worker.cache.num_held == 0


def test_landed_tokens_are_held_and_found_but_not_computed() -> None:
    worker = SimWorker(shape(merged=1))
    landed = job(0, 30, 2, "abc")
    landed.num_known, landed.num_landed = 31, 30
    worker.enqueue(landed)
    assert run(worker) == [(2, [0]), (4, [0])]
    assert worker.num_computed_tokens == 2
    assert worker.cache.match([b"a", b"ab", b"abc"]) == 3


def test_a_job_that_can_never_run_is_not_taken() -> None:
    worker = SimWorker(shape(num_blocks=3))
    assert worker.fits(job(0, 25, 5))
    assert not worker.fits(job(0, 25, 6))


def test_merged_steps_are_cut_at_the_step_that_runs() -> None:
    worker = SimWorker(shape())
    worker.enqueue(job(0, 10, 8))
    worker.start(0.0)
    worker.finish()
    assert worker.start(0.020) == pytest.approx(0.034)
    assert worker.cut(0.0251) == pytest.approx(0.026)
    (emission,) = worker.finish()
    assert (emission.num_tokens, emission.finished) == (3, False)


def play(merged: int, seed: int) -> tuple[list[tuple[int, int]], int]:
    """Random jobs at random times; [(job, end of its last step in us)] and preemptions."""
    random = Random(seed)
    times = ServiceTimes(prefill_base_ms=3, decode_fill_ms=20)
    worker = SimWorker(WorkerShape(30, 10, 6, 40, merged, True, times))
    arrivals = sorted((random.randint(0, 400) / 1000, number) for number in range(40))
    jobs = [job(number, random.randint(1, 80), random.randint(1, 60), "abcdefgh") for number in range(40)]
    now_s = 0.0
    done: list[tuple[int, int]] = []

    def note(emissions: list[Emission]) -> None:
        done.extend((one.job.index, round(now_s * 1e6)) for one in emissions if one.finished)

    end_s = None
    while arrivals or end_s is not None:
        if arrivals and (end_s is None or arrivals[0][0] < end_s):
            now_s, number = arrivals.pop(0)
            worker.enqueue(jobs[number])
            end_s = worker.start(now_s) if end_s is None else worker.cut(now_s)
        else:
            assert end_s is not None
            now_s = end_s
            note(worker.finish())
            end_s = worker.start(now_s)
            cache = worker.cache
            assert cache.num_free + cache.num_cached + cache.num_held == 30
    assert worker.cache.num_held == 0
    return done, worker.num_preemptions


@pytest.mark.parametrize("seed", range(4))
def test_merging_steps_changes_nothing(seed: int) -> None:
    single, preemptions = play(1, seed)
    assert len(single) == 40
    assert play(32, seed) == (single, preemptions)
    assert all(a <= b for (_, a), (_, b) in pairwise(single))
