"""Workers in virtual time under a planner: they compute prompts in turn, keep all blocks, draw tokens side by side."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from services.router.placement import Placement
from tests.support.planner_rig import BLOCK_SIZE, PlannerRig


@dataclass(slots=True, frozen=True)
class Served:
    """One request: its decode worker and its time to the first token."""

    worker: str
    first_token_s: float


@dataclass
class PlannerWorld:
    """Drives a rig with unified workers; times in seconds of virtual time.

    Attributes:
        slow: by what factor a worker is slower, by name.
        start_s, token_s: of a prompt, and for each of its tokens that are computed.
        step_s: between two tokens.
        fetch_token_s: of each token that is fetched from another worker; None: they do not fetch.
    """

    rig: PlannerRig
    slow: Mapping[str, float] = field(default_factory=dict)
    start_s: float = 0.005
    token_s: float = 0.0005
    step_s: float = 0.01
    output_tokens: int = 16
    fetch_token_s: float | None = None

    def __post_init__(self) -> None:
        self.served: list[Served] = []
        self._free_s: dict[str, float] = {}
        self._held: dict[str, set[bytes]] = {one.key[0]: set() for one in self.rig.workers}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def run(self, prompts: Sequence[Sequence[bytes]], num_clients: int) -> list[Served]:
        """Ask in a closed loop of `num_clients`; returns what was served, in order of the end."""
        waiting = iter(prompts)
        for _ in range(num_clients):
            self._ask(waiting)
        while self._events:
            self.rig.now_s, _, action = heapq.heappop(self._events)
            action()
        assert len(self.served) == len(prompts)
        return self.served

    def _at(self, time_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time_s, next(self._order), action))

    def _ask(self, waiting: Iterator[Sequence[bytes]]) -> None:
        hashes = next(waiting, None)
        if hashes is None:
            return
        rig = self.rig
        block_bytes = round((self.fetch_token_s or 0.0) * BLOCK_SIZE * 1e9)
        task = rig.task(hashes, output=self.output_tokens, block_bytes=block_bytes)
        placement = rig.start(task)
        name = placement.plan.decode.key[0]
        factor = self.slow.get(name, 1.0)
        began_s = max(rig.now_s, self._free_s.get(name, 0.0))
        held = self._tokens(name, hashes)
        fetched = 0
        if self.fetch_token_s is not None:
            found = (self._tokens(source.worker.key[0], hashes) for source in placement.plan.sources)
            fetched = max(0, max(found, default=0) - held)
        computed_s = (task.num_tokens - held - fetched) * self.token_s + fetched * (self.fetch_token_s or 0.0)
        self._free_s[name] = done_s = began_s + factor * (self.start_s + computed_s)
        self._held[name].update(hashes)
        self._at(done_s, lambda: self._first(placement, hashes, waiting))

    def _tokens(self, name: str, hashes: Sequence[bytes]) -> int:
        held = next((depth for depth, one in enumerate(hashes) if one not in self._held[name]), len(hashes))
        return held * BLOCK_SIZE

    def _first(self, placement: Placement, hashes: Sequence[bytes], waiting: Iterator[Sequence[bytes]]) -> None:
        name = placement.plan.decode.key[0]
        self.rig.store(name, hashes)
        placement.progress(1, self.rig.now_s)
        self._next(placement, self.output_tokens - 1, waiting)

    def _next(self, placement: Placement, left: int, waiting: Iterator[Sequence[bytes]]) -> None:
        name = placement.plan.decode.key[0]
        if left:
            self._at(
                self.rig.now_s + self.step_s * self.slow.get(name, 1.0), lambda: self._token(placement, left, waiting)
            )
            return
        placement.release()
        self.served.append(Served(name, placement.first_token_s or 0.0))
        self._ask(waiting)

    def _token(self, placement: Placement, left: int, waiting: Iterator[Sequence[bytes]]) -> None:
        placement.progress(1, self.rig.now_s)
        self._next(placement, left - 1, waiting)
