"""Protobuf and dataclasses say the same, defaults included."""

from __future__ import annotations

from dataclasses import fields

import pytest

from common.base.errors import InvalidRequest
from common.grammar.spec import GrammarKind, GrammarSpec
from common.rpc.convert import (
    grammar_from_pb,
    join_hashes,
    logprob_from_pb,
    logprob_to_pb,
    sampling_from_pb,
    split_hashes,
)
from common.sched.params import SamplingParams
from common.sched.plan import TokenLogprobs
from pando.v1 import types_pb2

OTHER = {
    "max_tokens": 7,
    "min_tokens": 2,
    "temperature": 0.5,
    "top_k": 3,
    "top_p": 0.25,
    "min_p": 0.125,
    "presence_penalty": 1.0,
    "frequency_penalty": -1.0,
    "repetition_penalty": 1.5,
    "logit_bias": {4: -2.0},
    "stop": ("a", "b"),
    "stop_token_ids": (9, 8),
    "ignore_eos": True,
    "logprobs": 0,
    "prompt_logprobs": 5,
    "prompt_logprobs_start": 3,
    "include_stop_str": True,
    "skip_special_tokens": False,
}


def test_every_field_travels() -> None:
    assert {*OTHER, "grammar"} == {field.name for field in fields(SamplingParams)}  # the grammar has tests of its own
    assert {*OTHER, "grammar", "seed"} == set(types_pb2.SamplingParams.DESCRIPTOR.fields_by_name)
    made = sampling_from_pb(types_pb2.SamplingParams(**OTHER, seed=1))
    assert {name: getattr(made, name) for name in OTHER} == OTHER


def test_unset_fields_take_the_documented_defaults() -> None:
    assert sampling_from_pb(types_pb2.SamplingParams(max_tokens=16)) == SamplingParams()


def test_temperature_0_is_not_unset() -> None:
    assert sampling_from_pb(types_pb2.SamplingParams(temperature=0)).temperature == 0


@pytest.mark.parametrize("kind", ["regex", "ebnf", "json_schema", "structural_tag"])
def test_grammars_keep_their_kind_and_text(kind: str) -> None:
    message = types_pb2.Grammar(**{kind: "x"})
    spec = sampling_from_pb(types_pb2.SamplingParams(grammar=message)).grammar
    assert spec == GrammarSpec(GrammarKind(kind), "x")


def test_choices_become_one_text() -> None:
    message = types_pb2.Grammar(choices=types_pb2.Grammar.Choices(values=["yes", '"no"', "日本"]))
    spec = grammar_from_pb(message)
    assert spec == GrammarSpec(GrammarKind.CHOICES, '["yes", "\\"no\\"", "日本"]')


def test_no_grammar_stays_none_and_empty_choices_are_refused() -> None:
    assert grammar_from_pb(types_pb2.Grammar()) is None
    for values in ([], ["a", ""]):
        with pytest.raises(InvalidRequest) as refused:
            grammar_from_pb(types_pb2.Grammar(choices=types_pb2.Grammar.Choices(values=values)))
        assert refused.value.param == "response_format"


def test_logprobs_there_and_back_with_exact_bytes() -> None:
    logprobs = TokenLogprobs(300, -0.5, 2, ((7, -0.25), (300, -0.5)))
    message = logprob_to_pb(logprobs, lambda token: bytes([token % 256, 0xFF]))
    assert message.token == bytes([44, 0xFF]) and message.top[0].token == bytes([7, 0xFF])
    assert logprob_from_pb(message) == logprobs


def test_hashes_there_and_back_and_a_torn_one_is_dropped() -> None:
    hashes = [bytes([n]) * 32 for n in range(3)]
    assert split_hashes(join_hashes(hashes)) == hashes
    assert split_hashes(join_hashes(hashes)[:-1]) == hashes[:2]
    assert split_hashes(b"") == []
