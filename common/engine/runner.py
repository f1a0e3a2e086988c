"""Run one `StepPlan`: rows in, sampled tokens out. Called on the engine thread only.

The runner keeps no state between steps except views of the KV pool, which the caller allocates and attaches after
loading (the layout decides the size of a block). It trusts plans: token ids, positions and block ids are in range.
Logits that are not finite fail their request and leave the others alone. A grammar's masks are found while the forward
runs; a sequence whose mask is late gets its token in a later step.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from common.base.errors import InvalidRequest
from common.base.model_config import ModelConfig
from common.engine.attention.base import AttentionBackend, PagedBatch
from common.engine.draw import Patience, draw
from common.engine.layout import KVLayout
from common.engine.model import DecoderModel
from common.engine.sampler import Row, token_logprobs
from common.sched.params import SamplingParams
from common.sched.plan import SampledToken, SampleSpec, SequenceStep, StepPlan, StepResult, TokenLogprobs

LOGITS_ROWS_AT_ONCE = 64
"""Bounds the memory of prompt logprobs: 64 rows of 150,000 fp32 logits are 38 MB."""

NOT_FINITE = "the model's logits are not finite"

_WARM_UP_ROWS = (1, 2, 8, 64)


class ModelRunner:
    """A loaded model, ready to run steps once a pool is attached.

    Attributes:
        config: the model's configuration.
        layout: shape of a KV block; `layout.block_bytes` sizes the pool.
        numerics_id: see `common.engine.numerics`.
        notes: what was not granted as asked, for the log.
        exact: whether steps are bitwise independent of batching, chunking and block placement.
    """

    def __init__(
        self,
        model: DecoderModel,
        attention: AttentionBackend,
        layout: KVLayout,
        numerics_id: str,
        notes: Sequence[str] = (),
    ) -> None:
        self.config: ModelConfig = model.config
        self.layout = layout
        self.numerics_id = numerics_id
        self.notes = tuple(notes)
        self.exact = attention.exact
        self._model = model
        self._attention = attention

    def attach_pool(self, buffer: memoryview, num_blocks: int) -> None:
        """Use the first `num_blocks` blocks of the writable `buffer`; views keep it alive until `detach_pool`.

        Raises:
            InvalidRequest: the buffer is read-only or too small.
        """
        self._attention.attach(self.layout.layer_views(buffer, num_blocks))

    def detach_pool(self) -> None:
        """Drop all views of the pool, so that its owner can unmap it."""
        self._attention.attach(())

    def warm_up(self) -> None:
        """Run a few steps on a scratch pool, so that the first request pays for no lazy set-up. Detaches the pool."""
        rows = max(_WARM_UP_ROWS)
        blocks = -(-rows // self.layout.block_size)
        scratch = bytearray(blocks * self.layout.block_bytes)
        self.attach_pool(memoryview(scratch), blocks)
        spec = SampleSpec(SamplingParams(temperature=0), seed=0, choice=0, position=0, prompt_ids=(), output_ids=())
        for count in _WARM_UP_ROWS:
            sequence = SequenceStep("warm-up", [0] * count, 0, range(blocks), spec)
            self.step(StepPlan(step_id=0, sequences=[sequence]))
        self.detach_pool()

    @torch.inference_mode()
    def step(self, plan: StepPlan) -> StepResult:
        """Compute the KV of every token of `plan` and draw the tokens it asks for. Blocks until done."""
        began = time.perf_counter()
        outcome = _Outcome()
        if plan.sequences:
            _prepare_masks(plan.sequences)
            hidden = self._forward(plan.sequences)
            self._read_prompts(plan.sequences, hidden, outcome)
            outcome.patience = Patience(time.perf_counter() - began)
            self._sample_all(plan.sequences, hidden, outcome)
        return StepResult(
            step_id=plan.step_id,
            sampled={i: token for i, token in outcome.sampled.items() if i not in outcome.failed},
            prompt_logprobs={i: lps for i, lps in outcome.prompt_logprobs.items() if i not in outcome.failed},
            failed=outcome.failed,
            refused=outcome.refused,
            late=outcome.late,
            elapsed_s=time.perf_counter() - began,
        )

    def _forward(self, sequences: Sequence[SequenceStep]) -> Tensor:
        """Hidden rows [num_tokens, hidden] of all sequences, in order."""
        starts = [s.start for s in sequences]
        lengths = [len(s.token_ids) for s in sequences]
        tables = [s.block_table for s in sequences]
        self._attention.plan(PagedBatch.build(starts, lengths, tables, self.layout.block_size))
        token_ids = np.concatenate([np.asarray(s.token_ids, np.int64) for s in sequences])
        positions = np.concatenate([np.arange(s.start, s.start + len(s.token_ids), dtype=np.int32) for s in sequences])
        assert positions.max() < self.config.max_position, f"position {positions.max()} of {self.config.max_position}"
        return self._model.forward(torch.from_numpy(token_ids), torch.from_numpy(positions), self._attention)

    def _sample_all(self, sequences: Sequence[SequenceStep], hidden: Tensor, outcome: _Outcome) -> None:
        ends = np.cumsum([len(s.token_ids) for s in sequences])
        wanted = [(s, int(end) - 1) for s, end in zip(sequences, ends, strict=True) if s.sample is not None]
        rows = self._logits_rows(hidden, [index for _, index in wanted])
        for (sequence, _), row in zip(wanted, rows, strict=True):
            outcome.add_sample(sequence, row)

    def _read_prompts(self, sequences: Sequence[SequenceStep], hidden: Tensor, outcome: _Outcome) -> None:
        first = 0
        for sequence in sequences:
            if sequence.prompt_logprobs is not None:
                rows = self._logits_rows(hidden, range(first, first + len(sequence.targets)))
                outcome.add_prompt(sequence, rows)
            first += len(sequence.token_ids)

    def _logits_rows(self, hidden: Tensor, indices: Sequence[int]) -> Iterator[Row]:
        """The fp32 logits row of each wanted hidden row; a row is valid until the next one is asked for."""
        for begin in range(0, len(indices), LOGITS_ROWS_AT_ONCE):
            part = torch.as_tensor(list(indices[begin : begin + LOGITS_ROWS_AT_ONCE]))
            yield from self._model.logits(hidden[part]).numpy()


def _prepare_masks(sequences: Sequence[SequenceStep]) -> None:
    """Let the masks of constrained sequences be found while the forward runs."""
    for sequence in sequences:
        spec = sequence.sample
        if spec is not None and spec.constraint is not None:
            spec.constraint.prepare(spec.output_ids)


class _Outcome:
    """What a step has found so far, by request id; `patience`: how long it waits for masks."""

    def __init__(self) -> None:
        self.sampled: dict[str, SampledToken] = {}
        self.prompt_logprobs: dict[str, list[TokenLogprobs]] = {}
        self.failed: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self.late: set[str] = set()
        self.patience = Patience(0.0)

    def add_sample(self, sequence: SequenceStep, row: Row) -> None:
        """Draw the next token of `sequence` from its logits row."""
        spec = sequence.sample
        assert spec is not None, f"{sequence.request_id} asked for no sample"
        if not np.isfinite(row).all():
            self.failed[sequence.request_id] = NOT_FINITE
            return
        try:
            drawn = draw(row, spec, self.patience)
        except InvalidRequest as error:
            self.refused[sequence.request_id] = error.message
            return
        except Exception as error:  # noqa: BLE001 - a bug in one request's grammar must not fail the whole step
            self.failed[sequence.request_id] = f"drawing a token: {type(error).__name__}: {error}"
            return
        if drawn is None:
            self.late.add(sequence.request_id)
            return
        token, wanted = drawn.token_id, spec.params.logprobs
        self.sampled[sequence.request_id] = SampledToken(
            token_id=token,
            logprobs=None if wanted is None else token_logprobs(row, token, wanted),
            digest=hashlib.sha256(row.tobytes()).digest() if sequence.digest else None,
            forced_ids=drawn.forced,
            complete=drawn.complete,
        )

    def add_prompt(self, sequence: SequenceStep, rows: Iterator[Row]) -> None:
        """Read the log-probabilities of the targets of `sequence` from their logits rows."""
        entries: list[TokenLogprobs] = []
        for target, row in zip(sequence.targets, rows, strict=True):
            if not np.isfinite(row).all():
                self.failed[sequence.request_id] = NOT_FINITE
                return
            entries.append(token_logprobs(row, target, sequence.prompt_logprobs or 0))
        self.prompt_logprobs[sequence.request_id] = entries
