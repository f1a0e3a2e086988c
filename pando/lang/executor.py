"""Runs what a program appends to one state: in order, one at a time, off the program's own thread.

The program goes on while its calls of the model run; it waits only where it reads a variable. The states of one run
share a pool of threads. A thread is taken while a state has something to do, and what it does never waits for another
state, so a bounded pool cannot lock up. The first error of a state ends it: what was appended later is dropped, and the
error is raised to whoever reads a variable, and at the end of the run unless somebody has seen it by then.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pando.lang.backend import Answer, Backend, Position
from pando.lang.expr import (
    Expr,
    Gen,
    RoleBegin,
    RoleEnd,
    ScopeBegin,
    ScopeEnd,
    Select,
    Text,
    Warm,
    atoms,
    names,
)
from pando.lang.tape import Piece, Tape

MAX_PARALLEL = 64
MAX_PENDING = 4096


class Stopped(Exception):
    """The run is over: what still runs is of no use to anybody."""


class Run:
    """What the states of one run share.

    Attributes:
        backend: where calls go.
        defaults: options for what calls leave open.
        first_output: set when the model has begun to answer for the first time, or will not.
        reader: the thread that looks on while the program runs on another one (its id), or None. What it reads may
            still be appended, so it waits for the end of the run; all others only for what was appended already.
    """

    def __init__(self, backend: Backend, defaults: Mapping[str, Any], max_parallel: int = MAX_PARALLEL) -> None:
        self.backend = backend
        self.defaults = defaults
        self.first_output = threading.Event()
        self.reader: int | None = None
        self.executors: list[Executor] = []
        self._pool = ThreadPoolExecutor(max_parallel, thread_name_prefix="pando-lang")
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._cancels: dict[Executor, Callable[[], None]] = {}

    def submit(self, executor: Executor) -> None:
        """Give a state a thread."""
        self._pool.submit(executor.work)

    def note_call(self, executor: Executor, cancel: Callable[[], None] | None) -> None:
        """What ends the call that a state makes now; None: it has ended."""
        with self._lock:
            if cancel is None:
                self._cancels.pop(executor, None)
                return
            self._cancels[executor] = cancel
        if self._stopping.is_set():
            cancel()

    def note_output(self) -> None:
        """The model answers. Raises Stopped when nobody wants that any more."""
        self.first_output.set()
        if self._stopping.is_set():
            raise Stopped

    def finish(self, *, stop: bool) -> None:
        """Wait for all states and end the threads; with `stop` calls that still run are cut short."""
        if stop:
            self._stopping.set()
            with self._lock:
                cancels = list(self._cancels.values())
            for cancel in cancels:
                cancel()
        for executor in self.executors:
            executor.wait_idle()
        self._pool.shutdown()
        for executor in self.executors:
            executor.close()
        self.first_output.set()

    def unseen_error(self) -> Exception | None:
        """The first error that nobody has been told of."""
        failed = [executor for executor in self.executors if executor.error is not None and not executor.error_seen]
        return failed[0].error if failed else None


class Executor:
    """One state at work. `submit`, `get` and the like may be called from any thread.

    Attributes:
        position: where the state is; stable while it is idle.
        tape: its text as it comes.
        error: what ended it, or None.
        error_seen: whether that was raised to somebody.
    """

    def __init__(self, run: Run, position: Position, values: Mapping[str, Any], metas: Mapping[str, Any]) -> None:
        self.run = run
        self.position = position
        self.tape = Tape()
        self.error: Exception | None = None
        self.error_seen = False
        self._values, self._metas = dict(values), dict(metas)
        self._changed = threading.Condition()
        self._queue: deque[Expr] = deque()
        self._pending: Counter[str] = Counter()
        self._scopes: dict[str, int] = {}
        self._working = self._closed = False
        run.executors.append(self)

    def submit(self, expr: Expr) -> None:
        """Append an expression; waits while very many are pending. Dropped when the state has failed."""
        for atom in atoms(expr):
            with self._changed:
                self._changed.wait_for(lambda: len(self._queue) < MAX_PENDING or self.error is not None)
                if self.error is not None:
                    return
                self._queue.append(atom)
                self._pending.update(names(atom))
                if not self._working:
                    self._working = True
                    self.run.submit(self)

    def sync(self) -> None:
        """Wait until everything appended so far is done. Raises the state's error."""
        self.wait_idle()
        self.raise_error()

    def wait_idle(self) -> None:
        """Wait until nothing is pending, however it went."""
        looks_on = self._looks_on()
        with self._changed:
            self._changed.wait_for(lambda: not self._working and (self._closed or not looks_on))

    def get(self, name: str, *, meta: bool = False) -> Any:
        """A variable, or its meta info, once nothing that is pending will set it.

        Raises:
            KeyError: nothing sets it; PandoError: the state failed before it was set.
        """
        looks_on = self._looks_on()
        with self._changed:
            self._changed.wait_for(lambda: self._is_settled(name, looks_on))
            found = self._metas if meta else self._values
            if name in found and not self._pending[name]:
                return found[name]
        self.raise_error()
        kind = "meta info of" if meta else "variable"
        raise KeyError(f"no {kind} {name!r}; there are {sorted(found)}")

    def set(self, name: str, value: Any, meta: Any = None) -> None:
        """Set a variable now, with its meta info where there is one."""
        with self._changed:
            self._values[name] = value
            if meta is not None:
                self._metas[name] = meta
            self._changed.notify_all()

    def snapshot(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Copies of variables and meta infos."""
        with self._changed:
            return dict(self._values), dict(self._metas)

    def close(self) -> None:
        """Nothing will be appended any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.tape.close()

    def work(self) -> None:
        """Do what is pending, on a thread of the pool."""
        while True:
            with self._changed:
                if not self._queue or self.error is not None:
                    self._queue.clear()
                    self._working = False
                    self._changed.notify_all()
                    break
                atom = self._queue.popleft()
            try:
                self._do(atom)
            except Exception as error:  # noqa: BLE001 - carried to whoever reads the state
                self.fail(error)
            with self._changed:
                if self.error is None:
                    self._pending.subtract(names(atom))
                self._changed.notify_all()
        if self.error is not None:
            self.tape.close()

    def raise_error(self) -> None:
        """Raise what ended the state, if anything did."""
        if self.error is not None:
            self.error_seen = True
            raise self.error

    def fail(self, error: Exception) -> None:
        """End the state, unless it has ended already."""
        with self._changed:
            if self.error is None:
                self.error = error
                self.error_seen = isinstance(error, Stopped)
            self._changed.notify_all()
        self.run.first_output.set()

    def _looks_on(self) -> bool:
        return threading.get_ident() == self.run.reader

    def _is_settled(self, name: str, looks_on: bool) -> bool:
        if self.error is not None or (name in self._values and not self._pending[name]):
            return True
        return not self._pending[name] and not self._working and (self._closed or not looks_on)

    def _do(self, atom: Expr) -> None:
        match atom:
            case Text(text):
                self._write(text)
            case Gen():
                self._generate(atom.over(self.run.defaults))
            case Select():
                self._select(atom)
            case RoleBegin(role):
                self._move(self.position.script.begin(role))
                self.tape.append(Piece(f"{role}: "))
            case RoleEnd(role):
                self._move(self.position.script.end(role))
                self.tape.append(Piece("\n"))
            case ScopeBegin(name):
                self._scopes[name] = len(self.tape)
            case ScopeEnd(name):
                self.set(name, self.tape.text(self._scopes.pop(name)))
            case Warm():
                self.position = self.run.backend.warm(self.position)
            case _:
                raise TypeError(f"unknown expression {type(atom).__name__}")

    def _write(self, text: str) -> None:
        self._move(self.position.script.append(text))
        self.tape.append(Piece(text))

    def _move(self, script: Any) -> None:
        self.position = Position(script, self.position.memo)

    def _generate(self, gen: Gen) -> None:
        try:
            answer = self.run.backend.generate(self.position, gen, _Ear(self, gen.name))
        finally:
            self.run.note_call(self, None)
        several = gen.options.get("n", 1) > 1
        self._take(gen.name, answer, several)

    def _select(self, select: Select) -> None:
        answer = self.run.backend.select(self.position, select)
        self.run.note_output()
        self.tape.append(Piece(answer.texts[0], select.name))
        self._take(select.name, answer, several=False)

    def _take(self, name: str, answer: Answer, several: bool) -> None:
        self.position = answer.position
        if not name:
            return
        with self._changed:
            self._values[name] = list(answer.texts) if several else answer.texts[0]
            self._metas[name] = list(answer.metas) if several else answer.metas[0]
        self.tape.append(Piece("", name, ends=True))


class _Ear:
    """Hears how a call of one state goes on; a `Listener`."""

    def __init__(self, executor: Executor, name: str) -> None:
        self._executor = executor
        self._name = name

    def began(self, cancel: Callable[[], None]) -> None:
        """See `Listener`."""
        self._executor.run.note_call(self._executor, cancel)

    def said(self, text: str) -> None:
        """See `Listener`. Raises Stopped when nobody wants to know any more."""
        self._executor.run.note_output()
        if text:
            self._executor.tape.append(Piece(text, self._name))
