"""A program: a function over a state, and the ways to run it."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from pando.lang import batch, default
from pando.lang.backend import Backend, Position
from pando.lang.executor import Executor, Run
from pando.lang.state import ProgramState
from pando.lang.trace import TraceBackend

DEFAULT_MAX_TOKENS = 128
_DEFAULTS = {
    "max_new_tokens": "max_tokens",
    **{
        name: name
        for name in (
            "max_tokens",
            "min_tokens",
            "stop",
            "stop_token_ids",
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "frequency_penalty",
            "presence_penalty",
            "repetition_penalty",
            "ignore_eos",
            "seed",
            "cache_salt",
            "priority",
            "session_id",
        )
    },
}
"""Keyword arguments of `run` that are defaults for the program's calls of the model, and their names there."""


class Program:
    """Made by `@function`. Call it, or use `run`, `run_batch` and `trace`."""

    def __init__(self, func: Callable[..., Any]) -> None:
        functools.update_wrapper(self, func)
        self._func = func
        parameters = list(inspect.signature(func).parameters.values())
        if not parameters:
            raise TypeError(f"{func.__name__} needs the state as its first argument")
        self._parameters = parameters[1:]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """`run`; with a state as the first argument, append to that one and return what the function returns."""
        if args and isinstance(args[0], ProgramState):
            return self._func(*args, **kwargs)
        return self.run(*args, **kwargs)

    def run(self, *args: Any, backend: Backend | None = None, stream: bool = False, **kwargs: Any) -> ProgramState:
        """Run the program once.

        Args:
            args, kwargs: the function's arguments, and defaults for its calls of the model (max_new_tokens, 128;
                temperature, stop, top_p, ...); a name that is both is the function's.
            backend: where it runs; None: what `set_default_backend` was given.
            stream: return at once while it runs on another thread; read `text_iter` or the variables.

        Raises:
            PandoError: a call of the model failed, and the program did not catch it.
        """
        own, defaults = self._split(kwargs)
        run = Run(backend or default.backend(), defaults)
        state = ProgramState(Executor(run, Position(), {}, {}))
        if not stream:
            self._execute(run, state, args, own)
            return state
        run.reader = threading.get_ident()
        thread = threading.Thread(target=self._execute_aside, args=(run, state, args, own), name="pando-program")
        thread.start()
        return state

    def run_batch(
        self,
        batch_kwargs: Sequence[Mapping[str, Any]],
        *,
        backend: Backend | None = None,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        return_errors: bool = False,
        **defaults: Any,
    ) -> list[ProgramState]:
        """Run the program once per entry, several at a time; states in the order of the entries.

        The first one begins alone; when the model begins to answer it, the prefix that all share is in the cache and
        the others start.

        Args:
            batch_kwargs: the function's arguments.
            num_threads: how many run at a time; "auto": 32.
            progress_bar: show one on stderr.
            return_errors: keep what failed in its state (`state.error()`) instead of raising the first error.
            defaults: as for `run`.
        """
        chosen = backend or default.backend()
        jobs = []
        for entry in batch_kwargs:
            own, options = self._split({**defaults, **entry})
            run = Run(chosen, options)
            state = ProgramState(Executor(run, Position(), {}, {}))
            jobs.append(batch.Job(run, state, functools.partial(self._execute, run, state, (), own)))
        batch.run_jobs(jobs, num_threads=num_threads, progress_bar=progress_bar, return_errors=return_errors)
        return [job.state for job in jobs]

    def trace(self, *args: Any, **kwargs: Any) -> str:
        """What the program would say, as plain text, without a model: `<name>` stands for what it would write.

        Arguments that are not given are shown as `<argument>` too.
        """
        bound = {parameter.name: f"<{parameter.name}>" for parameter in self._parameters[len(args) :]}
        bound = {name: value for name, value in bound.items() if self._is_needed(name)}
        return self.run(*args, backend=TraceBackend(), **{**bound, **kwargs}).text()

    def _is_needed(self, name: str) -> bool:
        parameter = next(parameter for parameter in self._parameters if parameter.name == name)
        named = parameter.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        return named and parameter.default is inspect.Parameter.empty

    def _split(self, kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The function's own arguments, and defaults for its calls."""
        names = {parameter.name for parameter in self._parameters}
        own = {name: value for name, value in kwargs.items() if name in names or name not in _DEFAULTS}
        options = {_DEFAULTS[name]: value for name, value in kwargs.items() if name not in own and value is not None}
        return own, {"max_tokens": DEFAULT_MAX_TOKENS, **options}

    def _execute(self, run: Run, state: ProgramState, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        finished = False
        try:
            state.ret_value = self._func(state, *args, **kwargs)
            finished = True
        finally:
            run.finish(stop=not finished)
        error = run.unseen_error()
        if error is not None:
            raise error

    def _execute_aside(self, run: Run, state: ProgramState, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """On a thread of its own an error goes into the state, where the reader finds it."""
        try:
            self._execute(run, state, args, kwargs)
        except Exception as error:  # noqa: BLE001 - carried to the reader
            state.fail(error)
