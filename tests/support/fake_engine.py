"""A step engine without a model: the next token is a function of all tokens before it, read back from its own KV.

A KV slot holds a token and its position, as bytes that others may move. The engine trusts the plan like the real one
does: it reads what the block table points at, so a wrong table, a block that was reused too early, bytes that did not
arrive or a position off by one change the output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from common.sched.params import SamplingParams
from common.sched.plan import SampledToken, SequenceStep, StepPlan, StepResult, TokenLogprobs

VOCABULARY = 8
SLOT_BYTES = 8


def next_token(tokens: Sequence[int]) -> int:
    """Return the token that follows, 0 .. VOCABULARY - 1."""
    return crc32(bytes(tokens)) % VOCABULARY


def reference_output(prompt: Sequence[int], params: SamplingParams, max_known_tokens: int = 1 << 30) -> list[int]:
    """Return what a request must produce, computed without blocks, chunks or batches."""
    output: list[int] = []
    while True:
        output.append(next_token([*prompt, *output]))
        stopped = output[-1] in params.stop_token_ids and len(output) > params.min_tokens
        if stopped or len(output) >= params.max_tokens or len(prompt) + len(output) >= max_known_tokens:
            return output


def reference_prompt_logprobs(prompt: Sequence[int]) -> list[TokenLogprobs]:
    """Return the fake logprobs of each prompt token but the first."""
    return [_logprobs(prompt[:i], prompt[i]) for i in range(1, len(prompt))]


def _logprobs(before: Sequence[int], token: int) -> TokenLogprobs:
    return TokenLogprobs(token, -float(crc32(bytes(before)) % 97), 1)


class FakeEngine:
    """Runs plans over `num_blocks` blocks of `block_size` slots.

    Attributes:
        num_rows: request id -> number of tokens computed for it.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        may_write: Callable[[int], bool] = lambda block: True,
        rows: NDArray[np.uint8] | None = None,
    ) -> None:
        """`rows`: where the slots lie, [num_blocks, at least 8 * block_size bytes]; None for memory of its own."""
        self.block_size = block_size
        if rows is None:
            rows = np.zeros((num_blocks, SLOT_BYTES * block_size), np.uint8)
        self.slots = rows[:, : SLOT_BYTES * block_size].view(np.int32).reshape(num_blocks, block_size, 2)
        self.num_rows: dict[str, int] = {}
        self._may_write = may_write

    def write(self, table: Sequence[int], start: int, tokens: Sequence[int]) -> None:
        """Store tokens at positions start ..."""
        for position, token in enumerate(tokens, start):
            block = table[position // self.block_size]
            assert self._may_write(block), f"write to shared block {block}"
            self.slots[block][position % self.block_size] = (token, position + 1)

    def read(self, table: Sequence[int], stop: int) -> list[int]:
        """Return the tokens at positions 0 .. stop - 1, as far as the slots are right."""
        tokens = []
        for expected in range(stop):
            token, place = self.slots[table[expected // self.block_size]][expected % self.block_size].tolist()
            tokens.append(token if place == expected + 1 else 255)
        return tokens

    def step(self, plan: StepPlan, failed: Sequence[str] = ()) -> StepResult:
        """Run a plan; the sequences in `failed` compute garbage."""
        sampled: dict[str, SampledToken] = {}
        prompt_logprobs: dict[str, list[TokenLogprobs]] = {}
        for sequence in plan.sequences:
            self._forward(sequence)
            tokens = self.read(sequence.block_table, sequence.start + len(sequence.token_ids))
            if sequence.request_id in failed:
                continue
            if sequence.sample is not None:
                assert sequence.sample.position == len(sequence.sample.output_ids)
                sampled[sequence.request_id] = SampledToken(next_token(tokens))
            if sequence.prompt_logprobs is not None:
                prompt_logprobs[sequence.request_id] = [
                    _logprobs(tokens[: sequence.start + i + 1], target) for i, target in enumerate(sequence.targets)
                ]
        reasons = {s.request_id: "logits are not finite" for s in plan.sequences if s.request_id in failed}
        return StepResult(plan.step_id, sampled, prompt_logprobs, reasons)

    def _forward(self, sequence: SequenceStep) -> None:
        stop = sequence.start + len(sequence.token_ids)
        assert len(sequence.block_table) == -(-stop // self.block_size), "the table does not fit what is computed"
        self.write(sequence.block_table, sequence.start, sequence.token_ids)
        self.num_rows[sequence.request_id] = self.num_rows.get(sequence.request_id, 0) + len(sequence.token_ids)
