"""`pando admin`: look into the workers of a running cluster, and change them while they run.

It speaks to the workers themselves: router and gateway do not know these calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from common.base.comma_list import split_list
from pando.cli.errors import BAD_INPUT, FAILED, CliError
from pando.cli.explain import explain_command
from pando.cli.role_check import lost_roles

if TYPE_CHECKING:
    from pando.cli import admin_calls

app = typer.Typer(name="admin", no_args_is_help=True)
failpoint_app = typer.Typer(name="failpoint", help="Make things go wrong on purpose.", no_args_is_help=True)
app.add_typer(failpoint_app, name="failpoint")
app.command("explain")(explain_command)

Worker = Annotated[str, typer.Option(help="worker id, HOST:PORT, or all")]
Prefetch = Annotated[list[str] | None, typer.Option(help="KEY=VALUE, several times: see docs/admin.md")]


@dataclass(slots=True, frozen=True)
class Connection:
    """The options that all commands share."""

    run_dir: Path
    registry: str
    cluster: str
    token_file: Path | None
    timeout_s: float
    as_json: bool


@app.callback()
def connection(
    context: typer.Context,
    *,
    run_dir: Annotated[Path, typer.Option(help="run folder of the local cluster")] = Path("run"),
    registry: Annotated[str, typer.Option(help="URL of a registry, instead of the run folder's")] = "",
    cluster: Annotated[str, typer.Option(help="name of the cluster on the registry")] = "pando",
    token_file: Annotated[Path | None, typer.Option(help="file with the operator token")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="seconds that each worker has to answer")] = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="machine-readable")] = False,
) -> None:
    """Look into running workers and change them; exit status 1 when any of them refused."""
    context.obj = Connection(run_dir, registry, cluster, token_file, timeout, as_json)


@app.command("tiers")
def tiers_command(context: typer.Context, worker: Worker = "all") -> None:
    """Show what each tier holds, and the policies in force."""
    _run(context, worker, "GetTiers", {})


@app.command("flush")
def flush_command(
    context: typer.Context,
    tier: Annotated[str, typer.Argument(help="l1, l2 or l3")],
    namespace: Annotated[str, typer.Option(help="hex of a namespace in l3; default: the worker's own")] = "",
    worker: Worker = "all",
) -> None:
    """Drop the cached blocks of a tier that nobody holds."""
    _run(context, worker, "Flush", {"tier": tier, "namespace": namespace})


@app.command("attach")
def attach_command(
    context: typer.Context,
    backend: Annotated[str, typer.Argument(help="kind of store, e.g. file")],
    setting: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE for the store, several times")] = None,
    prefetch: Prefetch = None,
    worker: Worker = "all",
) -> None:
    """Attach a store as L3."""
    fields = {"backend": backend, "settings": _pairs(setting), "prefetch": _pairs(prefetch)}
    _run(context, worker, "AttachStorage", fields)


@app.command("detach")
def detach_command(context: typer.Context, worker: Worker = "all") -> None:
    """Detach L3."""
    _run(context, worker, "DetachStorage", {})


@app.command("policy")
def policy_command(
    context: typer.Context,
    *,
    write: Annotated[str, typer.Option(help="write_through, write_through_selective or write_back")] = "",
    l1_eviction: Annotated[str, typer.Option(help="lru, lfu, slru or priority")] = "",
    l2_eviction: Annotated[str, typer.Option(help="lru, lfu, slru or priority")] = "",
    prefetch: Prefetch = None,
    worker: Worker = "all",
) -> None:
    """Change policies, all that are given or none, and show those in force then."""
    given = {"write_policy": write, "l1_eviction_policy": l1_eviction, "l2_eviction_policy": l2_eviction}
    fields: dict[str, Any] = {name: value for name, value in given.items() if value}
    if prefetch:
        fields["prefetch"] = _pairs(prefetch)
    if not fields:
        raise CliError("there is nothing to change", fix="pando admin tiers shows what is in force", code=BAD_INPUT)
    _run(context, worker, "SetPolicies", fields)


@app.command("roles")
def roles_command(context: typer.Context, worker: Worker = "all") -> None:
    """Show which roles the workers have, and what runs for each."""
    _run(context, worker, "GetRoles", {})


@app.command("role")
def role_command(
    context: typer.Context,
    worker: Annotated[str, typer.Argument(help="worker id, HOST:PORT, or all")],
    roles: Annotated[str, typer.Argument(help="prefill, decode, or prefill,decode")],
    *,
    drain_s: Annotated[
        float | None, typer.Option(help="seconds that running requests of a role given up have to end")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="even if no worker were left with a role")] = False,
) -> None:
    """Give a running worker other roles; it keeps its cache, and what runs on it ends or is moved."""
    names = split_list(roles)
    if not force:
        _check_roles_stay(context, worker, names)
    fields: dict[str, Any] = {"roles": names}
    if drain_s is not None:
        fields["drain_s"] = drain_s
    _run(context, worker, "SetRole", fields)


def _check_roles_stay(context: typer.Context, worker: str, roles: Sequence[str]) -> None:
    """Raise CliError when a change of roles leaves the cluster without one, or when that cannot be known."""
    from pando.cli import admin_calls  # noqa: PLC0415 - imports gRPC and redis

    if ":" in worker:
        raise CliError("what roles others have is not known without a registry", fix="--force", code=BAD_INPUT)
    before = admin_calls.roles_by_worker(_fleet(context))
    lost = lost_roles(before, before if worker == "all" else [worker], roles)
    if lost:
        fix = "give it to another worker first, or --force"
        raise CliError(f"no worker would be left to {' or to '.join(lost)}", fix=fix, code=BAD_INPUT)


@failpoint_app.command("list")
def list_command(context: typer.Context, worker: Worker = "all") -> None:
    """Show all failpoints, and what is armed."""
    _run(context, worker, "ListFailpoints", {})


@failpoint_app.command("arm")
def arm_command(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="failpoint; with * at its end all that begin like it")],
    rule: Annotated[str, typer.Argument(help="e.g. 30%flip, '3*fail', 'delay(0.5)': see docs/failpoints.md")],
    worker: Worker = "all",
) -> None:
    """Arm a failpoint on workers that were started with --worker.enable-failpoints."""
    _run(context, worker, "ArmFailpoint", {"name": name, "rule": rule})


@failpoint_app.command("disarm")
def disarm_command(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="the name that was armed")] = "",
    everything: Annotated[bool, typer.Option("--all", help="all that were armed by arm")] = False,
    worker: Worker = "all",
) -> None:
    """Take back what arm did."""
    if bool(name) == everything:
        raise CliError("give either the name of a failpoint or --all", code=BAD_INPUT)
    _run(context, worker, "DisarmFailpoint", {"name": name, "all": everything})


def _pairs(items: Sequence[str] | None) -> dict[str, str]:
    pairs = [item.partition("=") for item in items or ()]
    for name, equals, _ in pairs:
        if not name or not equals:
            raise CliError(f"{name!r} is not KEY=VALUE", code=BAD_INPUT)
    return {name.replace("-", "_"): value for name, _, value in pairs}


def _fleet(context: typer.Context) -> admin_calls.Fleet:
    from pando.cli import admin_calls  # noqa: PLC0415 - imports gRPC and redis

    options: Connection = context.obj
    return admin_calls.Fleet(options.run_dir, options.registry, options.cluster, options.token_file, options.timeout_s)


def _run(context: typer.Context, worker: str, method: str, fields: dict[str, Any]) -> None:
    from pando.cli import admin_calls, admin_tables  # noqa: PLC0415 - imports gRPC and redis

    answers = admin_calls.ask(_fleet(context), worker, method, fields)
    admin_tables.show(method, answers, as_json=context.obj.as_json)
    if any(answer.message is None for answer in answers):
        raise typer.Exit(FAILED)
