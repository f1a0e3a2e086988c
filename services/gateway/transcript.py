"""What has come of every choice so far. Pure: frames in, totals out.

A *slot* is one choice of one prompt, numbered `prompt * n + choice`, which is also its `index` over HTTP. The router
merges attempts, so frames of a slot are contiguous; a stream that ends while a slot is open has failed, whatever
its status says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from common.base.errors import Cancelled, Internal, Leg, PeerLost
from pando.v1 import types_pb2
from pando.v1.inference_pb2 import GenerateResponse, PromptInfo

FINISH_NAMES = {types_pb2.FINISH_REASON_STOP: "stop", types_pb2.FINISH_REASON_LENGTH: "length"}


@dataclass(slots=True)
class Slot:
    """One choice.

    Attributes:
        index: number over HTTP.
        num_prompt_tokens, num_tokens: prompt and output tokens so far.
        finish: OpenAI's finish_reason, or None while it runs.
        stop_reason: what stopped it, or "".
        usage: cost, once it has ended.
        num_frames: frames seen.
        frames: the frames themselves, where the transcript keeps them.
    """

    index: int
    num_prompt_tokens: int = 0
    num_tokens: int = 0
    finish: str | None = None
    stop_reason: str = ""
    usage: types_pb2.Usage | None = None
    num_frames: int = 0
    frames: list[GenerateResponse] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All text of a kept slot."""
        return "".join(frame.text for frame in self.frames)

    @property
    def token_ids(self) -> list[int]:
        """All output ids of a kept slot."""
        return [token_id for frame in self.frames for token_id in frame.token_ids]

    @property
    def logprobs(self) -> list[types_pb2.TokenLogprob]:
        """Logprobs of all output tokens of a kept slot."""
        return [entry for frame in self.frames for entry in frame.logprobs]

    @property
    def prompt(self) -> PromptInfo:
        """Prompt facts of a kept slot."""
        return self.frames[0].prompt


class Transcript:
    """All slots of one HTTP request.

    Args:
        num_prompts: prompts.
        n: choices per prompt.
        keep: store frames, for an answer in one piece.
        notes: what the answer tells beside the usage, under `pando`.
    """

    def __init__(self, num_prompts: int, n: int, *, keep: bool, notes: Mapping[str, Any] | None = None) -> None:
        self.n = n
        self.notes = notes or {}
        self.slots = [Slot(index) for index in range(num_prompts * n)]
        self._keep = keep

    def add(self, prompt: int, frame: GenerateResponse) -> Slot:
        """Account for a frame; returns its slot, already updated.

        Raises:
            Cancelled: the choice was aborted by somebody.
            Internal: the frame belongs to no open choice.
        """
        if frame.choice >= self.n:
            raise Internal(f"frame for choice {frame.choice} of {self.n}", leg=Leg.ROUTER)
        slot = self.slots[prompt * self.n + frame.choice]
        if slot.finish is not None:
            raise Internal(f"frame after the end of choice {slot.index}", leg=Leg.ROUTER)
        _count(slot, frame)
        if frame.finish_reason != types_pb2.FINISH_REASON_UNSPECIFIED:
            _finish(slot, frame)
        if self._keep:
            slot.frames.append(frame)
        return slot

    def check_complete(self) -> None:
        """Raises PeerLost when a choice has no end."""
        for slot in self.slots:
            if slot.finish is None:
                raise PeerLost(f"the stream ended before choice {slot.index} did", leg=Leg.ROUTER)

    def of_prompt(self, prompt: int) -> Sequence[Slot]:
        """The choices of one prompt."""
        return self.slots[prompt * self.n : (prompt + 1) * self.n]

    @property
    def num_prompts(self) -> int:
        """Prompts of the request."""
        return len(self.slots) // self.n


def _count(slot: Slot, frame: GenerateResponse) -> None:
    slot.num_frames += 1
    slot.num_tokens = max(slot.num_tokens + len(frame.token_ids), frame.usage.completion_tokens)
    slot.num_prompt_tokens = slot.num_prompt_tokens or frame.prompt.num_tokens or frame.usage.prompt_tokens


def _finish(slot: Slot, frame: GenerateResponse) -> None:
    if frame.finish_reason == types_pb2.FINISH_REASON_ABORT:
        raise Cancelled("the request was aborted", leg=Leg.ROUTER)
    slot.finish = FINISH_NAMES[frame.finish_reason]
    slot.stop_reason = frame.stop_reason
    slot.usage = frame.usage
    slot.num_tokens = frame.usage.completion_tokens or slot.num_tokens
    slot.num_prompt_tokens = frame.usage.prompt_tokens or slot.num_prompt_tokens
