"""A real router beside one that forwards blindly, over the same fake workers: what planning adds to a request.

Fake workers (steps of 50 ms), each router, and the clients are processes of their own. Clients ask in a closed loop;
both routers take turns, a single client every few requests, so that a busy machine slows both alike. What is compared
is the time from the call to the first frame less the worker's step, the whole answer, and the CPU time of each router's
process (pings and gauges of the real one included; a busy machine hardly touches it). Prompts come as token ids:
nothing is tokenised, but hashed.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import psutil

from pando.v1 import inference_pb2, inference_pb2_grpc, types_pb2, worker_pb2, worker_pb2_grpc

NUM_WORKERS = 4
STEP_S = 0.05
READY_S = 60.0
TURN_REQUESTS = 4
"""Requests of a single client in a row at one router: so few that both routers meet the same moods of the machine."""


@dataclass(slots=True, frozen=True)
class LiveShape:
    """Sizes of a measurement: rounds, requests of each round and number of clients, tokens."""

    num_rounds: int = 5
    num_requests: int = 48
    prompt_tokens: int = 480
    output_tokens: int = 4


class BlindRouter(inference_pb2_grpc.InferenceServicer):
    """Sends each request to the next worker and passes its frames on."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._stubs = [worker_pb2_grpc.DecodeServiceStub(grpc.aio.insecure_channel(one)) for one in addresses]
        self._count = 0

    async def Generate(
        self, request: inference_pb2.GenerateRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        """See the class."""
        self._count += 1
        call = worker_pb2.DecodeServiceGenerateRequest(
            request=worker_pb2.WorkerRequest(
                request_id=request.request_id, prompt_token_ids=request.token_ids.ids, sampling=request.sampling
            )
        )
        async for answer in self._stubs[self._count % len(self._stubs)].Generate(call):
            yield answer.frame


async def serve_workers(model: Path) -> None:
    """Run fake workers until killed; prints their addresses."""
    from common.tokenizer.tokenizer import Tokenizer  # noqa: PLC0415 - the clients do not need it
    from tests.support.fake_worker import FakeWorker  # noqa: PLC0415 - as above

    tokenizer = Tokenizer.load(model)
    workers = [
        await FakeWorker(
            f"w{n}", ["decode", "prefill"], tokenizer, incarnation=n + 1, step_s=STEP_S, max_model_len=1024
        ).start()
        for n in range(NUM_WORKERS)
    ]
    print(*(worker.record.address for worker in workers), flush=True)
    await asyncio.Event().wait()


async def serve_blind(addresses: Sequence[str]) -> None:
    """Run the blind router until killed; prints its address."""
    server = grpc.aio.server()
    inference_pb2_grpc.add_InferenceServicer_to_server(BlindRouter(addresses), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await asyncio.Event().wait()


async def serve_router(model: Path, addresses: Sequence[str]) -> None:
    """Run the real router over the workers until killed; prints its address."""
    from common.base.config import LogConfig, TimeoutsConfig  # noqa: PLC0415 - the clients do not need it
    from common.base.logging import configure_logging  # noqa: PLC0415 - as above
    from common.rpc.registry import WorkerRecord  # noqa: PLC0415 - as above
    from services.router.__main__ import Router  # noqa: PLC0415 - as above
    from services.router.config import RouterConfig, RouterSettings  # noqa: PLC0415 - as above
    from services.router.prompts import Model  # noqa: PLC0415 - as above

    class Listed:
        async def list_workers(self) -> list[WorkerRecord]:
            return [WorkerRecord(f"w{n}", n + 1, one, ["decode", "prefill"]) for n, one in enumerate(addresses)]

    settings = RouterSettings(router=RouterConfig(port=0, model_path=model), timeouts=TimeoutsConfig())
    log = configure_logging(LogConfig(level="error", format="json"), service="router")
    router = Router(settings, Model.load(model, "tiny"), Listed(), log)
    await router.start()
    print(router.address, flush=True)
    await asyncio.Event().wait()


async def measure_live(shape: LiveShape) -> list[dict[str, float]]:
    """Figures of each round."""
    from tests.support.router_bench import write_model  # noqa: PLC0415 - only this part needs it

    with ExitStack() as stack:
        model = write_model(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        workers = _start(stack, "workers", str(model))[0].split()
        blind, blind_pid = _start(stack, "blind", *workers)
        real, real_pid = _start(stack, "router", str(model), *workers)
        async with grpc.aio.insecure_channel(blind) as to_blind, grpc.aio.insecure_channel(real) as to_real:
            stubs = [inference_pb2_grpc.InferenceStub(channel) for channel in (to_blind, to_real)]
            await _until_ready(stubs[1])
            for stub in stubs:
                await _ask_all(stub, shape, shape.num_requests, num_clients=4)
            pids = (blind_pid, real_pid)
            return [await _round(stubs, pids, shape) for _ in range(shape.num_rounds)]


def _start(stack: ExitStack, *arguments: str) -> tuple[str, int]:
    """Start a part as a process that ends with the stack; returns what it prints when it is ready, and its pid."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.router_live", *arguments], stdout=subprocess.PIPE, text=True
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    assert process.stdout is not None, "it is a pipe"
    line = process.stdout.readline().strip()
    assert line, f"{arguments[0]} did not start"
    return line, process.pid


async def _until_ready(stub: inference_pb2_grpc.InferenceStub) -> None:
    async with asyncio.timeout(READY_S):
        listing = inference_pb2.ListWorkersRequest()
        while len((await stub.ListWorkers(listing)).workers) < NUM_WORKERS:  # noqa: ASYNC110 - it is in another process
            await asyncio.sleep(0.05)


async def _round(
    stubs: Sequence[inference_pb2_grpc.InferenceStub], pids: Sequence[int], shape: LiveShape
) -> dict[str, float]:
    figures = {}
    for num_clients, label in ((1, "1 client"), (16, "16 clients")):
        num_turns = shape.num_requests // TURN_REQUESTS if num_clients == 1 else 1
        answers: list[list[tuple[float, float]]] = [[] for _ in stubs]
        spent = [0.0 for _ in stubs]
        for _ in range(num_turns):
            for which, (stub, pid) in enumerate(zip(stubs, pids, strict=True)):
                before = _cpu_s(pid)
                answers[which] += await _ask_all(stub, shape, shape.num_requests // num_turns, num_clients)
                spent[which] += _cpu_s(pid) - before
        blind, real = answers
        firsts = [statistics.median(first for first, _ in times) for times in (blind, real)]
        wholes = [statistics.median(whole for _, whole in times) for times in (blind, real)]
        figures[f"added latency p50, {label} ms"] = (firsts[1] - firsts[0]) * 1000
        figures[f"added to the whole answer p50, {label} ms"] = (wholes[1] - wholes[0]) * 1000
        figures[f"blind router's first frame p50, {label} ms"] = firsts[0] * 1000
        figures[f"whole answer, real / blind, {label}"] = wholes[1] / wholes[0]
        figures[f"CPU per request, blind router, {label} ms"] = spent[0] / len(blind) * 1000
        figures[f"CPU per request, router, {label} ms"] = spent[1] / len(real) * 1000
    return figures


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


async def _ask_all(
    stub: inference_pb2_grpc.InferenceStub, shape: LiveShape, num_requests: int, num_clients: int
) -> list[tuple[float, float]]:
    """(time to the first frame less a step, time of the whole answer) of each request."""
    times: list[tuple[float, float]] = []
    left = iter(range(max(num_requests, 4 * num_clients)))

    async def client() -> None:
        await asyncio.sleep(random.random() * STEP_S * shape.output_tokens)  # equal steps keep equal starts in step
        for _ in left:
            times.append(await _ask(stub, shape))

    await asyncio.gather(*(client() for _ in range(num_clients)))
    return times


async def _ask(stub: inference_pb2_grpc.InferenceStub, shape: LiveShape) -> tuple[float, float]:
    ids = [random.randrange(2, 200) for _ in range(shape.prompt_tokens)]
    sampling = types_pb2.SamplingParams(max_tokens=shape.output_tokens, temperature=0, ignore_eos=True)
    request = inference_pb2.GenerateRequest(token_ids=types_pb2.TokenIds(ids=ids), sampling=sampling)
    began, first = time.perf_counter(), 0.0
    async for _ in stub.Generate(request, timeout=60):
        first = first or time.perf_counter() - began
    return first - STEP_S, time.perf_counter() - began


if __name__ == "__main__":
    part, *rest = sys.argv[1:]
    if part == "workers":
        asyncio.run(serve_workers(Path(rest[0])))
    elif part == "blind":
        asyncio.run(serve_blind(rest))
    else:
        asyncio.run(serve_router(Path(rest[0]), rest[1:]))
