"""The `pando` command. Heavy modules are imported by the commands that need them, so that `pando --help` is quick."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pando.cli import admin, launch, model, store
from pando.cli.errors import CliError

DEFAULT_MODEL = Path("models/SmolLM2-135M-Instruct")
_PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True}

app = typer.Typer(
    name="pando",
    help="LLM serving cluster in which every token's KV is computed once and reused everywhere.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(model.app, name="model")
app.add_typer(admin.app, name="admin")
app.add_typer(store.app, name="store")
app.command("launch", context_settings=_PASS_THROUGH)(launch.launch_command)


class Profile(StrEnum):
    """How the work is split."""

    PD = "pd"
    UNIFIED = "unified"


class Store(StrEnum):
    """Whether there is one."""

    ON = "on"
    OFF = "off"


RunDir = Annotated[Path, typer.Option(help="folder for logs, state and lock")]
Url = Annotated[str, typer.Option(help="gateway to talk to; default: the one in the run folder")]


@app.command("up", context_settings=_PASS_THROUGH)
def up_command(
    context: typer.Context,
    *,
    model_path: Annotated[Path, typer.Option(help="model folder")] = DEFAULT_MODEL,
    profile: Annotated[Profile, typer.Option(help="pd: prefill and decode apart; unified: both in each")] = Profile.PD,
    prefill_workers: Annotated[int, typer.Option(help="prefill processes (profile pd)")] = 1,
    decode_workers: Annotated[int, typer.Option(help="decode (or unified) processes")] = 1,
    routers: Annotated[int, typer.Option(help="router processes; the gateway uses all")] = 1,
    host: Annotated[str, typer.Option(help="address of the HTTP gateway; loopback only")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="HTTP port; 0 picks a free one")] = 30000,
    router_port: Annotated[int, typer.Option(help="gRPC port of the (first) router; 0 picks a free one")] = 50051,
    transport: Annotated[str, typer.Option(help="KV transports in order of preference, e.g. shm,tcp")] = "",
    registry: Annotated[str, typer.Option(help="URL of a Redis server to use instead of the embedded one")] = "",
    store: Annotated[Store, typer.Option(help="KV store behind the workers, kept in the run folder")] = Store.ON,
    run_dir: RunDir = Path("run"),
    detach: Annotated[bool, typer.Option("--detach", help="return when it is ready, leave it running")] = False,
    start_timeout: Annotated[float, typer.Option(help="seconds each process has to become ready")] = 120.0,
) -> None:
    """Start a local cluster.

    Any setting of any service can be given as --section.key value, for example --log.level debug or
    --worker.chunked-prefill-size 256; `python -m services.decode --help` (prefill, router, gateway) lists them.
    """
    from rich.console import Console

    from pando.cli.flags import parse_settings
    from pando.cli.up import UpRequest, up

    request = UpRequest(
        model_path=model_path,
        run_dir=run_dir,
        profile=profile.value,
        prefill_workers=prefill_workers,
        decode_workers=decode_workers,
        routers=routers,
        host=host,
        port=port,
        router_port=router_port,
        registry=registry,
        store=store is Store.ON,
        worker_flags=("--transport", transport) if transport else (),
        settings=parse_settings(context.args),
        start_timeout_s=start_timeout,
    )
    raise typer.Exit(up(request, Console(soft_wrap=True), detach=detach))


@app.command("down")
def down_command(run_dir: RunDir = Path("run")) -> None:
    """Stop the cluster of a run folder, and nothing else."""
    from rich.console import Console

    from pando.cli.up import down

    raise typer.Exit(down(run_dir, Console(soft_wrap=True)))


@app.command("scale")
def scale_command(
    counts: Annotated[list[str], typer.Argument(help="KIND=COUNT, kinds as in the workers' names: prefill=2 decode=3")],
    run_dir: RunDir = Path("run"),
    force: Annotated[bool, typer.Option("--force", help="even if no worker were left with a role")] = False,
    timeout: Annotated[float, typer.Option(min=1, help="seconds to wait until it is so")] = 120.0,
) -> None:
    """Start more workers in a local cluster that runs, or let some leave; no request is lost."""
    from rich.console import Console

    from pando.cli.resize import parse_counts
    from pando.cli.scale import scale

    raise typer.Exit(scale(run_dir, parse_counts(counts), Console(soft_wrap=True), force=force, patience_s=timeout))


@app.command("status")
def status_command(
    run_dir: RunDir = Path("run"),
    as_json: Annotated[bool, typer.Option("--json", help="machine-readable")] = False,
) -> None:
    """Show processes, workers, blocks and whether the cluster is ready; exit status 1 when it is not."""
    from pando.cli.status import status

    raise typer.Exit(status(run_dir, as_json=as_json))


@app.command("chat")
def chat_command(
    url: Url = "",
    system: Annotated[str, typer.Option(help="system message")] = "",
    max_tokens: Annotated[int, typer.Option(help="most tokens of an answer")] = 512,
    temperature: Annotated[float, typer.Option(help="0 is greedy")] = 0.2,
    run_dir: RunDir = Path("run"),
) -> None:
    """Chat with the model in the terminal; /new starts over, Ctrl-D leaves."""
    from pando.cli.chat import ChatOptions, chat

    raise typer.Exit(chat(ChatOptions(url, run_dir, max_tokens, temperature), system))


@app.command("generate")
def generate_command(
    prompt: Annotated[str, typer.Argument(help="prompt; - reads standard input")],
    *,
    url: Url = "",
    raw: Annotated[bool, typer.Option("--raw", help="continue the text as it is, without the chat template")] = False,
    max_tokens: Annotated[int, typer.Option(help="most tokens of the answer")] = 256,
    temperature: Annotated[float, typer.Option(help="0 is greedy")] = 0.0,
    run_dir: RunDir = Path("run"),
) -> None:
    """Answer one prompt and print the text as it comes."""
    from pando.cli.chat import ChatOptions, generate

    text = sys.stdin.read() if prompt == "-" else prompt
    raise typer.Exit(generate(ChatOptions(url, run_dir, max_tokens, temperature), text, raw=raw))


@app.command("doctor")
def doctor_command(model_path: Annotated[Path, typer.Option(help="model folder")] = DEFAULT_MODEL) -> None:
    """Check what this machine offers: versions, CPU, compiler, kernels, transports, model, ports."""
    from pando.cli.doctor import doctor

    raise typer.Exit(doctor(model_path))


def main() -> None:
    """Run the command line; an operating error is one line and its exit status."""
    try:
        app()
    except CliError as error:
        print(f"pando: {error}", file=sys.stderr)
        raise SystemExit(error.code) from None


if __name__ == "__main__":
    main()
