"""Requests are checked where they enter a worker, and two workers that differ are told apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from common.base.errors import InvalidRequest, LayoutMismatch, PandoError
from common.grammar.spec import GrammarKind, GrammarSpec
from common.kv.hashing import block_hashes, prefix_root
from common.rpc.convert import join_hashes
from common.worker.job import Identity, Limits, request_from_pb
from pando.v1 import types_pb2, worker_pb2
from tests.support.tiny_models import TINY_LLAMA

LIMITS = Limits(max_model_len=50, vocab_size=211, block_size=4, eos_token_ids=(2, 3), debug_logits_digest=True)
IDENTITY = Identity(b"n" * 32, "numerics", 4096, 16)


def message(sampling: dict[str, Any] | None = None, **fields: Any) -> worker_pb2.WorkerRequest:
    values = {"request_id": "r", "prompt_token_ids": [5, 6, 7, 8, 9]} | fields
    params = types_pb2.SamplingParams(**({"max_tokens": 4} | (sampling or {})))
    return worker_pb2.WorkerRequest(sampling=params, **values)


def test_a_request_keeps_what_it_came_with() -> None:
    hashes = block_hashes(prefix_root(4, "salt"), [5, 6, 7, 8], 4)
    request = request_from_pb(
        message(
            {"seed": 11, "stop_token_ids": [9, 2]},
            output_token_ids=[1],
            cache_salt="salt",
            prefix_hashes=join_hashes(hashes),
            choice=3,
            priority=-2,
        ),
        LIMITS,
        arrival_s=7.5,
    )
    assert (request.prompt_ids, request.output_ids) == ([5, 6, 7, 8, 9], [1])
    assert (request.seed, request.choice, request.priority, request.arrival_s, request.digest) == (11, 3, -2, 7.5, True)
    assert request.chain.hashes == hashes
    assert request.params.stop_token_ids == (9, 2, 3), "the model's end tokens stop too, each once"


def test_hashes_that_did_not_come_are_computed() -> None:
    request = request_from_pb(message(), LIMITS, 0.0)
    assert request.chain.hashes == block_hashes(prefix_root(4, ""), [5, 6, 7, 8], 4)


def test_ignore_eos() -> None:
    request = request_from_pb(message({"ignore_eos": True, "stop_token_ids": [9]}), LIMITS, 0.0)
    assert request.params.stop_token_ids == (9,)


HASHES = block_hashes(prefix_root(4, ""), [5, 6, 7, 8], 4)

REFUSED: dict[str, tuple[worker_pb2.WorkerRequest, str]] = {
    "no prompt": (message(prompt_token_ids=[]), "prompt"),
    "no id": (message(request_id=""), "request_id"),
    "long id": (message(request_id="x" * 257), "request_id"),
    "token outside the vocabulary": (message(prompt_token_ids=[211]), "prompt"),
    "output token outside the vocabulary": (message(output_token_ids=[211]), "prompt"),
    "no room": (message(prompt_token_ids=[5] * 49, output_token_ids=[5]), "prompt"),
    "no token left": (message({"max_tokens": 1}, output_token_ids=[5]), "max_tokens"),
    "max_tokens 0": (message({"max_tokens": 0}), "max_tokens"),
    "too many hashes": (message(prefix_hashes=join_hashes(HASHES) + bytes(32)), "prefix_hashes"),
    "hashes of another prompt": (message(prompt_token_ids=[5, 6, 7, 9], prefix_hashes=HASHES[0]), "prefix_hashes"),
    "hashes of another tenant": (message(cache_salt="b", prefix_hashes=HASHES[0]), "prefix_hashes"),
    "torn hash": (message(prefix_hashes=bytes(31)), "prefix_hashes"),
    "bias outside the vocabulary": (message({"logit_bias": {211: 1.0}}), "logit_bias"),
    "bias not finite": (message({"logit_bias": {5: float("nan")}}), "logit_bias"),
    "stop token outside the vocabulary": (message({"stop_token_ids": [4000]}), "stop_token_ids"),
    "empty stop string": (message({"stop": ["a", ""]}), "stop"),
    "temperature": (message({"temperature": -1.0}), "temperature"),
    "temperature not a number": (message({"temperature": float("nan")}), "temperature"),
    "top_p": (message({"top_p": 1.5}), "top_p"),
    "min_p": (message({"min_p": -0.1}), "min_p"),
    "repetition_penalty": (message({"repetition_penalty": 0.0}), "repetition_penalty"),
    "presence_penalty": (message({"presence_penalty": float("inf")}), "presence_penalty"),
    "frequency_penalty": (message({"frequency_penalty": float("-inf")}), "frequency_penalty"),
}


@pytest.mark.parametrize(("refused", "param"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_work_is_refused_by_name(refused: worker_pb2.WorkerRequest, param: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        request_from_pb(refused, LIMITS, 0.0)
    assert error.value.param == param


def test_a_grammar_comes_with_the_parameters_and_its_constraint_later() -> None:
    request = request_from_pb(message({"grammar": types_pb2.Grammar(regex="a+")}), LIMITS, 0.0)
    assert request.params.grammar == GrammarSpec(GrammarKind.REGEX, "a+")
    assert request.constraint is None


def test_the_context_is_the_smaller_of_what_is_configured_and_what_the_model_has() -> None:
    assert Limits.of(TINY_LLAMA, 0, 16, False).max_model_len == TINY_LLAMA.max_position
    assert Limits.of(TINY_LLAMA, 100, 16, False).max_model_len == 100
    assert Limits.of(TINY_LLAMA, 10**6, 16, False).max_model_len == TINY_LLAMA.max_position


def test_equal_identities_agree() -> None:
    IDENTITY.check(IDENTITY.to_pb())
    IDENTITY.check_namespace(IDENTITY.namespace)


@pytest.mark.parametrize(
    ("name", "value"), [("namespace", b"m" * 32), ("numerics_id", "others"), ("block_bytes", 1), ("block_size", 8)]
)
def test_each_difference_is_named(name: str, value: object) -> None:
    other = replace(IDENTITY, **{name: value})  # type: ignore[arg-type]
    with pytest.raises(LayoutMismatch, match=name):
        IDENTITY.check(other.to_pb())


def test_a_request_of_another_namespace_is_a_mismatch() -> None:
    with pytest.raises(PandoError) as error:
        IDENTITY.check_namespace(b"m" * 32)
    assert isinstance(error.value, LayoutMismatch)
