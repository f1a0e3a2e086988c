"""`pando store`: look into the KV store of a running cluster, check it, and remove from it.

It speaks to the store's processes themselves, which it finds in the registry; several are asked at once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from pando.cli.errors import BAD_INPUT, FAILED, CliError

app = typer.Typer(name="store", no_args_is_help=True)

Namespace = Annotated[str, typer.Option(help="hex of a namespace; default: all")]


@app.callback()
def connection(
    context: typer.Context,
    *,
    run_dir: Annotated[Path, typer.Option(help="run folder of the local cluster")] = Path("run"),
    registry: Annotated[str, typer.Option(help="URL of a registry, instead of the run folder's")] = "",
    cluster: Annotated[str, typer.Option(help="name of the cluster on the registry")] = "pando",
    node: Annotated[str, typer.Option(help="node id, HOST:PORT, or all")] = "all",
    timeout: Annotated[float, typer.Option(min=0.1, help="seconds for each call")] = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="machine-readable")] = False,
) -> None:
    """Look into the KV store; exit status 1 when a node does not answer or something is damaged."""
    from pando.cli.store_calls import StoreFleet  # noqa: PLC0415 - imports gRPC and redis

    context.obj = (StoreFleet(run_dir, registry, cluster, node, timeout), as_json)


@app.command("stat")
def stat_command(context: typer.Context) -> None:
    """Show what each process of the store is and holds."""
    from pando.cli import store_calls, store_tables  # noqa: PLC0415

    fleet, as_json = context.obj
    answers = store_calls.stats(fleet)
    if as_json:
        print(json.dumps([answer.as_dict() for answer in answers], indent=2))
    else:
        store_tables.show_stats(answers)
    _exit([answer.error for answer in answers])


@app.command("ls")
def ls_command(
    context: typer.Context,
    namespace: Namespace = "",
    limit: Annotated[int, typer.Option(min=1, help="most objects of each node")] = 100,
) -> None:
    """List objects: key, size, tiers."""
    from pando.cli import store_calls, store_tables  # noqa: PLC0415

    fleet, as_json = context.obj
    answers = store_calls.objects(fleet, _namespace(namespace), limit)
    if as_json:
        print(json.dumps([answer.as_dict() for answer in answers], indent=2))
    else:
        store_tables.show_objects(answers)
    _exit([answer.error for answer in answers])


@app.command("verify")
def verify_command(context: typer.Context, namespace: Namespace = "") -> None:
    """Read every object again and compare it with its checksum; damaged ones are removed."""
    from pando.cli import store_calls  # noqa: PLC0415

    fleet, as_json = context.obj
    answers = store_calls.verify(fleet, _namespace(namespace))
    if as_json:
        print(json.dumps([answer.as_dict() for answer in answers], indent=2))
    else:
        for answer in answers:
            if not answer.error:
                print(
                    f"{answer.node_id}: {answer.num_checked} objects checked, {len(answer.damaged)} damaged and removed"
                )
            for key in answer.damaged:
                print(f"  {key}")
    damaged = [f"{answer.node_id}: damaged objects" for answer in answers if answer.damaged]
    _exit([answer.error for answer in answers] + damaged)


@app.command("rm")
def rm_command(
    context: typer.Context,
    namespace: Annotated[str, typer.Argument(help="hex of the namespace, as ls shows it")],
) -> None:
    """Remove a namespace from the store. What is being read stays readable until that is over."""
    from pando.cli import store_calls  # noqa: PLC0415

    fleet, as_json = context.obj
    answers = store_calls.remove(fleet, _namespace(namespace))
    if as_json:
        print(json.dumps([answer.as_dict() for answer in answers], indent=2))
    else:
        for answer in answers:
            if not answer.error:
                print(f"{answer.node_id}: {answer.num_removed} objects removed")
    _exit([answer.error for answer in answers])


def _namespace(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise CliError(f"{text!r} is not hex", fix="pando store ls shows namespaces", code=BAD_INPUT) from error


def _exit(errors: list[str]) -> None:
    from pando.cli.store_tables import complain  # noqa: PLC0415

    if complain(errors):
        raise typer.Exit(FAILED)
