"""One HTTP request as the cluster sees it: what to ask the router, and how to write down what comes.

Front doors (chat, completions, native) build a `Generation`; `exchange` runs it and knows none of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from common.base.errors import InvalidRequest, PandoError
from pando.v1.inference_pb2 import GenerateRequest, GenerateResponse
from services.gateway.transcript import Slot, Transcript


class Writer(Protocol):
    """Writes answers in the format of one front door. Sees every frame after the transcript did."""

    def events(self, frame: GenerateResponse, slot: Slot) -> bytes:
        """Server-sent events for a frame; may be empty."""

    def tail(self) -> bytes:
        """Events after the last frame, with the end mark if this format has one."""

    def failed(self, error: PandoError) -> bytes:
        """What tells of a failure in mid-stream, with the end mark if this format has one."""

    def document(self) -> Any:
        """The whole answer, when it goes out in one piece and the transcript kept the frames."""


@dataclass(slots=True, frozen=True)
class Generation:
    """What to run.

    Attributes:
        requests: one call to the router per prompt.
        transcript: of those calls.
        writer: of the front door.
        stream: events, or one document.
        timeout_s: the client's own deadline, or None.
        names: fields at fault by the router's names -> by this front door's.
    """

    requests: Sequence[GenerateRequest]
    transcript: Transcript
    writer: Writer
    stream: bool
    timeout_s: float | None = None
    names: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class Head:
    """What every chunk of one answer repeats.

    Attributes:
        request_id: ours.
        model: as the client called it, or the served one's name.
        created: Unix seconds.
    """

    request_id: str
    model: str
    created: int

    def named(self, prefix: str, kind: str) -> dict[str, Any]:
        """The first fields of a document or chunk: its id starts with `prefix`."""
        return {
            "id": prefix + self.request_id.removeprefix("req-"),
            "object": kind,
            "created": self.created,
            "model": self.model,
        }


def request_ids(request_id: str, count: int) -> list[str]:
    """One id per call: the request's own where there is one call."""
    return [request_id] if count == 1 else [f"{request_id}-{index}" for index in range(count)]


def check_choices(num_prompts: int, n: int, limit: int, param: str = "n") -> None:
    """Raises InvalidRequest when one request wants more choices than the gateway will hold; `param` asked for them."""
    if num_prompts * n > limit:
        raise InvalidRequest(f"{param}: {num_prompts} prompts x {n} choices are more than {limit}", param=param)
