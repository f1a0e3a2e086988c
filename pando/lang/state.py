"""What a program holds in its hand: its state `s`, and the forks of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from common.base.errors import Unsupported
from pando.lang.executor import Executor
from pando.lang.expr import Expr, Joined, RoleBegin, RoleEnd, ScopeBegin, ScopeEnd, Warm, as_expr


class ProgramState:
    """A prompt that grows: `s += text`, `s += gen("x")`, `s["x"]`.

    Appending returns at once; reading a variable waits for it. After the run the state keeps text, variables and meta
    infos.

    Attributes:
        ret_value: what the program returned.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.ret_value: Any = None

    def __iadd__(self, other: Expr | str) -> Self:
        self._executor.submit(as_expr(other))
        return self

    def __getitem__(self, name: str) -> Any:
        return self._executor.get(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self._executor.set(name, value)

    def __contains__(self, name: object) -> bool:
        """Whether the variable is there, once everything that was appended is done."""
        self._executor.wait_idle()
        return name in self._executor.snapshot()[0]

    def get_var(self, name: str) -> Any:
        """`s[name]`."""
        return self[name]

    def set_var(self, name: str, value: Any) -> None:
        """`s[name] = value`."""
        self[name] = value

    def get_meta_info(self, name: str) -> Any:
        """What is known of the call that set a variable: tokens, cached_tokens, finish_reason, logprobs, ...

        A list with one entry per choice when n > 1, or by fork after a join.
        """
        return self._executor.get(name, meta=True)

    def text(self) -> str:
        """All text so far; of a conversation each message with its role in front. Waits; raises the state's error."""
        self._executor.sync()
        return self._executor.position.script.plain()

    def messages(self) -> list[dict[str, str]]:
        """The messages so far, as OpenAI writes them. Waits; raises the state's error."""
        self._executor.sync()
        messages = self._executor.position.script.messages
        return [{"role": message.role, "content": message.content} for message in messages]

    def sync(self) -> None:
        """Wait until everything appended so far is done. Raises the state's error."""
        self._executor.sync()

    def error(self) -> Exception | None:
        """What ended the state, or None. Waits; raises nothing, and counts as having seen it."""
        self._executor.wait_idle()
        self._executor.error_seen |= self._executor.error is not None
        return self._executor.error

    def fail(self, error: Exception) -> None:
        """End the state with an error, unless it has one."""
        self._executor.fail(error)
        self._executor.close()

    def system(self, expr: Expr | str | None = None) -> Any:
        """Append a system message; without an argument a context in which to append its parts."""
        return self._role("system", expr)

    def user(self, expr: Expr | str | None = None) -> Any:
        """Append a user message; without an argument a context in which to append its parts."""
        return self._role("user", expr)

    def assistant(self, expr: Expr | str | None = None) -> Any:
        """Append an assistant message; without an argument a context in which to append its parts."""
        return self._role("assistant", expr)

    def fork(self, size: int = 1) -> Forks:
        """States that go on from here, each for itself. Waits for this one; raises its error."""
        if size > 1:
            self._executor.submit(Warm())
        self._executor.sync()
        values, metas = self._executor.snapshot()
        position, run = self._executor.position, self._executor.run
        return Forks(self, [ProgramState(Executor(run, position, values, metas)) for _ in range(size)], set(values))

    @contextmanager
    def copy(self) -> Iterator[ProgramState]:
        """One fork, for a `with`."""
        yield self.fork(1)[0]

    @contextmanager
    def var_scope(self, name: str) -> Iterator[None]:
        """What is appended inside becomes a variable."""
        self._executor.submit(ScopeBegin(name))
        yield
        self._executor.submit(ScopeEnd(name))

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """The text, or that of one variable, piece by piece as it comes. Raises the state's error at the end."""
        yield from self._executor.tape.read(var_name or "")
        self._executor.raise_error()

    async def text_async_iter(self, var_name: str | None = None) -> AsyncIterator[str]:
        """`text_iter` for an event loop."""
        async for text in self._executor.tape.read_async(var_name or ""):
            yield text
        self._executor.raise_error()

    def variables(self) -> dict[str, Any]:
        """All variables that are set now."""
        return self._executor.snapshot()[0]

    def _role(self, role: str, expr: Expr | str | None) -> Any:
        if expr is None:
            return self._in_role(role)
        self._executor.submit(Joined((RoleBegin(role), as_expr(expr), RoleEnd(role))))
        return None

    @contextmanager
    def _in_role(self, role: str) -> Iterator[None]:
        self._executor.submit(RoleBegin(role))
        yield
        self._executor.submit(RoleEnd(role))


class Forks:
    """The forks of one state: index them, iterate over them, append to all of them at once."""

    def __init__(self, parent: ProgramState, states: Sequence[ProgramState], before: set[str]) -> None:
        self._parent = parent
        self._before = before
        self.states = list(states)

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, index: int) -> ProgramState:
        return self.states[index]

    def __setitem__(self, index: int, state: ProgramState) -> None:
        """Makes `forks[i] += ...` work; a state cannot be replaced by another."""
        if state is not self.states[index]:
            raise TypeError("a fork cannot be replaced")

    def __iter__(self) -> Iterator[ProgramState]:
        return iter(self.states)

    def __iadd__(self, other: Expr | str | Sequence[Expr | str] | Callable[[int], Expr | str]) -> Self:
        """Append the same to all; of a list, to each its own; of a function, what it returns for the fork's index."""
        if isinstance(other, str | Expr):
            parts = [as_expr(other)] * len(self)
        elif callable(other):
            parts = [as_expr(other(index)) for index in range(len(self))]
        else:
            parts = [as_expr(part) for part in other]
        for state, part in zip(self.states, parts, strict=True):
            state += part  # noqa: PLW2901 - appends in place
        return self

    def join(self, mode: str = "gather_variable") -> None:
        """Wait for all forks; what they set that the parent had not becomes, in the parent, a list by fork, and so
        does its meta info.

        Raises:
            PandoError: the error of the first fork that failed, once none runs any more.
        """
        if mode != "gather_variable":
            raise Unsupported(f"join mode {mode!r}: only gather_variable; append the forks' variables instead")
        errors = [error for state in self.states if (error := state.error()) is not None]
        if errors:
            raise errors[0]
        gathered: dict[str, tuple[list[Any], list[Any]]] = {}
        for state in self.states:
            values, metas = state._executor.snapshot()
            for name, value in values.items():
                if name not in self._before:
                    told = gathered.setdefault(name, ([], []))
                    told[0].append(value)
                    told[1].extend([metas[name]] if name in metas else ())
        for name, (found, infos) in gathered.items():
            self._parent._executor.set(name, found, infos or None)
