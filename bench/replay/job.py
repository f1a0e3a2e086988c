"""The words of a simulated worker: its shape, what it does for one request, what comes of it. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from bench.replay.times import ServiceTimes


@dataclass(slots=True, frozen=True)
class WorkerShape:
    """What a worker can hold and how it steps.

    Attributes:
        num_blocks: KV blocks.
        block_size: tokens per block.
        max_num_seqs: most running requests.
        max_step_tokens: most tokens computed in a step.
        max_merged_steps: most decode steps run as one.
        share_when_scheduled: blocks are found by others from the beginning of the step that computes them on (as the
            mock engine of Dynamo does), not from its end (as Pando does).
    """

    num_blocks: int = 16384
    block_size: int = 64
    max_num_seqs: int = 256
    max_step_tokens: int = 8192
    max_merged_steps: int = 16
    share_when_scheduled: bool = False
    times: ServiceTimes = field(default_factory=ServiceTimes)


@dataclass(slots=True, eq=False)
class Job:
    """What one worker does for one request.

    Attributes:
        hashes: of full blocks, the prompt's and then those of the output as they fill.
        num_known: tokens of prompt and output.
        num_prompt: tokens of the prompt.
        num_to_generate: tokens that this worker draws.
        num_landed: leading tokens whose KV comes from another worker.
        num_computed: leading tokens with KV.
        num_cached: tokens that were here when it entered first; None before.
        num_blocks: blocks that its tokens lie in.
        shared: hashes it holds, in the order of its path.
        num_private: other blocks it holds.
    """

    index: int
    hashes: list[bytes]
    num_known: int
    num_prompt: int
    num_to_generate: int
    num_landed: int = 0
    num_computed: int = 0
    num_generated: int = 0
    num_cached: int | None = None
    num_indexed: int = 0
    step_tokens: int = 0
    num_blocks: int = 0
    num_private: int = 0
    shared: list[bytes] = field(default_factory=list)


@dataclass(slots=True, frozen=True)
class Emission:
    """Tokens that a job got at the end of a step."""

    job: Job
    num_tokens: int
    finished: bool
