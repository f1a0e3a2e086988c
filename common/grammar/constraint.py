"""What scheduler and engine know of a grammar: an interface, so that neither knows the grammar engine.

A constraint belongs to one request. Its state follows from the output alone: it is told the output so far before every
step, and takes in what it has not seen. So a request that was preempted, or that goes on from another worker, needs
nothing special.

One step, all calls on the engine thread::

    prepare(output so far) ... the forward runs ... mask() -> draw -> accept(token)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Mask: TypeAlias = "npt.NDArray[np.bool_]"
"""[vocab], True where a token may come."""


@dataclass(slots=True, frozen=True)
class Accepted:
    """What follows from a token that was drawn.

    Attributes:
        forced: the tokens that come next whatever is drawn; they count as accepted too.
        complete: nothing can follow after all these: the output is over.
    """

    forced: Sequence[int] = ()
    complete: bool = False


class Constraint(Protocol):
    """Which tokens one request's output may have next."""

    @property
    def complete(self) -> bool:
        """The output that is known here is over."""

    def prepare(self, output_ids: Sequence[int]) -> None:
        """Begin to find out what may follow `output_ids`, on another thread; returns at once.

        Called again with the same output it goes on with what it began.
        """

    def mask(self, timeout_s: float) -> Mask | None:
        """Which token ids may come next, at least one; ids beyond its end may not. None: not known in time.

        Raises:
            InvalidRequest: the grammar forbids the output so far, leads nowhere, or is too slow: it ends the request.
        """

    def accept(self, token_id: int, jump: bool) -> Accepted:
        """Take in the token that was drawn; with `jump` also those that it forces.

        Raises:
            InvalidRequest: as `mask`.
        """
