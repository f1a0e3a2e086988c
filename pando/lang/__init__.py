"""A language for programs that call the model many times.

::

    from pando.lang import RuntimeEndpoint, assistant, function, gen, set_default_backend, user

    @function
    def capital(s, country):
        s += user(f"What is the capital of {country}?")
        s += assistant(gen("city", max_tokens=16))

    set_default_backend(RuntimeEndpoint())
    print(capital(country="France")["city"])

The words are those of SGLang's front end; docs/lang.md has the differences. `Runtime` is imported when it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pando.lang.api import (
    assistant,
    assistant_begin,
    assistant_end,
    function,
    gen,
    gen_int,
    gen_string,
    select,
    system,
    system_begin,
    system_end,
    user,
    user_begin,
    user_end,
)
from pando.lang.backend import Backend
from pando.lang.choices import (
    greedy_token_selection,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from pando.lang.default import set_default_backend
from pando.lang.endpoint import RuntimeEndpoint
from pando.lang.openai import OpenAI
from pando.lang.program import Program
from pando.lang.state import Forks, ProgramState

if TYPE_CHECKING:
    from pando.lang.runtime import Runtime

__all__ = [
    "Backend",
    "Forks",
    "OpenAI",
    "Program",
    "ProgramState",
    "Runtime",
    "RuntimeEndpoint",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "greedy_token_selection",
    "select",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
    "user",
    "user_begin",
    "user_end",
]


def __getattr__(name: str) -> Any:
    """`Runtime`, imported now: it is the only name that starts processes."""
    if name != "Runtime":
        raise AttributeError(f"module 'pando.lang' has no attribute {name!r}")
    return importlib.import_module("pando.lang.runtime").Runtime
