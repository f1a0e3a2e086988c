"""What a worker is told: the client's ids and parameters as they came, with what the router decided."""

from __future__ import annotations

from collections.abc import Sequence

from common.rpc.convert import sampling_from_pb
from pando.v1 import inference_pb2, types_pb2, worker_pb2
from services.router.convert import decode_request, wish_from_pb
from services.router.job import Job
from services.router.member import Identity
from services.router.policy import Candidate, Plan, Source

ONE, TWO = (Candidate((name, 7), f"host:{name}", True, True) for name in ("one", "two"))
UNKNOWN = b"\xf2\x3e\x01x"
"""Field 998, a string."""


def call(
    message: inference_pb2.GenerateRequest, plan: Plan, prompt_ids: Sequence[int] = ()
) -> worker_pb2.WorkerRequest:
    job = Job(
        wish=wish_from_pb(message),
        request_id="r",
        prompt_ids=prompt_ids,
        max_tokens=9,
        seed=11,
        eos_ids=frozenset(),
        kv=Identity(b"space", "", 64, 16),
        hashes=[b"a" * 32, b"b" * 32],
        text_offset=0,
        deadline_s=0.0,
    )
    made = decode_request(job, plan, choice=2, attempt=1, output_ids=[5], text_offset=4)
    assert made.text_offset == 4 and made.HasField("prefill") == (plan.prefill is not None)
    assert [source.worker.worker_id for source in made.sources] == [one.worker.key[0] for one in plan.sources]
    return made.request


def test_ids_and_parameters_go_on_as_they_came() -> None:
    sampling = types_pb2.SamplingParams(temperature=0, stop=["x"], logit_bias={3: -1.0})
    sampling.MergeFromString(UNKNOWN)
    message = inference_pb2.GenerateRequest(token_ids=types_pb2.TokenIds(ids=[1, 2, 3]), sampling=sampling)
    made = call(message, Plan(ONE, TWO, (Source(ONE, 2),), 1, 1, "remote"))
    assert list(made.prompt_token_ids) == [1, 2, 3] and list(made.output_token_ids) == [5]
    assert (made.sampling.max_tokens, made.sampling.seed) == (9, 11)
    assert sampling_from_pb(made.sampling) == sampling_from_pb(
        types_pb2.SamplingParams(max_tokens=9, temperature=0, stop=["x"], logit_bias={3: -1.0})
    )
    assert UNKNOWN not in made.SerializeToString(), "nobody has checked it"
    assert UNKNOWN in message.SerializeToString(), "negative control"
    assert not message.sampling.HasField("max_tokens"), "another choice starts from it"


def test_a_text_goes_on_as_its_tokens() -> None:
    made = call(
        inference_pb2.GenerateRequest(text="hi", priority=3, cache_salt="salt"),
        Plan(ONE, None, (), 1, 1, "short_suffix"),
        [7, 8],
    )
    assert list(made.prompt_token_ids) == [7, 8]
    assert (made.request_id, made.choice, made.attempt, made.priority) == ("r.2.1", 2, 1, 3)
    assert (made.prefix_hashes, made.cache_salt, made.namespace) == (b"a" * 32 + b"b" * 32, "salt", b"space")
