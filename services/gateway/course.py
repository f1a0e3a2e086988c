"""The course of one call over several routers: what has come of each choice, and how to ask another for the rest.

Routers keep nothing that outlives them, but a greedy or seeded request gives the same tokens everywhere. So a gateway
that knows the tokens that came can have any router go on: the same prompt and seed, the output so far, one call per
choice that is not finished, each with its own number. What another router says again is cut. Invariants: each token and
character of a choice passes once, in order; prompt facts pass once; a call that another router takes over has an id of
its own, because workers may still run the old one. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from common.rpc.stitch import Stitch, fit
from pando.v1.inference_pb2 import GenerateRequest, GenerateResponse


class Course:
    """One call and what came of it.

    Args:
        request: as the front door made it; not changed.
        seed: for a request that brings none, so that all routers draw alike.
    """

    def __init__(self, request: GenerateRequest, seed: int) -> None:
        first = request.first_choice
        self._request = GenerateRequest()
        self._request.CopyFrom(request)
        if not request.sampling.HasField("seed"):
            self._request.sampling.seed = seed
        self._stitches = {index: Stitch((), 0) for index in range(first, first + max(request.n, 1))}
        self._prompted: set[int] = set()
        self._num_calls = 0
        self._attempt = 0

    @property
    def begun(self) -> bool:
        """Whether anything has passed."""
        return any(stitch.num_new or stitch.finished for stitch in self._stitches.values())

    @property
    def finished(self) -> bool:
        """Whether every choice has its end."""
        return all(stitch.finished for stitch in self._stitches.values())

    @property
    def num_choices(self) -> int:
        """Choices that were asked for, finished or not."""
        return len(self._stitches)

    @property
    def num_tokens(self) -> int:
        """Tokens that passed, of all choices."""
        return sum(stitch.num_new for stitch in self._stitches.values())

    def parts(self) -> Sequence[Course]:
        """A course for every choice that is not finished; they and this one share what came."""
        return [self._part(index) for index, stitch in self._stitches.items() if not stitch.finished]

    def _part(self, index: int) -> Course:
        part = Course(self._request, self._request.sampling.seed)
        part._stitches = {index: self._stitches[index]}
        part._prompted = self._prompted
        part._num_calls = self._num_calls
        part._attempt = self._attempt
        part._request.first_choice = index
        part._request.n = 1
        return part

    def next_call(self) -> GenerateRequest:
        """What to ask the next router for. Once the call has begun, only a course of one choice may be asked on."""
        call = GenerateRequest()
        call.CopyFrom(self._request)
        if self._num_calls:
            call.request_id = f"{self._request.request_id}.r{self._num_calls}.{self._request.first_choice}"
            self._attempt += 1
        if self.begun:
            (stitch,) = self._stitches.values()
            call.output_token_ids[:] = stitch.token_ids
            call.sampling.ClearField("prompt_logprobs")
        self._num_calls += 1
        return call

    def take(self, frame: GenerateResponse) -> bool:
        """Fit a frame of the present call into its choice, in place; False when nothing of it is new.

        Raises:
            PeerLost: it leaves a gap.
        """
        stitch = self._stitches.get(frame.choice)
        if stitch is None or stitch.finished:
            return True  # nobody asked for it: that is for the transcript to refuse
        if self._attempt:
            frame.request_id = self._request.request_id
            frame.attempt += self._attempt
        fit(stitch, frame)
        if frame.choice in self._prompted:
            frame.ClearField("prompt")
        elif frame.HasField("prompt"):
            self._prompted.add(frame.choice)
        return bool(frame.token_ids or frame.text or stitch.finished or frame.HasField("prompt"))
