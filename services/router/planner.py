"""The decision core behind one facade: what the live router and the simulator both drive.

Owns the prefix view, the loads, the measured speeds, the promises of prompts on their way, which prefixes run, and
which worker a session was on. Pure: events, candidates and the time come in as arguments; plans and placements go out.
Every plan follows from these alone, so that a recorded run can be replayed. Knows nothing about calls, clocks or who is
alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from services.router.affinity import Affinity
from services.router.choosing import Picker, Rules, choose
from services.router.costs import Situation, Standing
from services.router.index_update import Update
from services.router.load import LoadBook
from services.router.member import Stats
from services.router.placement import Placement, Reuse
from services.router.policy import Candidate, Exclusions, Plan, Task
from services.router.popularity import Popularity
from services.router.prefix_view import PrefixView, WorkerKey
from services.router.speculation import Promise, Speculations
from services.router.speeds import Speeds

Blocks: TypeAlias = dict[WorkerKey, int]
"""Blocks of one prompt by worker."""


@dataclass(slots=True, frozen=True)
class PlannerConfig:
    """See the router's settings of the same names.

    Attributes:
        speculative_s: how long a prompt's blocks count as held after its first token, until the events come.
        max_speculations: most prompts that are remembered so.
        min_match_tokens: shorter matches earn no credit.
        tie_ratio: costs within this part of the best first-token time are equal.
        decode_horizon_tokens: output tokens whose time counts in a placement.
        disturbed_ratio: what of a prompt's time counts as a cost for each request that generates on the same worker.
        max_sources: most holders of a longer prefix named in a plan; 0: workers do not fetch from each other.
        max_sessions: most sessions whose worker is remembered.
        speed_half_life_s: a slow worker gets half its bad reputation off in this time without news.
    """

    policy: str = "prefix"
    remote_prefill_min_tokens: int = 32
    max_view_blocks: int = 4_000_000
    speculative_s: float = 2.0
    max_speculations: int = 4096
    min_match_tokens: int = 64
    tie_ratio: float = 0.02
    decode_horizon_tokens: int = 16
    disturbed_ratio: float = 0.1
    max_sources: int = 2
    max_sessions: int = 10_000
    speed_half_life_s: float = 30.0


class Planner:
    """Plans requests and learns from how they went. Lives on one event loop; nothing in it blocks.

    Attributes:
        view: which worker holds which blocks.
        load: who has how much to do.
        speeds: how fast they are.
    """

    def __init__(self, config: PlannerConfig, seed: int = 0) -> None:
        """Start knowing nobody; `seed` is for the policy `random`."""
        self.config = config
        self.view = PrefixView(config.max_view_blocks)
        self.load = LoadBook()
        self.speeds = Speeds(config.speed_half_life_s)
        self._speculations = Speculations(config.speculative_s, config.max_speculations)
        self._popularity = Popularity()
        self._affinity = Affinity(config.max_sessions)
        self._turn = seed
        self._rules = Rules(config.policy, config.remote_prefill_min_tokens, config.tie_ratio, config.max_sources)
        self._running: dict[Placement, _Run] = {}

    @property
    def num_speculations(self) -> int:
        """Prompts whose blocks count as held by a worker that has not told so yet."""
        return len(self._speculations)

    @property
    def num_running(self) -> int:
        """Placements that are not released."""
        return len(self._running)

    def plan(self, task: Task, candidates: Sequence[Candidate], exclusions: Exclusions, now_s: float) -> Plan | None:
        """Place a task; None when no worker can decode. Charges and remembers nothing."""
        situation = self._situation(task, candidates, now_s)
        before = self._affinity.worker(task.session_id)
        picker = Picker(situation, self._rules, self._turn, task.known or (before,))
        return choose(picker, exclusions)

    def start(self, plan: Plan, task: Task, now_s: float) -> Placement:
        """Put a plan into force; the caller releases the placement on every path."""
        computing, decode = plan.computing.key, plan.decode.key
        room_wanted = self.load.of(decode).is_full
        backlog = self.load.of(computing).queued_tokens + plan.prompt_tokens
        prompt = self.load.charge(computing, now_s, prompt_tokens=plan.prompt_tokens)
        output = self.load.charge(
            decode, now_s, output_tokens=plan.output_tokens, context_tokens=task.num_tokens + plan.output_tokens
        )
        placement = Placement(
            plan, prompt, output, self, started_s=now_s, num_tokens=task.num_tokens, backlog_tokens=backlog
        )
        self._turn += 1
        self._speculations.lapse(now_s)
        promises = [self._speculations.add(computing, task.hashes, landing=False)]
        if plan.prefill is not None:
            promises.append(self._speculations.add(decode, task.hashes, landing=True))
        self._running[placement] = _Run(task.hashes, [one for one in promises if one], not room_wanted)
        self._popularity.enter(task.hashes)
        self._affinity.note(task.session_id, decode)
        return placement

    def handle(self, key: WorkerKey, update: Update) -> bool:
        """Fold in what a worker says of its index; False when a new snapshot is needed."""
        return self.view.handle(key, update)

    def lost_track(self, key: WorkerKey) -> None:
        """The worker's stream broke."""
        self.view.lost_track(key)

    def discredit(self, key: WorkerKey) -> None:
        """What a worker held is lost; if it lives, it tells what it has from the beginning."""
        self.view.remove(key)
        self._speculations.forget(key)

    def observe_stats(self, key: WorkerKey, stats: Stats, block_size: int) -> None:
        """A worker answered a ping."""
        self.load.observe(key, stats.waiting_tokens, stats.num_running + stats.num_waiting)
        self.load.bounds(key, stats.max_num_seqs, stats.num_blocks * block_size)
        self.speeds.reported(key, stats.prefill_tokens_per_s)

    def remove(self, key: WorkerKey) -> None:
        """Forget a worker that is gone; placements on it stay open until they are released."""
        self.view.remove(key)
        self.load.forget(key)
        self.speeds.forget(key)
        self._speculations.forget(key)
        self._affinity.forget(key)

    def came_first(self, placement: Placement, now_s: float) -> None:
        """A placement's first token came."""
        run = self._running[placement]
        for promise in run.promises:
            self._speculations.computed(promise, now_s)
        if run.measures:
            key, elapsed_s = placement.plan.computing.key, now_s - placement.started_s
            self.speeds.first_token(key, placement.backlog_tokens, elapsed_s, now_s)

    def came_more(self, placement: Placement, num_tokens: int, elapsed_s: float, now_s: float) -> None:
        """More tokens of a placement came."""
        key = placement.plan.decode.key
        self.speeds.step(key, self.load.of(key).num_requests, elapsed_s / num_tokens, now_s)

    def came_last(self, placement: Placement, usage: Reuse, now_s: float) -> None:
        """A placement's usage came."""
        if usage.transfer_bytes and placement.plan.prefill is not None:
            self.speeds.read(placement.plan.decode.key, usage.transfer_bytes, usage.transfer_s, now_s)
        self.speeds.settle(now_s)

    def ended(self, placement: Placement) -> None:
        """A placement is over: what it promised and did not do is off."""
        run = self._running.pop(placement)
        self._popularity.leave(run.hashes)
        for promise in run.promises:
            if promise.until_s is None:
                self._speculations.drop(promise)

    def _situation(self, task: Task, candidates: Sequence[Candidate], now_s: float) -> Situation:
        held, upper = self.view.match_tiers(task.hashes)
        num_known = max(held.values(), default=0)
        below = {key: held[key] - blocks for key, blocks in upper.items()}
        standings = self._standings(task, candidates, (held, below), now_s)
        longest = 0
        if self.config.max_sources and task.block_bytes:
            longest = max([one.held_tokens for one in standings if not one.landing], default=0)
        computing = [one for one in standings if one.candidate.can_prefill] or standings
        num_busy = len([one for one in computing if one.load.queued_tokens > 0])
        return Situation(
            task=task,
            standings=standings,
            longest_tokens=longest if longest >= self.config.min_match_tokens else 0,
            curve=self._popularity.curve(task.hashes, num_known, max(1, len(computing))),
            busy_ratio=num_busy / max(1, len(computing)),
            now_s=now_s,
            min_match_tokens=self.config.min_match_tokens,
            horizon_tokens=self.config.decode_horizon_tokens,
            disturbed_ratio=self.config.disturbed_ratio,
        )

    def _standings(
        self, task: Task, candidates: Sequence[Candidate], matches: tuple[Blocks, Blocks], now_s: float
    ) -> list[Standing]:
        """What each candidate has of the prompt: by the view, by what the task knows beyond it, by promises.

        `matches` are the view's: blocks of the prompt's head by worker, which is changed, and those of them below L1.
        """
        held, below = matches
        held.update(task.known)
        landing = set(task.landing)
        for key, (blocks, lands) in self._speculations.match(task.hashes, now_s).items():
            if blocks > held.get(key, 0):
                held[key] = blocks
                if lands:
                    landing.add(key)
        block_size, most, load_of, pace_of = task.block_size, task.num_tokens - 1, self.load.of, self.speeds.pace
        standings = []
        for one in candidates:
            key = one.key
            blocks = held.get(key, 0)
            tokens = min(blocks * block_size, most)
            unloaded = below.get(key, 0) * block_size if below else 0
            lands = key in landing if landing else False
            standings.append(Standing(one, load_of(key), pace_of(key, now_s), tokens, blocks, unloaded, lands))
        return standings


@dataclass(slots=True)
class _Run:
    """What a running placement left in the books.

    Attributes:
        measures: its first token tells of its worker's speed.
    """

    hashes: Sequence[bytes]
    promises: Sequence[Promise]
    measures: bool
