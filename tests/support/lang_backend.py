"""A backend for tests of the language: its answers are a function of the prompt, and it can pause, fail and count."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from common.base.errors import PandoError
from pando.lang.backend import Answer, Backend, Listener, Position
from pando.lang.expr import Gen, Select


class FakeBackend(Backend):
    """Writes what `answer` makes of the prompt's text, letter by letter.

    Attributes:
        prompts: the plain text of every prompt, in order of arrival.
        gens: the calls.
        max_active: most calls that ran at the same time.
        gate: calls wait for it after their first letter; open unless a test closes it.
    """

    def __init__(self, answer: Callable[[str], str | PandoError] = lambda prompt: f"[{len(prompt)}]") -> None:
        self.prompts: list[str] = []
        self.gens: list[Gen] = []
        self.warmed: list[str] = []
        self.max_active = self._active = 0
        self.gate = threading.Event()
        self.gate.set()
        self._answer = answer
        self._changed = threading.Condition()

    def wait_for_prompts(self, count: int) -> bool:
        """Wait until that many calls have come."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self.prompts) >= count, timeout=10)

    def generate(self, at: Position, gen: Gen, listener: Listener) -> Answer:
        """See `Backend`."""
        with self._changed:
            self.prompts.append(at.script.plain())
            self.gens.append(gen)
            self._active += 1
            self.max_active = max(self.max_active, self._active)
            self._changed.notify_all()
        try:
            return self._run(at, gen, listener)
        finally:
            with self._changed:
                self._active -= 1

    def _run(self, at: Position, gen: Gen, listener: Listener) -> Answer:
        answer = self._answer(at.script.plain())
        if isinstance(answer, PandoError):
            raise answer
        for letter in answer:
            listener.said(letter)
            assert self.gate.wait(timeout=10), "the gate stayed closed"
        num = gen.options.get("n", 1)
        texts = [answer, *(f"{answer}#{index}" for index in range(1, num))]
        metas: list[dict[str, Any]] = [{"completion_tokens": len(text)} for text in texts]
        return Answer(texts, metas, Position(at.script.append(answer), at.memo))

    def select(self, at: Position, select: Select) -> Answer:
        """Picks the longest."""
        best = max(select.choices, key=len)
        return Answer([best], [{"picked": best}], Position(at.script.append(best), at.memo))

    def warm(self, at: Position) -> Position:
        """See `Backend`."""
        self.warmed.append(at.script.plain())
        return at
