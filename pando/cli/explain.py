"""`pando admin explain`: why a request went where it went, as its router remembers it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pando.cli.errors import FAILED, CliError

if TYPE_CHECKING:
    from rich.table import Table

    from pando.v1 import inference_pb2

PIPE_COLUMNS = 200
_TERMS = ("queue", "prefill", "load", "transfer", "decode", "effort", "credit", "total")


def explain_command(
    context: typer.Context,
    request_id: Annotated[str, typer.Argument(help="id of a request: the header x-request-id of its answer")],
    router: Annotated[str, typer.Option(help="HOST:PORT of a router; default: all of the local cluster")] = "",
) -> None:
    """Show how a request was placed: candidates with their costs, the choice, and what was really reused."""
    options = context.obj
    addresses = [router] if router else _routers(options.run_dir)
    found = next((one for one in (_ask(to, request_id, options.timeout_s) for to in addresses) if one), None)
    if found is None:
        fix = "routers remember the last router.explain_requests of their requests"
        raise CliError(f"no router remembers the request {request_id!r}", fix=fix, code=FAILED)
    if options.as_json:
        from google.protobuf.json_format import MessageToDict  # noqa: PLC0415 - the other commands do not need it

        as_dict = MessageToDict(found, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
        print(json.dumps(as_dict, indent=2))
    else:
        _print(found)


def _routers(run_dir: Path) -> list[str]:
    from pando.cli.run_folder import RunFolder  # noqa: PLC0415 - the other commands do not need it
    from pando.cli.status import routers  # noqa: PLC0415 - imports gRPC

    state = RunFolder(run_dir).running()
    if state is None:
        raise CliError(f"nothing runs in {run_dir}", fix="pando up, or --router HOST:PORT", code=FAILED)
    return routers(state)


def _ask(address: str, request_id: str, timeout_s: float) -> inference_pb2.ExplainResponse | None:
    """What one router remembers; None when it remembers nothing or does not answer (which is told)."""
    import grpc  # noqa: PLC0415 - slow to import

    from pando.v1 import inference_pb2, inference_pb2_grpc  # noqa: PLC0415 - imports gRPC

    with grpc.insecure_channel(address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        try:
            answer: inference_pb2.ExplainResponse = stub.Explain(
                inference_pb2.ExplainRequest(request_id=request_id), timeout=timeout_s
            )
        except grpc.RpcError as error:
            print(f"{address}: {error.code().name}: {error.details()}", file=sys.stderr)
            return None
    return answer if answer.found else None


def _print(answer: inference_pb2.ExplainResponse) -> None:
    from rich.console import Console  # noqa: PLC0415 - slow to import

    console = Console(soft_wrap=True, width=None if sys.stdout.isatty() else PIPE_COLUMNS)
    console.print(f"request {answer.request_id}, policy {answer.policy}", highlight=False, markup=False)
    for decision in answer.decisions:
        for line in summary(decision):
            console.print(line, highlight=False, markup=False)
        console.print(costs(decision), highlight=False, markup=False)


def summary(decision: inference_pb2.Decision) -> list[str]:
    """One decision in words."""
    where = f"decode {decision.decode_worker}, prompt on {decision.prefill_worker or 'decode'} ({decision.reason})"
    sources = f", may fetch from {', '.join(decision.sources)}" if decision.sources else ""
    took = f"{decision.ttft_s * 1000:.0f} ms" if decision.ttft_s else "none came"
    reused = "unknown"
    if decision.HasField("reused"):
        tiers = [(field.name, value) for field, value in decision.reused.ListFields()]
        reused = ", ".join(f"{count} tokens in {tier}" for tier, count in tiers) or "nothing"
    return [
        f"choice {decision.choice}, attempt {decision.attempt}, {decision.age_s:.1f} s ago: {decision.outcome}",
        f"  {where}{sources}",
        f"  first token: expected {decision.expected_ttft_s * 1000:.0f} ms, {took}; "
        f"reused of {decision.num_tokens} tokens: {reused}",
    ]


def costs(decision: inference_pb2.Decision) -> Table:
    """The candidates of one decision, cheapest first within a role; times in milliseconds."""
    from rich.table import Table  # noqa: PLC0415 - slow to import

    table = Table("", "worker", "role", "held tokens", *(f"{name} ms" for name in _TERMS), box=None)
    for one in sorted(decision.candidates, key=lambda one: (one.role, one.total_s)):
        times = [f"{getattr(one, f'{name}_s') * 1000:.1f}" for name in _TERMS]
        table.add_row("*" if one.chosen else "", one.worker_id, one.role, str(one.cached_tokens), *times)
    return table
