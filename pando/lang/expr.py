"""What a program appends to its state: texts, calls of the model, roles. Immutable values; nothing here runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pando.lang.choices import ChoicesMethod

ROLES = ("system", "user", "assistant")


class Expr:
    """Anything that `s += ...` takes; expressions and strings add up to longer ones."""

    def __add__(self, other: Expr | str) -> Joined:
        return Joined((self, as_expr(other)))

    def __radd__(self, other: str) -> Joined:
        return Joined((as_expr(other), self))


@dataclass(slots=True, frozen=True)
class Text(Expr):
    """Constant text."""

    text: str


@dataclass(slots=True, frozen=True)
class Gen(Expr):
    """A call of the model. `options` are those of `pando.Client.generate`; `name` is "" when nobody asks for it."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def over(self, defaults: Mapping[str, Any]) -> Gen:
        """The same call, with defaults for what it leaves open."""
        return replace(self, options={**defaults, **self.options})


@dataclass(slots=True, frozen=True)
class Select(Expr):
    """A pick of the likeliest of some texts."""

    name: str
    choices: tuple[str, ...]
    method: ChoicesMethod


@dataclass(slots=True, frozen=True)
class RoleBegin(Expr):
    """A message begins."""

    role: str


@dataclass(slots=True, frozen=True)
class RoleEnd(Expr):
    """A message ends."""

    role: str


@dataclass(slots=True, frozen=True)
class ScopeBegin(Expr):
    """From here on text belongs to a variable."""

    name: str


@dataclass(slots=True, frozen=True)
class ScopeEnd(Expr):
    """Up to here text belongs to a variable."""

    name: str


@dataclass(slots=True, frozen=True)
class Warm(Expr):
    """Have the KV of everything so far computed, because several will go on from here."""


@dataclass(slots=True, frozen=True)
class Joined(Expr):
    """Several expressions, one after another."""

    parts: tuple[Expr, ...]


def as_expr(value: object) -> Expr:
    """A string or expression as an expression. Raises TypeError for anything else."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, str):
        return Text(value)
    raise TypeError(f"only text and expressions can be appended, not {type(value).__name__}")


def atoms(expr: Expr) -> Iterator[Expr]:
    """The parts of an expression that are no `Joined` themselves, in order."""
    left = [expr]
    while left:
        one = left.pop()
        if isinstance(one, Joined):
            left.extend(reversed(one.parts))
        else:
            yield one


def names(expr: Expr) -> Sequence[str]:
    """The variables that one atom sets."""
    return [expr.name] if isinstance(expr, Gen | Select | ScopeEnd) and expr.name else []
