"""Roles of a worker: what is new is refused at once, what runs gets its time, and a role that comes back keeps it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import pytest

from common.base.errors import InvalidRequest, Leg, PandoError, WrongRole
from common.base.roles import DECODE, PREFILL
from common.worker.roles import WorkerRoles
from tests.support.worker_rig import Listener, make_request, running_core


@dataclass
class Failures:
    """What the roles wanted failed."""

    ids: list[str] = field(default_factory=list)
    errors: list[PandoError] = field(default_factory=list)
    told: asyncio.Event = field(default_factory=asyncio.Event)

    def __call__(self, make_error: Callable[[], PandoError], request_ids: Collection[str]) -> None:
        self.ids += sorted(request_ids)
        self.errors.append(make_error())
        self.told.set()


def make_roles(*names: str) -> tuple[WorkerRoles, Failures]:
    failures = Failures()
    return WorkerRoles("w", names, failures, drain_s=60.0, clock=iter(range(100)).__next__), failures


async def test_a_role_that_it_has_not_is_refused_with_its_leg() -> None:
    roles, _ = make_roles(PREFILL)
    with roles.running(PREFILL, "a"):
        assert (roles.num_running(PREFILL), roles.num_running(DECODE)) == (1, 0)
    assert roles.num_running(PREFILL) == 0
    for role, leg in ((DECODE, Leg.DECODE), (PREFILL, Leg.PREFILL)):
        roles.set([DECODE if role == PREFILL else PREFILL])
        with pytest.raises(WrongRole) as refused, roles.running(role, "b"):
            pytest.fail("it runs")
        assert refused.value.leg is leg


async def test_a_change_is_counted_and_dated_once() -> None:
    roles, _ = make_roles(PREFILL)
    assert (roles.names, roles.changed_s, roles.num_changes) == ((PREFILL,), 0.0, 0)
    assert roles.set([DECODE, PREFILL]) == (PREFILL,)
    assert roles.set([PREFILL, DECODE]) == (PREFILL, DECODE), "no change"
    assert (roles.names, roles.changed_s, roles.num_changes) == ((PREFILL, DECODE), 1.0, 1)


@pytest.mark.parametrize(
    ("names", "drain_s", "param"),
    [([], 1.0, "roles"), (["router"], 1.0, "roles"), ([DECODE], -1.0, "drain_s"), ([DECODE], float("nan"), "drain_s")],
)
async def test_what_is_wrong_changes_nothing(names: list[str], drain_s: float, param: str) -> None:
    roles, _ = make_roles(PREFILL)
    with pytest.raises(InvalidRequest) as refused:
        roles.set(names, drain_s)
    assert (refused.value.param, roles.names, roles.num_changes) == (param, (PREFILL,), 0)


async def test_what_still_runs_when_the_time_is_up_is_failed() -> None:
    roles, failures = make_roles(PREFILL, DECODE)
    with roles.running(DECODE, "stays"), roles.running(PREFILL, "other"):
        with roles.running(DECODE, "ends"):
            roles.set([PREFILL], 0.0)
        await failures.told.wait()
    assert failures.ids == ["stays"]
    assert [(type(error), error.leg) for error in failures.errors] == [(WrongRole, Leg.DECODE)]


async def test_a_role_that_comes_back_in_time_costs_nobody_anything() -> None:
    roles, failures = make_roles(PREFILL, DECODE)
    with roles.running(DECODE, "stays"):
        roles.set([PREFILL], 0.0)
        roles.set([PREFILL, DECODE])
        for _ in range(3):
            await asyncio.sleep(0)
    assert not failures.errors


async def test_a_core_fails_only_those_of_the_role() -> None:
    async with running_core() as rig:
        roles = WorkerRoles("w", [PREFILL, DECODE], rig.core.fail_all, drain_s=60.0)
        rig.engine.gate.clear()
        listeners = {name: Listener() for name in ("decodes", "prefills")}
        for name, listener in listeners.items():
            rig.core.add(make_request(name, range(1, 6), max_tokens=2), listener)
        with roles.running(DECODE, "decodes"), roles.running(PREFILL, "prefills"):
            roles.set([PREFILL], 0.0)
            await listeners["decodes"].wait()
            rig.engine.gate.set()
            await listeners["prefills"].wait()
        assert isinstance(listeners["decodes"].errors[0], WrongRole)
        assert not listeners["prefills"].errors and len(listeners["prefills"].tokens) == 2
