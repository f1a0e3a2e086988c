"""Whatever happens in whatever order, the supervisor's core keeps its promises."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pando.cli.supervisor_core import (
    Added,
    BecameReady,
    Began,
    Event,
    Exited,
    Limits,
    Removed,
    Service,
    Signal,
    Start,
    StopAsked,
    SupervisorCore,
    Ticked,
)

NAMES = ("registry", "prefill", "decode", "router", "gateway")
LAYERS = (0, 1, 1, 2, 3)


class SupervisorMachine(RuleBasedStateMachine):
    """Plays the operating system: `alive` is the truth about processes that the core may only change by actions."""

    def __init__(self) -> None:
        super().__init__()
        services = [Service(name, layer, grace_s=5) for name, layer in zip(NAMES, LAYERS, strict=True)]
        self.core = SupervisorCore(services, Limits(start_timeout_s=20, restart_limit=4))
        self.alive: set[str] = set()
        self.killed: set[str] = set()
        self.layers = dict(zip(NAMES, LAYERS, strict=True))
        self.now_s = 0.0
        self._handle(Began())

    def _handle(self, event: Event) -> None:
        for action in self.core.handle(event, self.now_s):
            match action:
                case Start(name):
                    assert name not in self.alive, f"{name} started twice"
                    assert not self.core.stopping, f"{name} started while stopping"
                    assert name == "registry" or "registry" in self.alive or self.core.been_ready
                    self.alive.add(name)
                case Signal(name, kill):
                    assert name in self.alive, f"{name} signalled while it does not run"
                    if kill:
                        self.killed.add(name)

    @rule(seconds=st.floats(0.01, 40))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        self._handle(Ticked())

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def becomes_ready(self, data: st.DataObject) -> None:
        self._handle(BecameReady(data.draw(st.sampled_from(sorted(self.alive)))))

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), code=st.sampled_from([0, 1, 2, -9, -15]))
    def exits(self, data: st.DataObject, code: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.alive)))
        self.alive.discard(name)
        self.killed.discard(name)
        self._handle(Exited(name, code))

    @precondition(lambda self: self.core.been_ready and len(self.layers) < 2 * len(NAMES))
    @rule(layer=st.sampled_from([1, 2]))
    def one_more(self, layer: int) -> None:
        name = f"more-{len(self.layers)}"
        self.layers[name] = layer
        self._handle(Added((Service(name, layer, grace_s=5),)))

    @precondition(lambda self: self.core.been_ready)
    @rule(data=st.data())
    def one_less(self, data: st.DataObject) -> None:
        names = [service.name for service in self.core.services if service.layer]
        if names:
            self._handle(Removed((data.draw(st.sampled_from(names)),)))

    @rule()
    def asked_to_stop(self) -> None:
        self._handle(StopAsked())

    @invariant()
    def done_means_nothing_runs(self) -> None:
        if self.core.done:
            assert not self.alive

    @invariant()
    def something_always_happens_next(self) -> None:
        """While it stops, the top layer has a deadline or has been killed; the others wait for it."""
        top = max((self.layers[name] for name in self.alive), default=0)
        topmost = {name for name in self.alive if self.layers[name] == top}
        if self.core.stopping and topmost - self.killed:
            assert self.core.next_due_s() < float("inf")

    def teardown(self) -> None:
        """From any state, asking to stop ends everything in bounded time."""
        self._handle(StopAsked())
        for _ in range(len(NAMES) + 1):
            self.now_s += 6
            self._handle(Ticked())
            for name in sorted(self.killed & self.alive):
                self.alive.discard(name)
                self._handle(Exited(name, -9))
            self.killed.clear()
        assert not self.alive
        assert self.core.done


TestSupervisor = SupervisorMachine.TestCase
TestSupervisor.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
