"""What the client gets of one choice: workers' frames fitted to what was sent, and the end where no worker gives it.

Owns the choice's position in its stream. Frames are changed in place: building each anew would be most of the router's
work per token.
"""

from __future__ import annotations

from common.rpc.stitch import Stitch, fit
from common.tokenizer.tokenizer import Tokenizer
from pando.v1 import inference_pb2, types_pb2
from services.router.closing import closing
from services.router.job import Job
from services.router.metrics import TIERS, RequestTrace

Frame = inference_pb2.GenerateResponse


class Output:
    """The stream of one choice.

    Attributes:
        stitch: where it stands.
        leads: this is the request's first choice, which stands for its prompt in the metrics.
    """

    def __init__(self, job: Job, index: int, tokenizer: Tokenizer, trace: RequestTrace) -> None:
        self.stitch = Stitch(job.wish.output_ids, job.text_offset)
        self.leads = index == job.wish.first_choice
        self._job = job
        self._index = index
        self._tokenizer = tokenizer
        self._trace = trace
        self._prompt_sent = False

    def take(self, frame: Frame, attempt: int) -> bool:
        """Fit a worker's frame into the client's stream; False when nothing of it is new.

        Raises:
            PeerLost: it leaves a gap.
        """
        fit(self.stitch, frame)
        frame.request_id = self._job.request_id
        frame.choice = self._index
        frame.attempt = attempt
        self._add_prompt(frame)
        if self.stitch.finished:
            self._add_usage(frame)
        return bool(frame.token_ids or frame.text or self.stitch.finished or frame.HasField("prompt"))

    def close(self, attempt: int) -> Frame | None:
        """The last frame of an output that its tokens so far end; None while there is more to generate."""
        stitch = self.stitch
        if not stitch.token_ids:
            return None
        ended = closing(self._job, self._tokenizer, stitch.token_ids, stitch.text_offset)
        if ended is None:
            return None
        frame = Frame(
            request_id=self._job.request_id,
            choice=self._index,
            attempt=attempt,
            token_index=len(stitch.token_ids),
            text_offset=stitch.text_offset,
            text=ended.text,
            finish_reason=types_pb2.FINISH_REASON_STOP if ended.stopped else types_pb2.FINISH_REASON_LENGTH,
            stop_reason=ended.stop_reason,
        )
        stitch.accept(frame.token_index, (), frame.text_offset, len(ended.text), True)
        self._add_prompt(frame)
        self._add_usage(frame)
        return frame

    def _add_prompt(self, frame: Frame) -> None:
        if self._prompt_sent:
            frame.ClearField("prompt")
            return
        self._prompt_sent = True
        frame.prompt.num_tokens = len(self._job.prompt_ids)
        if self._job.wish.return_prompt_ids:
            frame.prompt.token_ids[:] = self._job.prompt_ids

    def _add_usage(self, frame: Frame) -> None:
        usage = frame.usage
        usage.prompt_tokens = len(self._job.prompt_ids)
        usage.completion_tokens = len(self.stitch.token_ids)
        if self.leads:
            cached = usage.cached_tokens
            self._trace.prompt(usage.prompt_tokens, {tier: getattr(cached, tier) for tier in TIERS})
