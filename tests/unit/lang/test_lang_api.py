"""`gen` and `select` as values: names, constraints, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from common.base.errors import InvalidRequest
from pando.lang import gen, gen_int, gen_string, greedy_token_selection, select, token_length_normalized
from pando.lang.expr import Gen, Select, Text, atoms


def options(expr: Gen | Select) -> dict[str, Any]:
    assert isinstance(expr, Gen)
    return dict(expr.options)


def test_only_what_is_given() -> None:
    assert gen() == Gen("", {})
    assert options(gen("x", 5, stop=["a"], temperature=0.0)) == {"max_tokens": 5, "stop": ["a"], "temperature": 0.0}


def test_logprobs_by_sglangs_names() -> None:
    assert options(gen("x", return_logprob=True)) == {"logprobs": 0}
    full = gen("x", return_logprob=True, top_logprobs_num=3, logprob_start_len=0)
    assert options(full) == {"logprobs": 3, "prompt_logprobs": 0}
    assert options(gen("x", top_logprobs_num=3)) == {}
    part = options(gen("x", return_logprob=True, logprob_start_len=5))
    assert part == {"logprobs": 0, "prompt_logprobs": 0, "prompt_logprobs_start": 5}
    assert options(gen("x", return_logprob=True, logprob_start_len=-1)) == {"logprobs": 0}


def test_constraints() -> None:
    class Report:
        @staticmethod
        def model_json_schema() -> dict[str, Any]:
            return {"title": "Report"}

    assert options(gen("x", regex="[0-9]+")) == {"regex": "[0-9]+"}
    assert options(gen("x", ebnf="root ::= x")) == {"ebnf": "root ::= x"}
    assert options(gen("x", json_schema="{}")) == {"json_schema": "{}"}
    assert options(gen("x", json_schema=Report)) == {"json_schema": {"title": "Report"}}
    assert options(gen_int("x")) == options(gen("x", dtype=int)) == {"regex": r"[-+]?[0-9]+"}
    assert '"' in options(gen_string("x"))["regex"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"regex": "("},
        {"regex": "a", "ebnf": "b"},
        {"regex": "a", "dtype": int},
        {"json_schema": "{}", "dtype": int},
        {"dtype": list},
    ],
)
def test_constraints_that_cannot_be(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        gen("x", **arguments)


def test_choices() -> None:
    assert gen("x", choices=["a", "b"]) == Select("x", ("a", "b"), token_length_normalized)
    picked = select("x", ["a"], choices_method=greedy_token_selection)
    assert picked == gen("x", choices=["a"], choices_method=greedy_token_selection)
    with pytest.raises(InvalidRequest):
        select("x", [])


def test_sums_keep_their_order() -> None:
    expr = "a" + gen("x") + "b" + ("c" + gen("y"))
    assert list(atoms(expr)) == [Text("a"), Gen("x"), Text("b"), Text("c"), Gen("y")]
    with pytest.raises(TypeError):
        gen("x") + 5  # type: ignore[operator]
