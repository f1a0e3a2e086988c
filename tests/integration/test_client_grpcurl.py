"""grpcurl against a real router over fake workers: reflection alone is enough to list, call and read errors."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.router_bench import LIMIT_S, bench, eventually, text_request, write_model

GRPCURL = Path(sys.executable).with_name("grpcurl")


@dataclass
class Done:
    """What grpcurl printed and how it ended."""

    status: int
    out: str
    err: str

    def messages(self) -> list[dict[str, Any]]:
        """The JSON messages on standard output."""
        decoder, found, at = json.JSONDecoder(), [], 0
        while at < len(self.out.rstrip()):
            message, at = decoder.raw_decode(self.out, at)
            found.append(message)
            at += len(self.out[at:]) - len(self.out[at:].lstrip())
        return found


async def grpcurl(address: str, *arguments: str, flags: tuple[str, ...] = ()) -> Done:
    process = await asyncio.create_subprocess_exec(
        GRPCURL,
        "-plaintext",
        *flags,
        address,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(LIMIT_S * 2):
        out, err = await process.communicate()
    assert process.returncode is not None
    return Done(process.returncode, out.decode(), err.decode())


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


async def test_services_methods_and_fields_are_told_by_reflection(model_dir: Path) -> None:
    async with bench(model_dir) as made:
        listed = await grpcurl(made.router.address, "list")
        assert listed.out.split() == [
            "grpc.health.v1.Health",
            "grpc.reflection.v1alpha.ServerReflection",
            "pando.v1.Inference",
        ]
        methods = await grpcurl(made.router.address, "list", "pando.v1.Inference")
        names = ("Abort", "Detokenize", "Explain", "Generate", "GetModel", "ListWorkers", "Tokenize")
        assert methods.out.split() == [f"pando.v1.Inference.{name}" for name in names]
        described = await grpcurl(made.router.address, "describe", "pando.v1.SamplingParams")
        assert "optional float temperature = 3" in described.out


async def test_a_generation_streams(model_dir: Path) -> None:
    async with bench(model_dir) as made:
        request = text_request("hello grpcurl", max_tokens=12)
        body = {"text": "hello grpcurl", "sampling": {"maxTokens": 12, "temperature": 0}}
        done = await grpcurl(made.router.address, "pando.v1.Inference/Generate", flags=("-d", json.dumps(body)))
        assert done.status == 0, done.err
        frames = done.messages()
        tokens, text = made.expected(request)
        assert [token for frame in frames for token in frame.get("token_ids", ())] == tokens
        assert "".join(frame.get("text", "") for frame in frames) == text
        assert frames[-1]["finish_reason"] == "FINISH_REASON_LENGTH"


async def test_health(model_dir: Path) -> None:
    async with bench(model_dir) as made:
        body = json.dumps({"service": "pando.v1.Inference"})
        done = await grpcurl(made.router.address, "grpc.health.v1.Health/Check", flags=("-d", body))
        assert done.messages() == [{"status": "SERVING"}]


async def test_errors_show_their_typed_detail(model_dir: Path) -> None:
    async with bench(model_dir) as made:
        body = json.dumps({"text": "hi", "requestId": "mine", "sampling": {"temperature": 99}})
        done = await grpcurl(made.router.address, "pando.v1.Inference/Generate", flags=("-d", body))
        assert done.status != 0 and "Code: InvalidArgument" in done.err
        detail = json.loads(done.err[done.err.index("{") : done.err.rindex("}") + 1])
        assert detail["@type"].endswith("/pando.v1.ErrorDetail")
        assert (detail["reason"], detail["param"], detail["request_id"]) == ("invalid_request", "temperature", "mine")


async def test_a_deadline_is_kept(model_dir: Path) -> None:
    async with bench(model_dir, step_s=0.1) as made:
        body = json.dumps({"text": "hi", "sampling": {"maxTokens": 400, "temperature": 0}})
        flags = ("-d", body, "-max-time", "3")
        done = await grpcurl(made.router.address, "pando.v1.Inference/Generate", flags=flags)
        assert done.status != 0 and "DeadlineExceeded" in done.err
        assert made.workers[0].deadlines_s[0] <= 3.0
        await eventually(lambda: made.workers[0].num_running == 0, "the worker goes on for nobody")
