"""Whatever is drawn from the masks: a finished output is what was asked for, and forced tokens are no choice at all."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.grammar_corpus import MAX_BLANKS, Case, blank_run, corpus
from common.base.errors import InvalidRequest
from common.grammar.llg import Automaton
from tests.support.grammar_walks import allowed, fork, text_of, tiny_grammar_vocabulary, walk

NAMES = st.text('abcxyz_é日"\\ ', min_size=1, max_size=6)
LEAVES: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.sampled_from([{"type": t} for t in ("string", "integer", "number", "boolean", "null")]),
    st.lists(st.one_of(NAMES, st.integers(-99, 99), st.booleans(), st.none()), min_size=1, max_size=4).map(
        lambda values: {"enum": values}
    ),
    st.integers(0, 5).map(lambda n: {"type": "string", "minLength": n, "maxLength": n + 4}),
    st.tuples(st.integers(-50, 50), st.integers(0, 500)).map(
        lambda pair: {"type": "integer", "minimum": pair[0], "maximum": pair[0] + pair[1]}
    ),
)


def objects(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Schemas of objects and arrays of others."""

    def made(properties: dict[str, Any], open_: bool) -> dict[str, Any]:
        required = list(properties)[::2]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": open_}

    return st.one_of(
        st.builds(made, st.dictionaries(NAMES, inner, max_size=3), st.just(False)),
        st.builds(
            lambda i, n: {"type": "array", "items": i, "minItems": n, "maxItems": n + 2}, inner, st.integers(0, 2)
        ),
        st.lists(inner, min_size=1, max_size=3).map(lambda options: {"anyOf": options}),
    )


SCHEMAS = st.recursive(LEAVES, objects, max_leaves=8)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SCHEMAS, st.integers(0, 3))
def test_finished_json_fits_its_schema(schema: dict[str, Any], seed: int) -> None:
    output = walk(fork("json_schema", json.dumps(schema)), seed)
    if output is not None:
        text = text_of(output)
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))
        assert blank_run(text) <= MAX_BLANKS


@pytest.mark.parametrize("case", corpus(), ids=lambda case: case.name)
def test_the_corpus_is_kept(case: Case) -> None:
    finished = [output for seed in range(4) if (output := walk(fork(case.kind, case.text), seed)) is not None]
    assert finished, "no walk ended"
    for output in finished:
        assert case.keeps(text_of(output)), text_of(output)


def test_the_judges_of_the_corpus_can_say_no() -> None:
    for case in corpus():
        wrong = '{"x": 1, "y": [' if case.kind == "json_schema" else "\n?!wrong"
        with contextlib.suppress(json.JSONDecodeError):
            assert not case.keeps(wrong)
    assert blank_run('{"a":          1}') == 10 and blank_run('{"a          b": 1}') == 1


@pytest.mark.parametrize("case", corpus(), ids=lambda case: case.name)
def test_forced_tokens_are_what_stepping_draws(case: Case) -> None:
    """At every forced token the mask has this one bit, and stepping through them forces the rest."""
    automaton, seen = fork(case.kind, case.text), 0
    output = walk(fork(case.kind, case.text), seed=1) or []
    for place, token in enumerate(output):
        forced = automaton.forced()
        if forced:
            seen += 1
            stepped = fork(case.kind, case.text)
            stepped.advance(output[:place])
            for index, one in enumerate(forced):
                assert allowed(stepped.mask()) == [one]
                stepped.advance([one])
                assert stepped.complete or stepped.forced()[: len(forced) - index - 1] == forced[index + 1 :]
        automaton.advance([token])
    if case.name == "schema three fields":
        assert seen > 5, "nothing was forced where much is"


@pytest.mark.parametrize("case", corpus()[::4], ids=lambda case: case.name)
def test_a_replayed_output_goes_on_alike(case: Case) -> None:
    output = walk(fork(case.kind, case.text), seed=2) or []
    one_by_one = fork(case.kind, case.text)
    for place, token in enumerate(output):
        if not one_by_one.complete:
            replayed = fork(case.kind, case.text)
            replayed.advance(output[:place])
            assert replayed.mask() == one_by_one.mask() and replayed.forced() == one_by_one.forced()
            assert replayed.accepting == one_by_one.accepting
        one_by_one.advance([token])


def test_an_output_that_breaks_the_grammar_is_refused() -> None:
    automaton: Automaton = fork("json_schema", '{"type": "boolean"}')
    with pytest.raises(InvalidRequest):
        automaton.advance(tiny_grammar_vocabulary().encode("7"))
    with pytest.raises(InvalidRequest):
        automaton.mask()
