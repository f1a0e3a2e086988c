"""Reading traces: blocks, hashes, arrivals, and the most that any cache could reuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.replay.trace import BlockNames, TraceRequest, highest_reuse, parse_trace, read_trace, repeat_trace


def line(timestamp: int, num_input: int, hash_ids: list[int], num_output: int = 1) -> str:
    fields = {"timestamp": timestamp, "input_length": num_input, "output_length": num_output, "hash_ids": hash_ids}
    return json.dumps(fields)


def test_a_trace_block_is_split_and_the_unfilled_end_has_no_hash() -> None:
    (one,) = parse_trace([line(1500, 512 + 200, [7, 9], 3)], block_size=128, speedup=2)
    assert (one.arrival_s, one.num_input_tokens, one.num_output_tokens) == (0.75, 712, 3)
    assert len(one.hashes) == 5
    assert one.hashes[:4] == BlockNames(128).hashes([7], 512)
    assert one.hashes[4] == BlockNames(128).hashes([9], 128)[0]


def test_equal_ids_have_equal_hashes_and_others_none_in_common() -> None:
    first, second, third = parse_trace([line(0, 1024, [1, 2]), line(0, 1024, [1, 3]), line(0, 512, [2])], 256)
    assert first.hashes[:2] == second.hashes[:2]
    assert not set(first.hashes[2:]) & set(second.hashes)
    assert first.hashes[2:] == third.hashes
    assert len({*first.hashes, *second.hashes}) == 6


def test_what_is_not_of_the_format_is_refused() -> None:
    with pytest.raises(ValueError, match="do not divide"):
        BlockNames(100)
    with pytest.raises(ValueError, match="1025 tokens in 2 blocks"):
        list(parse_trace([line(0, 1025, [1, 2])], 512))
    with pytest.raises(ValueError, match="0 tokens"):
        list(parse_trace([line(0, 0, [])], 512))


def test_a_file_is_read_in_order_of_arrival_up_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join([line(20, 10, [1]), line(10, 11, [2]), line(5, 12, [3])]))
    assert [one.num_input_tokens for one in read_trace(path, 512)] == [12, 11, 10]
    assert [one.num_input_tokens for one in read_trace(path, 512, limit=2)] == [11, 10]


def test_copies_have_no_block_in_common() -> None:
    trace = list(parse_trace([line(0, 512, [1]), line(9, 512, [1])], 256))
    laid = repeat_trace(trace, 3)
    assert [one.arrival_s for one in laid] == [0, 0, 0, 0.009, 0.009, 0.009]
    assert len({name for one in laid for name in one.hashes}) == 6
    assert highest_reuse(laid, 256) == highest_reuse(trace, 256)


def test_highest_reuse_counts_the_head_that_was_seen_and_never_the_last_token() -> None:
    trace = [
        TraceRequest(0, 20, 1, (b"a", b"b")),
        TraceRequest(1, 25, 1, (b"a", b"c")),  # 10 cached
        TraceRequest(2, 20, 1, (b"a", b"b")),  # all seen: the last block is computed again
        TraceRequest(3, 15, 1, (b"x",)),
    ]
    assert highest_reuse(trace, 10) == (10 + 10) / 80
    assert highest_reuse([], 10) == 0
