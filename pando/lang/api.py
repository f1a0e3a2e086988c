"""The words of the language: `function`, `gen`, `select` and the roles. They make values; nothing here runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from common.base.errors import InvalidRequest
from pando.lang.choices import ChoicesMethod, token_length_normalized
from pando.lang.expr import Expr, Gen, Joined, RoleBegin, RoleEnd, Select, as_expr
from pando.lang.program import Program

PATTERNS: Mapping[type, str] = {
    int: r"[-+]?[0-9]+",
    float: r"[-+]?[0-9]*\.?[0-9]+",
    bool: r"(True|False)",
    str: r"\"[\w\d\s]*\"",
}
"""What `gen(dtype=...)` may write."""


@overload
def function(func: Callable[..., Any]) -> Program: ...
@overload
def function(func: None = None) -> Callable[[Callable[..., Any]], Program]: ...
def function(func: Callable[..., Any] | None = None) -> Program | Callable[[Callable[..., Any]], Program]:
    """Make a program of a function whose first argument is the state."""
    return Program if func is None else Program(func)


def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    *,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    stop_token_ids: Sequence[int] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    repetition_penalty: float | None = None,
    ignore_eos: bool | None = None,
    seed: int | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    dtype: type | None = None,
    choices: Sequence[str] | None = None,
    choices_method: ChoicesMethod | None = None,
    regex: str | None = None,
    json_schema: str | Mapping[str, Any] | type | None = None,
    ebnf: str | None = None,
) -> Gen | Select:
    """Have the model write here. What is left open takes the run's defaults.

    Args:
        name: of the variable that gets the text; None: nobody needs it.
        n: several continuations; the variable is a list, and the program goes on after the first.
        stop: the text ends before the first of these.
        return_logprob: logprobs in the meta info, with `top_logprobs_num` alternatives; those of the prompt's
            tokens too from position `logprob_start_len` on (-1: none).
        dtype: int, float, bool or str: write one of these.
        choices: pick one of these instead, as `select` does, by `choices_method`.
        regex, json_schema, ebnf: what the text must match; a schema is JSON text, a mapping or a pydantic model.

    Raises:
        InvalidRequest: constraints that exclude each other, or a broken pattern.
    """
    if choices is not None:
        return select(name, choices, choices_method=choices_method or token_length_normalized)
    prompt_start = logprob_start_len if return_logprob and logprob_start_len is not None else -1
    options = {
        "max_tokens": max_tokens,
        "min_tokens": min_tokens,
        "n": n,
        "stop": stop,
        "stop_token_ids": stop_token_ids,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "frequency_penalty": frequency_penalty,
        "presence_penalty": presence_penalty,
        "repetition_penalty": repetition_penalty,
        "ignore_eos": ignore_eos,
        "seed": seed,
        "logprobs": (top_logprobs_num or 0) if return_logprob else None,
        "prompt_logprobs": 0 if prompt_start >= 0 else None,
        "prompt_logprobs_start": prompt_start if prompt_start > 0 else None,
        **_constraint(regex, json_schema, ebnf, dtype),
    }
    return Gen(name or "", {key: value for key, value in options.items() if value is not None})


def gen_int(name: str | None = None, **options: Any) -> Gen | Select:
    """`gen` of a whole number."""
    return gen(name, dtype=int, **options)


def gen_string(name: str | None = None, **options: Any) -> Gen | Select:
    """`gen` of a string in double quotes."""
    return gen(name, dtype=str, **options)


def select(
    name: str | None = None,
    choices: Sequence[str] | None = None,
    temperature: float = 0.0,
    choices_method: ChoicesMethod = token_length_normalized,
) -> Select:
    """Append the likeliest of some texts. `temperature` is there for SGLang's callers and has no effect there either.

    Raises:
        InvalidRequest: no choices.
    """
    if not choices:
        raise InvalidRequest("select needs choices", param="choices")
    return Select(name or "", tuple(choices), choices_method)


def system(expr: Expr | str | None = None) -> Joined:
    """A system message."""
    return _message("system", expr)


def user(expr: Expr | str | None = None) -> Joined:
    """A user message."""
    return _message("user", expr)


def assistant(expr: Expr | str | None = None) -> Joined:
    """An assistant message; `gen` and `select` go in here."""
    return _message("assistant", expr)


def system_begin() -> RoleBegin:
    """Begin a system message; it ends with `system_end`."""
    return RoleBegin("system")


def system_end() -> RoleEnd:
    """End a system message."""
    return RoleEnd("system")


def user_begin() -> RoleBegin:
    """Begin a user message; it ends with `user_end`."""
    return RoleBegin("user")


def user_end() -> RoleEnd:
    """End a user message."""
    return RoleEnd("user")


def assistant_begin() -> RoleBegin:
    """Begin an assistant message; it ends with `assistant_end`."""
    return RoleBegin("assistant")


def assistant_end() -> RoleEnd:
    """End an assistant message."""
    return RoleEnd("assistant")


def _message(role: str, expr: Expr | str | None) -> Joined:
    return Joined((RoleBegin(role), as_expr("" if expr is None else expr), RoleEnd(role)))


def _constraint(regex: str | None, json_schema: Any, ebnf: str | None, dtype: type | None) -> dict[str, Any]:
    if dtype is not None and dtype not in PATTERNS:
        raise InvalidRequest(f"dtype must be int, float, bool or str, not {dtype!r}", param="dtype")
    found = {
        "regex": regex if dtype is None else PATTERNS[dtype],
        "json_schema": json_schema.model_json_schema() if hasattr(json_schema, "model_json_schema") else json_schema,
        "ebnf": ebnf,
    }
    given = [name for name, value in found.items() if value is not None]
    if len(given) > 1 or (dtype is not None and regex is not None):
        raise InvalidRequest("only one of regex, json_schema, ebnf and dtype", param=given[-1])
    if regex is not None:
        try:
            re.compile(regex)
        except re.error as error:
            raise InvalidRequest(f"regex: {error}", param="regex") from error
    return found
