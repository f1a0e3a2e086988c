"""A real router in this process over fake workers, and a client's view of its streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from common.base.config import TimeoutsConfig
from common.base.limits import LimitsConfig
from common.base.logging import get_logger
from common.tokenizer.detokenizer import IncrementalDetokenizer
from common.tokenizer.tokenizer import Tokenizer
from pando.v1 import inference_pb2, inference_pb2_grpc, types_pb2, worker_pb2
from services.router.__main__ import Router
from services.router.config import RouterConfig, RouterSettings
from services.router.prompts import Model
from tests.support.fake_worker import FakeRegistry, FakeWorker, token_at
from tests.support.tiny_vocab import tiny_vocab, write_tokenizer

LIMIT_S = 30.0
MAX_POSITION = 1024


def write_model(path: Path) -> Path:
    """A model directory without weights: all that a router reads."""
    vocab = tiny_vocab()
    write_tokenizer(path, vocab)
    config = {
        "model_type": "llama",
        "vocab_size": len(vocab.tokens),
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": MAX_POSITION,
        "bos_token_id": 1,
        "eos_token_id": 0,
    }
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


@dataclass
class Answer:
    """What a client got: tokens, text and the rest per choice."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    text: dict[int, str] = field(default_factory=dict)
    finish: dict[int, int] = field(default_factory=dict)
    frames: list[inference_pb2.GenerateResponse] = field(default_factory=list)

    def take(self, frame: inference_pb2.GenerateResponse) -> None:
        """Fold in a frame; it must continue exactly where its choice stands."""
        tokens = self.tokens.setdefault(frame.choice, [])
        text = self.text.setdefault(frame.choice, "")
        assert frame.choice not in self.finish, "a frame after the finish"
        assert frame.HasField("prompt") == (not tokens and not text), "prompt facts belong in the first frame"
        assert frame.token_index == len(tokens), f"token_index {frame.token_index} after {len(tokens)} tokens"
        assert not frame.text or frame.text_offset == len(text), f"text_offset {frame.text_offset} after {len(text)}"
        tokens.extend(frame.token_ids)
        self.text[frame.choice] = text + frame.text
        self.frames.append(frame)
        if frame.finish_reason:
            self.finish[frame.choice] = frame.finish_reason


@dataclass
class Bench:
    """Router, workers and client of one test."""

    router: Router
    registry: FakeRegistry
    workers: list[FakeWorker]
    model: Model
    stub: inference_pb2_grpc.InferenceStub
    channel: grpc.aio.Channel

    async def ask(self, request: inference_pb2.GenerateRequest, timeout_s: float = LIMIT_S) -> Answer:
        """Run a request to its end."""
        answer = Answer()
        async for frame in self.stub.Generate(request, timeout=timeout_s):
            answer.take(frame)
        return answer

    def expected(self, request: inference_pb2.GenerateRequest, choice: int = 0) -> tuple[list[int], str]:
        """Tokens and text that an undisturbed run of a seeded or greedy text request gives."""
        prompt = self.model.tokenizer.encode(request.text, True)
        as_worker = worker_pb2.WorkerRequest(prompt_token_ids=prompt, sampling=request.sampling, choice=choice)
        text = IncrementalDetokenizer(self.model.tokenizer, stop=list(request.sampling.stop))
        tokens: list[int] = []
        whole = ""
        while len(tokens) < request.sampling.max_tokens and text.stop_match is None:
            tokens.append(token_at(as_worker, len(tokens), self.model.tokenizer.vocab_size))
            whole += text.feed(tokens[-1:])
        return tokens, whole + text.finish()

    async def status(self) -> dict[str, inference_pb2.WorkerStatus]:
        """ListWorkers by worker id."""
        listed = await self.stub.ListWorkers(inference_pb2.ListWorkersRequest())
        return {worker.worker_id: worker for worker in listed.workers}

    async def until(self, condition: Callable[[dict[str, inference_pb2.WorkerStatus]], bool]) -> None:
        """Wait until ListWorkers shows what is wanted."""
        async with asyncio.timeout(LIMIT_S):
            while not condition(await self.status()):  # noqa: ASYNC110 - the state is in another server
                await asyncio.sleep(0.01)

    def metric(self, name: str, **labels: str) -> float:
        """Value of one of the router's metrics."""
        return self.router.registry.get_sample_value(f"pando_router_{name}", labels) or 0.0


@asynccontextmanager
async def second_router(
    made: Bench, model_dir: Path, **router: object
) -> AsyncGenerator[inference_pb2_grpc.InferenceStub, None]:
    """Another router that starts over the same workers; yields its stub once it knows of one of them."""
    served = Router(settings(model_path=model_dir, **router), made.model, made.registry, get_logger())
    await served.start()
    try:
        async with grpc.aio.insecure_channel(served.address) as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)
            async with asyncio.timeout(LIMIT_S):
                while not (await stub.ListWorkers(inference_pb2.ListWorkersRequest())).workers:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            yield stub
    finally:
        await served.stop()


async def eventually(condition: Callable[[], bool], what: str) -> None:
    """Poll until a condition holds."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 - the state has no event
            await asyncio.sleep(0.005)
    assert condition(), what


def text_request(
    text: str = "hello world " * 4, max_tokens: int = 24, **fields: object
) -> inference_pb2.GenerateRequest:
    """A greedy request; further fields by name, `sampling` fields with `sampling__`."""
    sampling = types_pb2.SamplingParams(max_tokens=max_tokens, temperature=0)
    request = inference_pb2.GenerateRequest(text=text)
    for name, value in fields.items():
        target = sampling if name.startswith("sampling__") else request
        short = name.removeprefix("sampling__")
        if isinstance(value, list | tuple):
            getattr(target, short).extend(value)
        else:
            setattr(target, short, value)
    request.sampling.CopyFrom(sampling)
    return request


def settings(**router: object) -> RouterSettings:
    """Settings for tests: any free port, quick polls; a ping has long, so that a busy machine makes nobody suspect."""
    values: dict[str, object] = {"port": 0, "poll_s": 0.05, "migration_wait_s": 2.0, "remote_prefill_min_tokens": 16}
    limits = router.pop("limits", LimitsConfig())
    timeouts = router.pop("timeouts", TimeoutsConfig(ping_s=20.0, drain_s=2.0))
    return RouterSettings(
        router=RouterConfig.model_validate(values | router),
        limits=limits,
        timeouts=timeouts,
    )


@asynccontextmanager
async def bench(
    model_dir: Path,
    roles: Sequence[str] = ("decode", "prefill"),
    wait: bool = True,
    step_s: float = 0.0,
    **router: object,
) -> AsyncGenerator[Bench, None]:
    """A router and one started fake worker for each of `roles` (worker ids: role and position)."""
    model = Model.load(model_dir, "tiny")
    tokenizer: Tokenizer = model.tokenizer
    workers = [
        await FakeWorker(f"{role}-{n}", role.split("+"), tokenizer, incarnation=n + 1, step_s=step_s).start()
        for n, role in enumerate(roles)
    ]
    registry = FakeRegistry(*workers)
    served = Router(settings(model_path=model_dir, **router), model, registry, get_logger())
    await served.start()
    async with grpc.aio.insecure_channel(served.address) as channel:
        made = Bench(served, registry, workers, model, inference_pb2_grpc.InferenceStub(channel), channel)
        if wait:
            await made.until(lambda known: len(known) == len(roles))
        try:
            yield made
        finally:
            await served.stop()
            for worker in made.workers:
                await worker.kill()
