"""The supervisor's core: what it starts, restarts and stops, on a clock made of numbers."""

from __future__ import annotations

from dataclasses import replace

from pando.cli.supervisor_core import (
    Action,
    Added,
    BecameReady,
    Began,
    Exited,
    Limits,
    Note,
    Phase,
    Removed,
    Service,
    Signal,
    Start,
    StopAsked,
    SupervisorCore,
    Ticked,
)

LIMITS = Limits(start_timeout_s=10, first_pause_s=1, longest_pause_s=4, stable_after_s=30, restart_limit=3)


def make_core(*layers: tuple[str, int]) -> SupervisorCore:
    return SupervisorCore([Service(name, layer, grace_s=5) for name, layer in layers], LIMITS)


def usual() -> SupervisorCore:
    return make_core(("registry", 0), ("worker", 1), ("router", 2), ("gateway", 3))


def started(core: SupervisorCore, now_s: float = 0.0) -> SupervisorCore:
    core.handle(Began(), now_s)
    for service in core.services:
        core.handle(BecameReady(service.name), now_s)
    assert core.state == "ready"
    return core


def starts(actions: list[Action]) -> list[str]:
    return [action.name for action in actions if isinstance(action, Start)]


def signals(actions: list[Action]) -> list[tuple[str, bool]]:
    return [(action.name, action.kill) for action in actions if isinstance(action, Signal)]


def phase(core: SupervisorCore, name: str) -> Phase:
    return next(service.phase for service in core.services if service.name == name)


def test_first_layer_starts_alone_and_the_rest_together():
    core = usual()
    assert starts(core.handle(Began(), 0)) == ["registry"]
    assert starts(core.handle(BecameReady("registry"), 1)) == ["worker", "router", "gateway"]
    assert core.state == "starting"


def test_all_of_the_first_layer_must_be_ready_before_the_rest_starts():
    core = make_core(("a", 0), ("b", 0), ("c", 1))
    assert starts(core.handle(Began(), 0)) == ["a", "b"]
    assert starts(core.handle(BecameReady("a"), 0)) == []
    assert starts(core.handle(BecameReady("b"), 0)) == ["c"]


def test_ready_when_every_service_is_ready():
    core = started(usual())
    assert core.been_ready
    assert core.failure == ""


def test_exit_while_starting_ends_everything_with_the_reason():
    core = usual()
    core.handle(Began(), 0)
    core.handle(BecameReady("registry"), 0)
    actions = core.handle(Exited("worker", 2), 1)
    assert Note("worker ended with status 2 while starting") in actions
    assert starts(actions) == []
    assert signals(actions) == [("gateway", False)]
    for name, left in (("gateway", "router"), ("router", "registry")):
        assert signals(core.handle(Exited(name, 0), 2)) == [(left, False)]
    core.handle(Exited("registry", 0), 3)
    assert core.done
    assert core.state == "failed"
    assert phase(core, "worker") is Phase.FAILED


def test_start_timeout_ends_the_first_start():
    core = usual()
    core.handle(Began(), 0)
    assert core.next_due_s() == 10
    assert core.handle(Ticked(), 9.9) == []
    actions = core.handle(Ticked(), 10)
    assert actions == [Note("registry was not ready within 10 s"), Signal("registry", kill=False)]
    core.handle(Exited("registry", -15), 11)
    assert core.state == "failed"


def test_restart_at_once_and_then_after_a_pause_that_doubles_up_to_its_bound():
    limits = replace(LIMITS, restart_limit=5)
    core = started(SupervisorCore([Service("registry", 0, grace_s=5), Service("worker", 1, grace_s=5)], limits))
    now_s, pauses = 0.0, []
    for _ in range(5):
        actions = core.handle(Exited("worker", -9), now_s)
        assert starts(actions) == []
        assert core.state == "degraded"
        pauses.append(core.next_due_s() - now_s if core.next_due_s() < 30 else None)
        now_s = next(service.due_s for service in core.services if service.name == "worker")
        assert starts(core.handle(Ticked(), now_s)) == ["worker"]
    assert pauses == [0, 1, 2, 4, 4]


def test_given_up_after_the_limit_of_exits_in_a_row():
    core = started(usual())
    now_s = 0.0
    for _ in range(3):
        core.handle(Exited("worker", 1), now_s)
        now_s += 4
        assert starts(core.handle(Ticked(), now_s)) == ["worker"]
    actions = core.handle(Exited("worker", 1), now_s)
    assert actions == [Note("worker ended with status 1; given up after 4 exits in a row")]
    assert starts(core.handle(Ticked(), now_s + 1000)) == []
    assert core.state == "degraded"


def test_a_stable_life_forgets_earlier_exits():
    core = started(usual())
    core.handle(Exited("worker", 1), 0)
    core.handle(Ticked(), 1)
    core.handle(BecameReady("worker"), 2)
    core.handle(Ticked(), 32)
    core.handle(Exited("worker", 1), 40)
    assert phase(core, "worker") is Phase.BACKOFF
    assert core.next_due_s() == 40


def test_an_unstable_life_does_not_forget():
    core = started(usual())
    core.handle(Exited("worker", 1), 0)
    core.handle(Ticked(), 1)
    core.handle(BecameReady("worker"), 2)
    core.handle(Exited("worker", 1), 10)
    assert core.next_due_s() == 11


def test_a_restarted_service_that_hangs_is_killed_and_started_again():
    core = started(usual())
    core.handle(Exited("worker", 1), 0)
    core.handle(Ticked(), 1)
    assert signals(core.handle(Ticked(), 11)) == [("worker", True)]
    core.handle(Exited("worker", -9), 11)
    assert starts(core.handle(Ticked(), 13)) == ["worker"]
    assert core.failure == ""


def test_stop_goes_down_layer_by_layer():
    core = started(make_core(("registry", 0), ("a", 1), ("b", 1), ("gateway", 3)))
    assert signals(core.handle(StopAsked(), 0)) == [("gateway", False)]
    assert signals(core.handle(Exited("gateway", 0), 1)) == [("a", False), ("b", False)]
    assert signals(core.handle(Exited("a", 0), 2)) == []
    assert signals(core.handle(Exited("b", 0), 2)) == [("registry", False)]
    assert not core.done
    core.handle(Exited("registry", 0), 3)
    assert core.done
    assert core.state == "stopped"


def test_a_service_that_outlives_its_grace_time_is_killed_once():
    core = started(make_core(("a", 0)))
    core.handle(StopAsked(), 0)
    assert signals(core.handle(Ticked(), 4.9)) == []
    assert signals(core.handle(Ticked(), 5)) == [("a", True)]
    assert signals(core.handle(Ticked(), 6)) == []


def test_asked_twice_kills_at_once():
    core = started(make_core(("a", 0), ("b", 1)))
    core.handle(StopAsked(), 0)
    assert signals(core.handle(StopAsked(), 1)) == [("a", True), ("b", True)]


def test_stop_during_a_pause_starts_nothing_more():
    core = started(make_core(("a", 0), ("b", 1)))
    core.handle(Exited("b", 1), 0)
    assert signals(core.handle(StopAsked(), 0.5)) == [("a", False)]
    assert starts(core.handle(Ticked(), 100)) == []
    core.handle(Exited("a", 0), 100)
    assert core.done


def test_stop_before_anything_but_the_first_layer_runs():
    core = usual()
    core.handle(Began(), 0)
    assert signals(core.handle(StopAsked(), 0)) == [("registry", False)]
    core.handle(Exited("registry", 0), 0)
    assert core.done
    assert core.state == "stopped"


def test_late_readiness_changes_nothing_once_it_stops():
    core = usual()
    core.handle(Began(), 0)
    core.handle(StopAsked(), 0)
    assert core.handle(BecameReady("registry"), 1) == []
    assert phase(core, "registry") is Phase.STOPPING


def test_a_service_that_is_added_starts_at_once_and_is_restarted_like_others():
    core = started(usual())
    assert starts(core.handle(Added((Service("more", 1, grace_s=5),)), 10)) == ["more"]
    assert core.state == "degraded"
    core.handle(BecameReady("more"), 11)
    assert core.state == "ready"
    core.handle(Exited("more", -9), 12)
    assert starts(core.handle(Ticked(), 13)) == ["more"]


def test_a_service_that_is_removed_is_asked_to_end_and_forgotten():
    core = started(make_core(("a", 0), ("b", 1), ("c", 1)))
    assert signals(core.handle(Removed(("c",)), 10)) == [("c", False)]
    assert core.handle(Removed(("c",)), 10) == [], "it has been asked"
    assert signals(core.handle(Ticked(), 15)) == [("c", True)], "its grace time is over"
    assert starts(core.handle(Exited("c", -9), 15)) == []
    assert [service.name for service in core.services] == ["a", "b"] and core.state == "ready"


def test_what_does_not_run_is_removed_without_a_signal():
    core = started(make_core(("a", 0), ("b", 1)))
    core.handle(Exited("b", 1), 0)
    assert core.handle(Removed(("b",)), 0.5) == []
    assert starts(core.handle(Ticked(), 100)) == [] and len(core.services) == 1


def test_while_it_stops_nothing_is_added_or_removed():
    core = started(make_core(("a", 0), ("b", 1)))
    core.handle(Removed(("b",)), 0)
    core.handle(StopAsked(), 0)
    assert core.handle(Added((Service("c", 1, grace_s=5),)), 1) == core.handle(Removed(("a",)), 1) == []
    core.handle(Exited("b", 0), 1)
    core.handle(Exited("a", 0), 1)
    assert core.done


def test_what_was_removed_is_killed_in_its_time_though_all_is_stopped_meanwhile():
    core = started(make_core(("a", 0), ("b", 1), ("c", 1)))
    core.handle(Removed(("c",)), 0)
    assert signals(core.handle(StopAsked(), 3)) == [("b", False)], "c has been asked"
    assert signals(core.handle(Ticked(), 5)) == [("c", True)]
    assert signals(core.handle(Ticked(), 8)) == [("b", True)]
