"""Clients as people have them: the official OpenAI client, and gRPC with nothing but reflection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import openai
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from pando.v1 import inference_pb2, inference_pb2_grpc, types_pb2
from tests.support.cluster import Cluster

MESSAGES = [{"role": "system", "content": "You count."}, {"role": "user", "content": "Count to ten, slowly please."}]
SERVICES = {
    "router": {"pando.v1.Inference"},
    "prefill-0": {"pando.v1.WorkerService", "pando.v1.PrefillService"},
    "decode-0": {"pando.v1.WorkerService", "pando.v1.DecodeService"},
}


@pytest.fixture
def client(tiny_cluster: Cluster) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{tiny_cluster.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
def inference(tiny_cluster: Cluster) -> Iterator[inference_pb2_grpc.InferenceStub]:
    with grpc.insecure_channel(tiny_cluster.router) as channel:
        yield inference_pb2_grpc.InferenceStub(channel)


def test_openai_chat(client: openai.OpenAI, tiny_cluster: Cluster) -> None:
    options: dict[str, Any] = {"model": tiny_cluster.model, "messages": MESSAGES, "max_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(**options)
    assert whole.usage and whole.usage.completion_tokens == 24 and whole.choices[0].finish_reason == "length"
    with client.chat.completions.create(**options, stream=True) as stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == whole.choices[0].message.content


def test_openai_completions_and_models(client: openai.OpenAI, tiny_cluster: Cluster) -> None:
    assert [model.id for model in client.models.list()] == [tiny_cluster.model]
    options: dict[str, Any] = {
        "model": tiny_cluster.model,
        "prompt": "Once upon a time",
        "max_tokens": 16,
        "temperature": 0,
    }
    whole = client.completions.create(**options)
    with client.completions.create(**options, stream=True) as stream:
        assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(**{**options, "temperature": -1})
    assert refused.value.param == "temperature"


@pytest.mark.parametrize("service", SERVICES)
def test_every_grpc_service_reflects_and_is_healthy(tiny_cluster: Cluster, service: str) -> None:
    with grpc.insecure_channel(tiny_cluster.service(service).address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        names = set(database.get_services())
        assert names >= SERVICES[service] | {"grpc.health.v1.Health"}
        pool = DescriptorPool(database)
        for name in SERVICES[service]:
            assert pool.FindServiceByName(name).methods
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", *SERVICES[service]):
            answer = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=30)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING, name


def test_a_call_without_generated_code(tiny_cluster: Cluster) -> None:
    """What grpcurl does: ask for the schema, build the request from it, call."""
    with grpc.insecure_channel(tiny_cluster.router) as channel:
        pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
        method = pool.FindServiceByName("pando.v1.Inference").FindMethodByName("Tokenize")
        request, answer = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        call = channel.unary_unary(
            "/pando.v1.Inference/Tokenize",
            request_serializer=request.SerializeToString,
            response_deserializer=answer.FromString,
        )
        assert b"".join(call(request(text="hello"), timeout=30).tokens) == b"hello"


def test_tokenize_and_back(inference: inference_pb2_grpc.InferenceStub) -> None:
    text = "hello 日本語 🙂  12"
    tokenized = inference.Tokenize(inference_pb2.TokenizeRequest(text=text), timeout=30)
    assert b"".join(tokenized.tokens).decode() == text and len(tokenized.tokens) == len(tokenized.token_ids)
    back = inference.Detokenize(inference_pb2.DetokenizeRequest(token_ids=tokenized.token_ids), timeout=30)
    assert back.text == text
    chat = types_pb2.ChatPrompt(messages=[types_pb2.ChatMessage(role="user", content="hi")])
    rendered = inference.Tokenize(inference_pb2.TokenizeRequest(chat=chat), timeout=30)
    assert "hi" in rendered.text and b"".join(rendered.tokens).decode() == rendered.text


def test_model_workers_and_generate(inference: inference_pb2_grpc.InferenceStub, tiny_cluster: Cluster) -> None:
    model = inference.GetModel(inference_pb2.GetModelRequest(), timeout=30)
    assert (model.name, model.block_size, model.has_chat_template) == (tiny_cluster.model, 16, True)
    workers = inference.ListWorkers(inference_pb2.ListWorkersRequest(), timeout=30).workers
    assert {worker.worker_id: worker.state for worker in workers} == {"prefill-0": "ready", "decode-0": "ready"}
    sampling = types_pb2.SamplingParams(max_tokens=5, temperature=0)
    request = inference_pb2.GenerateRequest(text="hello", sampling=sampling, return_prompt_token_ids=True)
    frames = list(inference.Generate(request, timeout=30))
    ids = [token for frame in frames for token in frame.token_ids]
    assert len(ids) == 5 and frames[-1].finish_reason == types_pb2.FINISH_REASON_LENGTH
    assert list(frames[0].prompt.token_ids) and frames[-1].usage.completion_tokens == 5
    tokens = types_pb2.TokenIds(ids=frames[0].prompt.token_ids)
    resumed = inference_pb2.GenerateRequest(token_ids=tokens, output_token_ids=ids[:2], sampling=sampling)
    rest = [token for frame in inference.Generate(resumed, timeout=30) for token in frame.token_ids]
    assert rest == ids[2:], "generation does not go on where it was told to"


def test_ids_duplicate_and_unknown(inference: inference_pb2_grpc.InferenceStub) -> None:
    sampling = types_pb2.SamplingParams(max_tokens=3000, temperature=0, ignore_eos=True)
    request = inference_pb2.GenerateRequest(request_id="twice", text="hello", sampling=sampling)
    running = inference.Generate(request, timeout=60)
    next(running)
    with pytest.raises(grpc.RpcError) as refused:
        list(inference.Generate(request, timeout=30))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert inference.Abort(inference_pb2.AbortRequest(request_id="twice"), timeout=30).found
    with pytest.raises(grpc.RpcError) as ended:
        list(running)
    assert ended.value.code() is grpc.StatusCode.CANCELLED
    assert not inference.Abort(inference_pb2.AbortRequest(request_id="nobody"), timeout=30).found
