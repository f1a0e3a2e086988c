"""One unbroken stream out of the frames of several attempts: what is new in a frame, and when the output is over.

Every frame says where it stands: output position of its first token, character offset of its text. A later attempt may
repeat what was sent (its worker was told the output so far, but text held back for a stop string comes again); the
stitch tells how much of each to cut. Invariants: no token or character passes twice, none is missing; nothing passes
after the finish. A router uses it over its workers, a gateway over its routers. Pure; knows nothing of who sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from common.base.errors import Leg, PeerLost
from pando.v1 import inference_pb2, types_pb2


@dataclass(slots=True, frozen=True)
class Cut:
    """What to drop from the head of a frame: tokens (with their logprobs) and characters."""

    num_tokens: int
    num_chars: int


class Stitch:
    """Position of one choice's stream.

    Attributes:
        token_ids: output so far, that of the client included.
        text_offset: characters sent, those of the client included.
        num_new: tokens that came from workers.
        finished: the last frame has passed.
    """

    def __init__(self, token_ids: Sequence[int], text_offset: int) -> None:
        """Start after output that the client already has."""
        self.token_ids = list(token_ids)
        self.text_offset = text_offset
        self.num_new = 0
        self.finished = False

    def accept(
        self, token_index: int, token_ids: Sequence[int], text_offset: int, num_chars: int, finished: bool
    ) -> Cut:
        """Take a frame into the stream.

        Raises:
            PeerLost: the frame leaves a gap, so something its worker sent was lost; nothing of it passes.
        """
        assert not self.finished, "a frame after the last"
        tokens_known, chars_known = len(self.token_ids) - token_index, self.text_offset - text_offset
        if tokens_known < 0 or (num_chars and chars_known < 0):
            raise PeerLost(
                f"gap in the stream: {len(self.token_ids)} tokens and {self.text_offset} characters came, "
                f"the next frame starts at {token_index} and {text_offset}",
                reason="stream_gap",
                leg=Leg.DECODE,
            )
        cut = Cut(min(tokens_known, len(token_ids)), min(max(chars_known, 0), num_chars))
        new = token_ids[cut.num_tokens :] if cut.num_tokens else token_ids
        self.token_ids.extend(new)
        self.num_new += len(new)
        self.text_offset += num_chars - cut.num_chars
        self.finished = finished
        return cut


def fit(stitch: Stitch, frame: inference_pb2.GenerateResponse) -> None:
    """Take a frame into the stream and cut from it, in place, what passed before.

    Raises:
        PeerLost: the frame leaves a gap.
    """
    finished = frame.finish_reason != types_pb2.FINISH_REASON_UNSPECIFIED
    cut = stitch.accept(frame.token_index, frame.token_ids, frame.text_offset, len(frame.text), finished)
    if cut.num_tokens:
        del frame.token_ids[: cut.num_tokens]
        del frame.logprobs[: cut.num_tokens]
        del frame.logits_digests[: cut.num_tokens]
        frame.token_index += cut.num_tokens
    if cut.num_chars:
        frame.text = frame.text[cut.num_chars :]
        frame.text_offset += cut.num_chars
