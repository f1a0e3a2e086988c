"""Grammars on real workers: prefill's first token, handoff, jumps, resumption, other requests in the same batch.

The reference of every run is the decode worker that computes everything itself and never jumps.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Generator
from dataclasses import dataclass

import pytest

from bench.grammar_corpus import SCHEMAS
from common.base.errors import InvalidRequest
from pando.v1 import types_pb2
from tests.support.decode_calls import DecodeClient, Output, prompt_of, request_of
from tests.support.grammar_walks import tiny_tokenizer
from tests.support.workers import WorkerProcess, Workers

PROMPT = prompt_of(70, 5)
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 200},
        "member": {"type": "boolean"},
    },
    "required": ["name", "age", "member"],
    "additionalProperties": False,
}
GRAMMAR = types_pb2.Grammar(json_schema=json.dumps(SCHEMA))
SAMPLINGS = [{"temperature": 0.0}, {"temperature": 1.0, "seed": 11}, {"temperature": 1.5, "seed": 3, "top_p": 0.9}]


@dataclass(slots=True)
class Fleet:
    """A prefill worker, a decode worker that jumps, and one that does not and has a small pool."""

    prefill: WorkerProcess
    jumping: WorkerProcess
    stepping: WorkerProcess


@pytest.fixture(scope="module")
def fleet() -> Generator[Fleet, None, None]:
    with Workers(local_prefill_tokens="0") as workers:
        prefill = workers.launch("prefill", worker_id="prefill")
        jumping = workers.launch("decode", worker_id="jumping")
        stepping = workers.launch("decode", worker_id="stepping", no_jump_forward="", max_total_tokens="512")
        yield Fleet(prefill.wait_ready(), jumping.wait_ready(), stepping.wait_ready())


async def run(worker: WorkerProcess, request_id: str, **fields: object) -> Output:
    """One request on one worker."""
    request = request_of(request_id, fields.pop("prompt", PROMPT), **({"max_tokens": 120, "grammar": GRAMMAR} | fields))  # type: ignore[arg-type]
    async with DecodeClient(worker.address) as client:
        return await client.generate(request)


def parsed(output: Output) -> dict[str, object]:
    """The object that an output is."""
    assert output.last.finish_reason == types_pb2.FINISH_REASON_STOP
    value: dict[str, object] = json.loads(output.text)
    assert list(value) == ["name", "age", "member"]
    return value


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
async def test_the_same_tokens_with_and_without_jumps_local_and_by_handoff(
    fleet: Fleet, sampling: dict[str, object]
) -> None:
    stepped = await run(fleet.stepping, "stepped", **sampling)
    parsed(stepped)
    before = fleet.jumping.metric("pando_worker_forced_tokens_total")
    jumped = await run(fleet.jumping, "jumped", **sampling)
    num_forced = fleet.jumping.metric("pando_worker_forced_tokens_total") - before
    handed = await run(fleet.jumping, "handed", prefill=fleet.prefill.address, **sampling)
    assert stepped.token_ids == jumped.token_ids == handed.token_ids
    assert stepped.text == jumped.text == handed.text
    assert handed.usage.prefill_worker == "prefill"
    assert num_forced > 10 and fleet.stepping.metric("pando_worker_forced_tokens_total") == 0


async def test_with_logprobs_nothing_is_jumped_and_every_token_has_its_own(fleet: Fleet) -> None:
    plain = await run(fleet.jumping, "plain")
    before = fleet.jumping.metric("pando_worker_forced_tokens_total")
    told = await run(fleet.jumping, "told", logprobs=2)
    assert fleet.jumping.metric("pando_worker_forced_tokens_total") == before
    assert told.token_ids == plain.token_ids == [entry.token_id for entry in told.logprobs]


@pytest.mark.parametrize("num_sent", [1, 2, 9, 20])
async def test_a_resumed_request_replays_its_tokens(fleet: Fleet, num_sent: int) -> None:
    whole = await run(fleet.stepping, "whole", temperature=1.0, seed=11)
    sent = whole.token_ids[:num_sent]
    text = tiny_tokenizer().decode(sent, skip_special=True)
    for worker, prefill in ((fleet.jumping, ""), (fleet.jumping, fleet.prefill.address), (fleet.stepping, "")):
        rest = await run(
            worker, "rest", temperature=1.0, seed=11, output_ids=sent, text_offset=len(text), prefill=prefill
        )
        assert sent + rest.token_ids == whole.token_ids and text + rest.text == whole.text


async def test_a_request_that_moves_just_before_its_end_only_ends(fleet: Fleet) -> None:
    whole = await run(fleet.stepping, "whole")
    sent = [token for token in whole.token_ids if token]
    rest = await run(fleet.jumping, "rest", output_ids=sent, text_offset=len(whole.text))
    assert rest.token_ids == [] and rest.last.finish_reason == types_pb2.FINISH_REASON_STOP


async def test_output_that_breaks_the_grammar_cannot_be_resumed(fleet: Fleet) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await run(fleet.jumping, "broken", output_ids=PROMPT[:3])
    assert refused.value.param == "response_format"


@pytest.mark.parametrize("max_tokens", [1, 2, 7, 8, 12])
async def test_a_jump_never_goes_beyond_max_tokens(fleet: Fleet, max_tokens: int) -> None:
    whole = await run(fleet.stepping, "whole")
    for prefill in ("", fleet.prefill.address):
        cut = await run(fleet.jumping, "cut", max_tokens=max_tokens, prefill=prefill)
        assert cut.token_ids == whole.token_ids[:max_tokens]
        assert cut.last.finish_reason == types_pb2.FINISH_REASON_LENGTH


async def test_a_stop_string_inside_a_jump_ends_the_output_there(fleet: Fleet) -> None:
    stepped = await run(fleet.stepping, "stepped", stop=['"age'])
    jumped = await run(fleet.jumping, "jumped", stop=['"age'])
    assert stepped.token_ids == jumped.token_ids and stepped.text == jumped.text
    assert jumped.last.stop_reason == '"age'


async def test_others_in_the_batch_have_the_same_bits(fleet: Fleet) -> None:
    alone = await run(fleet.jumping, "alone", grammar=None, max_tokens=60)
    grammars = [run(fleet.jumping, f"g{seed}", temperature=1.0, seed=seed) for seed in range(6)]
    beside, *constrained = await asyncio.gather(run(fleet.jumping, "beside", grammar=None, max_tokens=60), *grammars)
    assert beside.token_ids == alone.token_ids
    assert len({output.text for output in constrained}) > 1, "seeds made no difference"
    for seed, output in enumerate(constrained):
        parsed(output)
        assert output.token_ids == (await run(fleet.jumping, "again", temperature=1.0, seed=seed)).token_ids


async def test_preempted_requests_go_on_alike(fleet: Fleet) -> None:
    """Eight requests of 70 + 60 tokens do not fit into 512 tokens of KV."""
    asks = [{"prompt": prompt_of(70, 50 + seed), "temperature": 1.0, "seed": seed} for seed in range(8)]
    alone = [await run(fleet.jumping, f"alone{i}", **ask) for i, ask in enumerate(asks)]
    together = await asyncio.gather(*(run(fleet.stepping, f"together{i}", **ask) for i, ask in enumerate(asks)))
    assert [output.token_ids for output in together] == [output.token_ids for output in alone]


@pytest.mark.parametrize(
    ("grammar", "full_text"),
    [
        (types_pb2.Grammar(regex="[a-c]{5}x"), "[a-c]{5}x"),
        (types_pb2.Grammar(ebnf='root ::= "a" [0-9]+ "z"\n'), "a[0-9]+z"),
        (types_pb2.Grammar(choices=types_pb2.Grammar.Choices(values=["left", "right", "le"])), "left|right|le"),
        (types_pb2.Grammar(json_schema=json.dumps(SCHEMAS["enum"])), r'"(red|green|blue)"|7|null|true'),
    ],
    ids=["regex", "ebnf", "choices", "json_schema"],
)
async def test_every_kind_is_kept(fleet: Fleet, grammar: types_pb2.Grammar, full_text: str) -> None:
    for seed in range(3):
        output = await run(fleet.jumping, "kind", grammar=grammar, temperature=1.0, seed=seed, max_tokens=40)
        if output.last.finish_reason == types_pb2.FINISH_REASON_STOP:
            assert re.fullmatch(full_text, output.text), output.text


async def test_a_structural_tag_holds_what_a_trigger_opens(fleet: Fleet) -> None:
    tag = {
        "type": "structural_tag",
        "structures": [{"begin": "<f=a>", "schema": SCHEMAS["bounded integer"], "end": "</f>"}],
        "triggers": ["<f="],
    }
    grammar = types_pb2.Grammar(structural_tag=json.dumps(tag))
    opening = tiny_tokenizer().encode("hm <f=", add_special=False)
    output = await run(fleet.jumping, "tag", grammar=grammar, output_ids=opening, text_offset=6, max_tokens=40)
    assert re.match(r"a>-?[0-9]{1,3}</f>", output.text), output.text


@pytest.mark.parametrize("ignore_eos", [False, True])
async def test_the_end_token_comes_where_the_grammar_allows_it(fleet: Fleet, ignore_eos: bool) -> None:
    grammar = types_pb2.Grammar(regex="[ab]{2,6}")
    output = await run(fleet.jumping, "end", grammar=grammar, logit_bias={0: 100.0}, ignore_eos=ignore_eos)
    assert len(output.text) == (6 if ignore_eos else 2)
    assert output.last.finish_reason == types_pb2.FINISH_REASON_STOP


async def test_a_bad_grammar_is_refused_before_anything_happens(fleet: Fleet) -> None:
    for grammar in (types_pb2.Grammar(regex="("), types_pb2.Grammar(json_schema='{"$ref": "#"}')):
        for prefill in ("", fleet.prefill.address):
            with pytest.raises(InvalidRequest):
                await run(fleet.jumping, "bad", grammar=grammar, prefill=prefill)
