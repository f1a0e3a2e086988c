"""A backend without a model, to see what a program would say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pando.lang.backend import Answer, Backend, Listener, Position
from pando.lang.expr import Gen, Select


class TraceBackend(Backend):
    """Writes `<name>` where a model would write."""

    def generate(self, at: Position, gen: Gen, listener: Listener) -> Answer:
        """See `Backend`."""
        text = f"<{gen.name or 'gen'}>"
        listener.said(text)
        return _answer(at, [text] * gen.options.get("n", 1))

    def select(self, at: Position, select: Select) -> Answer:
        """See `Backend`."""
        return _answer(at, [f"<{select.name or 'select'}: {' | '.join(select.choices)}>"])


def _answer(at: Position, texts: Sequence[str]) -> Answer:
    metas: list[Mapping[str, Any]] = [{} for _ in texts]
    return Answer(texts, metas, replace(at, script=at.script.append(texts[0])))
