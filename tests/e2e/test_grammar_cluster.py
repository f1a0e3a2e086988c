"""Structured output through a whole cluster's doors: the corpus, hostile grammars beside other streams, choices."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import grpc
import httpx
import pytest

from bench.grammar import run_corpus
from bench.grammar_corpus import THREE_FIELDS
from pando.v1 import inference_pb2, inference_pb2_grpc, types_pb2
from tests.support.cluster import Cluster
from tests.support.hostile_grammars import REFUSED, SERVED

pytestmark = pytest.mark.e2e
LIMIT_S = 45.0
"""Far less than a grammar takes that nobody stops; a trial has 0.7 s of CPU, which a busy machine gives late."""
LONG_GAP_S = 0.5
SHORT = {**THREE_FIELDS, "properties": {**THREE_FIELDS["properties"], "name": {"type": "string", "maxLength": 8}}}


@pytest.fixture
def cluster(tiny_cluster: Cluster) -> Cluster:
    return tiny_cluster


def native(cluster: Cluster, **sampling: Any) -> httpx.Response:
    body = {"text": "hello", "sampling_params": {"max_new_tokens": 24, **sampling}}
    return httpx.post(f"{cluster.url}/generate", json=body, timeout=60)


def test_sixty_outputs_of_the_corpus_keep_their_grammar(cluster: Cluster) -> None:
    verdicts = asyncio.run(run_corpus(cluster.url, 60, clients=4, max_tokens=120))
    assert verdicts["kept"] >= 30 and verdicts["kept"] + verdicts["cut"] == 60, verdicts


@pytest.mark.parametrize("name", [*REFUSED, *SERVED])
def test_hostile_grammars_over_http(cluster: Cluster, name: str) -> None:
    kind, text = (REFUSED | SERVED)[name]
    value = json.loads(text) if kind == "choices" else text
    began = time.perf_counter()
    answer = native(cluster, **{kind: value})
    assert time.perf_counter() - began < LIMIT_S
    assert answer.status_code == (400 if name in REFUSED else 200), answer.text
    if name in REFUSED:
        assert answer.json()["error"]["param"].startswith("sampling_params")
        assert answer.headers["x-should-retry"] == "false"


def test_choices_of_one_request_differ_and_all_fit(cluster: Cluster) -> None:
    answers = native(cluster, n=4, temperature=1.0, seed=5, json_schema=SHORT, max_new_tokens=120).json()
    texts = [answer["text"] for answer in answers]
    assert len(set(texts)) > 1
    assert all(list(json.loads(text)) == ["name", "age", "member"] for text in texts)


def test_a_streamed_chat_answer_fits_its_schema(cluster: Cluster) -> None:
    body = {
        "messages": [{"role": "user", "content": "who?"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "who", "schema": SHORT}},
        "stream": True,
        "max_tokens": 120,
    }
    text, finish = "", []
    with httpx.stream("POST", f"{cluster.url}/v1/chat/completions", json=body, timeout=60) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                (choice,) = json.loads(line[6:])["choices"]
                text += choice["delta"].get("content") or ""
                finish += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert finish == ["stop"] and list(json.loads(text)) == ["name", "age", "member"]


def test_a_grammar_over_grpc_and_its_refusal(cluster: Cluster) -> None:
    with grpc.insecure_channel(cluster.router) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)

        def text(grammar: types_pb2.Grammar) -> str:
            sampling = types_pb2.SamplingParams(max_tokens=20, temperature=0, grammar=grammar)
            frames = stub.Generate(inference_pb2.GenerateRequest(text="hello", sampling=sampling), timeout=60)
            return "".join(frame.text for frame in frames)

        choices = types_pb2.Grammar.Choices(values=["left", "right"])
        assert text(types_pb2.Grammar(choices=choices)) in ("left", "right")
        with pytest.raises(grpc.RpcError) as refused:
            text(types_pb2.Grammar(regex="("))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_other_streams_go_on_while_hostile_grammars_are_tried(cluster: Cluster) -> None:
    """A stream beside trials, each of which takes 0.7 s of CPU, does not stand still for each of them."""
    gaps: list[float] = []
    over = threading.Event()

    def stream() -> None:
        body = {"text": "hello", "stream": True, "sampling_params": {"max_new_tokens": 2000, "ignore_eos": True}}
        with httpx.stream("POST", f"{cluster.url}/generate", json=body, timeout=60) as answer:
            last = None
            for _ in answer.iter_lines():
                now = time.perf_counter()
                if last is not None:
                    gaps.append(now - last)
                last = now
                if over.is_set():
                    return

    reader = threading.Thread(target=stream)
    reader.start()
    num_trials = 3
    for number in range(num_trials):
        assert native(cluster, json_schema={"type": "integer", "multipleOf": 99_999_000 + number}).status_code == 400
    over.set()
    reader.join()
    assert len(gaps) > 50
    long = [gap for gap in gaps if gap > LONG_GAP_S]
    assert len(long) < num_trials, f"gaps of {long} s"
