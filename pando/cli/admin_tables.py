"""What workers answered to an operator, as tables and lines for people, or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from google.protobuf.json_format import MessageToDict
from rich.console import Console, RenderableType
from rich.table import Table

from pando.cli.admin_calls import Answer
from pando.v1 import admin_pb2

PIPE_COLUMNS = 200
"""Width of a table that does not go to a terminal."""
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_TIER_COLUMNS = ("worker", "tier", "in", "free/cached/held", "objects", "size", "eviction", "to write", "hit tokens")


def show(method: str, answers: Sequence[Answer], *, as_json: bool) -> None:
    """Print what was answered, and on standard error who refused and why."""
    if as_json:
        print(json.dumps({answer.worker_id: _as_dict(answer) for answer in answers}, indent=2))
        return
    good = {answer.worker_id: answer.message for answer in answers if answer.message is not None}
    console = Console(soft_wrap=True, width=None if sys.stdout.isatty() else PIPE_COLUMNS)
    for renderable in _RENDERERS[method](good) if good else ():
        console.print(renderable, highlight=False, markup=False)
    for answer in answers:
        if answer.message is None:
            print(f"{answer.worker_id}: {answer.error}", file=sys.stderr)


def human_bytes(num_bytes: int) -> str:
    """A size in the unit that keeps it short."""
    value, unit = float(num_bytes), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.4g} {_UNITS[unit]}"


def _tiers(answers: Mapping[str, Any]) -> Iterator[RenderableType]:
    table = Table(*_TIER_COLUMNS, box=None)
    for worker_id, answer in answers.items():
        for tier in answer.tiers:
            table.add_row(worker_id, *_tier_cells(tier))
    yield table
    yield from _policies(answers)


def _tier_cells(tier: admin_pb2.TierInfo) -> tuple[str, ...]:
    blocks = f"{tier.blocks_free}/{tier.blocks_cached}/{tier.blocks_held}" if tier.blocks_total else "-"
    size = human_bytes(tier.bytes) + (f" of {human_bytes(tier.capacity_bytes)}" if tier.capacity_bytes else "")
    objects, size = ("-", "-") if tier.blocks_total else (str(tier.objects), size)
    eviction = tier.eviction_policy or "-"
    return tier.tier, tier.backend, blocks, objects, size, eviction, str(tier.pending_writes), str(tier.hit_tokens)


def _policies(answers: Mapping[str, Any]) -> Iterator[RenderableType]:
    for worker_id, answer in answers.items():
        now: admin_pb2.Policies = answer.policies
        prefetch = ", ".join(f"{field.name} {_short(value)}" for field, value in now.prefetch.ListFields())
        yield f"{worker_id}: {now.write_policy}; eviction {_eviction(now)}; prefetch: {prefetch}"


def _eviction(policies: admin_pb2.Policies) -> str:
    return f"l1 {policies.l1_eviction_policy}, l2 {policies.l2_eviction_policy}"


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _flushed(answers: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield from (f"{worker_id}: {answer.num_blocks_dropped} blocks dropped" for worker_id, answer in answers.items())


def _done(answers: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield from (f"{worker_id}: done" for worker_id in answers)


def _roles(answers: Mapping[str, Any]) -> Iterator[RenderableType]:
    table = Table("worker", "roles", "prefill requests", "decode requests", "changed", box=None)
    for worker_id, answer in answers.items():
        table.add_row(worker_id, *_role_cells(answer))
    yield table


def _role_cells(answer: admin_pb2.GetRolesResponse) -> tuple[str, ...]:
    changed = f"{answer.changed_s:.0f} s ago" if answer.changed_s else "-"
    return ",".join(answer.roles), str(answer.num_prefill), str(answer.num_decode), changed


def _role_set(answers: Mapping[str, Any]) -> Iterator[RenderableType]:
    for worker_id, answer in answers.items():
        left = [
            f"{count} {role} requests end or move"
            for role, count in (("prefill", answer.roles.num_prefill), ("decode", answer.roles.num_decode))
            if count and role not in answer.roles.roles
        ]
        yield "; ".join([f"{worker_id}: {','.join(answer.before)} -> {','.join(answer.roles.roles)}", *left])


def _failpoints(answers: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Each failpoint once, with the sums of all workers, and then what is armed."""
    points: dict[str, admin_pb2.Failpoint] = {}
    for point in (point for answer in answers.values() for point in answer.failpoints):
        known = points.setdefault(point.name, admin_pb2.Failpoint(kind=point.kind, description=point.description))
        known.hits += point.hits
        known.fired += point.fired
    table = Table("failpoint", "kind", "hits", "faults", "hit when", box=None)
    for name, point in sorted(points.items()):
        table.add_row(name, point.kind, str(point.hits), str(point.fired), point.description)
    yield table
    armed = {worker_id: answer.armed for worker_id, answer in answers.items()}
    yield _armed_table("armed", armed) if any(armed.values()) else "nothing is armed"


def _armed(answers: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield _armed_table("armed", {worker_id: [answer.armed] for worker_id, answer in answers.items()})


def _disarmed(answers: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield from (f"{worker_id}: {answer.num_disarmed} disarmed" for worker_id, answer in answers.items())
    left = {worker_id: answer.armed for worker_id, answer in answers.items()}
    if any(left.values()):
        yield _armed_table("still armed", left)


def _armed_table(title: str, armed: Mapping[str, Iterable[admin_pb2.ArmedFailpoint]]) -> Table:
    table = Table("worker", title, "by", "rule", box=None)
    for worker_id, ones in armed.items():
        for one in ones:
            table.add_row(worker_id, one.name, one.source, one.rule)
    return table


def _as_dict(answer: Answer) -> dict[str, Any]:
    if answer.message is None:
        return {"error": answer.error}
    return MessageToDict(answer.message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


_RENDERERS: Mapping[str, Callable[[Mapping[str, Any]], Iterator[RenderableType]]] = {
    "GetTiers": _tiers,
    "Flush": _flushed,
    "AttachStorage": _done,
    "DetachStorage": _done,
    "SetPolicies": _policies,
    "GetRoles": _roles,
    "SetRole": _role_set,
    "ListFailpoints": _failpoints,
    "ArmFailpoint": _armed,
    "DisarmFailpoint": _disarmed,
}
