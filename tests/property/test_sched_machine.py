"""The scheduler under anything at any time: a state machine that finds and shrinks short bad stories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from common.sched.config import Policy
from common.sched.params import SamplingParams
from tests.support.fake_engine import FakeEngine
from tests.support.sched_world import World

prompts = st.one_of(
    st.lists(st.integers(0, 1), min_size=1, max_size=24),
    st.integers(1, 40).map(lambda n: [3] * n),
    st.lists(st.integers(0, 1), min_size=0, max_size=6).map(lambda tail: [2] * 17 + tail),
)
sampling = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 24),
    min_tokens=st.integers(0, 3),
    stop_token_ids=st.sampled_from([(), (7,), (1, 2)]),
    prompt_logprobs=st.sampled_from([None, None, None, 1]),
)
arrivals = st.tuples(prompts, sampling, st.integers(0, 2), st.integers(0, 5), st.booleans())
configs = st.builds(
    dict,
    max_num_seqs=st.integers(1, 6),
    max_batch_tokens=st.integers(6, 40),
    chunked_prefill_size=st.sampled_from([1, 3, 16, -1]),
    shared_prefill_min_tokens=st.sampled_from([1, 4, 32]),
    policy=st.sampled_from(list(Policy)),
    growth_reserve_blocks=st.integers(0, 3),
    max_model_len=st.sampled_from([20, 64, 1000]),
    max_landing_blocks=st.sampled_from([2, 1000]),
    high_water_ratio=st.sampled_from([0.5, 1.0]),
)
which = st.integers(0, 5)


class SchedulerMachine(RuleBasedStateMachine):
    """Every event is a rule; the world checks itself after each."""

    engine_class: type[FakeEngine] = FakeEngine
    world: World | None = None

    @initialize(block_size=st.sampled_from([1, 4, 16]), room=st.integers(30, 90), config=configs)
    def start(self, block_size: int, room: int, config: dict[str, Any]) -> None:
        self.world = World(block_size, room, config, self.engine_class)

    @property
    def now(self) -> World:
        """The world, which exists from the first rule on."""
        assert self.world is not None
        return self.world

    @rule(arrival=arrivals)
    def arrive(self, arrival: tuple[list[int], SamplingParams, int, int, bool]) -> None:
        self.now.arrive(*arrival)

    @rule(arrival=arrivals)
    def reserve(self, arrival: tuple[list[int], SamplingParams, int, int, bool]) -> None:
        self.now.reserve(*arrival)

    @rule(which=which, count=st.integers(1, 5))
    def land(self, which: int, count: int) -> None:
        self.now.land(which, count)

    @rule(which=which, with_token=st.booleans())
    def resume(self, which: int, with_token: bool) -> None:
        self.now.resume(which, with_token)

    @rule()
    def schedule(self) -> None:
        self.now.schedule()

    @rule(failure=st.integers(0, 9))
    def update(self, failure: int) -> None:
        self.now.update(failure == 9)

    @rule(count=st.integers(1, 8))
    def steps(self, count: int) -> None:
        self.now.steps(count)

    @rule(which=which)
    def abort(self, which: int) -> None:
        self.now.abort(which)

    @rule(which=which)
    def finish(self, which: int) -> None:
        self.now.finish(which)

    @rule(which=which)
    def release(self, which: int) -> None:
        self.now.release(which)

    @rule(which=which)
    def lend(self, which: int) -> None:
        self.now.lend(which)

    @rule()
    def give_back(self) -> None:
        self.now.give_back()

    @rule()
    def flush(self) -> None:
        self.now.flush()

    @rule(config=configs)
    def configure(self, config: dict[str, Any]) -> None:
        self.now.configure(config)

    @invariant()
    def holds(self) -> None:
        if self.world is not None:
            self.world.check()

    def teardown(self) -> None:
        if self.world is not None:
            self.world.close()


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(
    max_examples=100, stateful_step_count=50, deadline=None, phases=set(Phase) - {Phase.explain}
)

UNTIL_RED = settings(
    max_examples=200,
    derandomize=True,
    stateful_step_count=40,
    deadline=None,
    database=None,
    phases=(Phase.generate,),
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


class ForgetfulEngine(FakeEngine):
    """Loses the first slot of a block whenever something is written."""

    def write(self, table: Sequence[int], start: int, tokens: Sequence[int]) -> None:
        super().write(table, start, tokens)
        self.slots[1][0] = (-1, -1)


class BrokenKv(SchedulerMachine):
    """One slot is damaged."""

    engine_class = ForgetfulEngine


class LeakyCache(SchedulerMachine):
    """Somebody forgets to give a block back."""

    @rule()
    def leak(self) -> None:
        self.now.cache.allocate(1)


@pytest.mark.parametrize("machine", [BrokenKv, LeakyCache])
def test_the_machine_goes_red(machine: type[SchedulerMachine]) -> None:
    """Negative controls: an oracle that cannot fail proves nothing."""
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=UNTIL_RED)
