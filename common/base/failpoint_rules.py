"""What a failpoint can do when it is hit, and the text that says so.

::

    rules  := rule { (";" | newline) rule }          tried in order, the first that fires decides
    rule   := [percent "%"] [count "*"] action ["(" argument {"," argument} ")"]
    action := delay(seconds) | fail | truncate | flip | flip(recompute) | drop | off

`30%flip`, `3*fail`, `10%delay(0.5)`, `2*off;1*fail(seed=7)`. A rule without percent fires at every hit, one without
count for ever. Every rule draws from a random generator of its own, so that the same hits in the same order have the
same faults. The syntax is that of FreeBSD's fail(9), as far as it goes.

It knows neither names nor files nor who suffers.
"""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass
from enum import StrEnum

from common.base.errors import InvalidRequest

MAX_DELAY_S = 3600.0
MAX_RULES = 32
MAX_TEXT_CHARS = 4096
_RULE = re.compile(
    r"(?:(?P<percent>[0-9.]+)%)?(?:(?P<count>[0-9]{1,18})\*)?(?P<action>[a-z]+)(?:\((?P<arguments>[^()]*)\))?"
)


class Action(StrEnum):
    """What happens to whoever hits the failpoint."""

    DELAY = "delay"
    FAIL = "fail"
    DROP = "drop"
    TRUNCATE = "truncate"
    FLIP = "flip"
    OFF = "off"
    """Nothing: uses up hits, so that `2*off;fail` spares the first two."""


@dataclass(slots=True, frozen=True)
class Fault:
    """What one hit has to suffer.

    Attributes:
        action: DELAY (by `delay_s`), FAIL (with an error), DROP (never answer), TRUNCATE or FLIP (the payload).
        delay_s: seconds, for DELAY.
        recompute: for FLIP: the checksum is made to fit the flipped bytes; only a keyed tag can catch that.
        draw: random in [0, 1): where the payload is cut or which bit flips.
    """

    action: Action
    delay_s: float = 0.0
    recompute: bool = False
    draw: float = 0.0

    def cut(self, num_bytes: int) -> int:
        """How much is left of a payload: less than `num_bytes` for TRUNCATE, all of it otherwise."""
        return int(self.draw * num_bytes) if self.action is Action.TRUNCATE else num_bytes

    def flip(self, payload: bytearray | memoryview) -> None:
        """Flip one bit in place for FLIP; nothing otherwise, or when there are no bytes. A memoryview is of bytes."""
        if self.action is Action.FLIP and len(payload):
            bit = int(self.draw * len(payload) * 8)
            payload[bit // 8] ^= 1 << bit % 8

    def damage(self, payload: bytes | bytearray | memoryview) -> bytes:
        """A copy of the payload, cut or flipped as the action says."""
        copy = bytearray(payload)[: self.cut(len(payload))]
        self.flip(copy)
        return bytes(copy)


@dataclass(slots=True, frozen=True)
class Rule:
    """One parsed rule.

    Attributes:
        action: what happens.
        percent: share of the hits that fire, in (0, 100].
        count: how often it fires; None is for ever.
        delay_s: seconds, for DELAY.
        recompute: see `Fault`.
        seed: of its random generator; None leaves the choice to whoever arms it.
    """

    action: Action
    percent: float = 100.0
    count: int | None = None
    delay_s: float = 0.0
    recompute: bool = False
    seed: int | None = None

    def __str__(self) -> str:
        percent = "" if self.percent == 100.0 else f"{self.percent:g}%"
        count = "" if self.count is None else f"{self.count}*"
        arguments = [f"{self.delay_s:g}"] if self.action is Action.DELAY else ["recompute"] if self.recompute else []
        arguments += [] if self.seed is None else [f"seed={self.seed}"]
        return f"{percent}{count}{self.action}" + (f"({','.join(arguments)})" if arguments else "")


class ArmedRule:
    """A rule at work: what is left of its count, and its random generator."""

    def __init__(self, rule: Rule, default_seed: str) -> None:
        self.rule = rule
        self.left = rule.count
        self._random = random.Random(default_seed if rule.seed is None else rule.seed)

    def hit(self) -> Fault | None:
        """The fault of one hit, None when the rule lets it pass on to the next."""
        if self.left == 0 or self._random.random() * 100 >= self.rule.percent:
            return None
        if self.left is not None:
            self.left -= 1
        return Fault(self.rule.action, self.rule.delay_s, self.rule.recompute, self._random.random())


def parse_rules(text: str) -> tuple[Rule, ...]:
    """The rules of a text, in order; at least one.

    Raises:
        InvalidRequest: param `rule`; says which part is wrong.
    """
    parts = [part for part in re.split(r"[;\n]", re.sub(r"[ \t\r]", "", text)) if part]
    if len(text) > MAX_TEXT_CHARS or len(parts) > MAX_RULES:
        raise _bad(f"a failpoint takes at most {MAX_RULES} rules in {MAX_TEXT_CHARS} characters")
    if not parts:
        raise _bad("there is no rule: write for example 30%flip, 3*fail or delay(0.5)")
    return tuple(_parse_rule(part) for part in parts)


def _parse_rule(text: str) -> Rule:
    match = _RULE.fullmatch(text)
    if match is None or match["action"] not in list(Action):
        raise _bad(f"{text!r} is no rule: [percent%][count*]action, action one of {', '.join(Action)}")
    action = Action(match["action"])
    percent = _number(match["percent"], 100.0, 100.0, f"percent of {text!r}")
    arguments = [part for part in (match["arguments"] or "").split(",") if part]
    seed = None
    if arguments and arguments[-1].startswith("seed="):
        seed = _seed(arguments.pop(), text)
    count = None if match["count"] is None else int(match["count"])
    if action is Action.DELAY and len(arguments) == 1:
        delay_s = _number(arguments[0], 0.0, MAX_DELAY_S, f"delay of {text!r}")
        return Rule(action, percent, count, delay_s=delay_s, seed=seed)
    if action is Action.DELAY or arguments not in ([], ["recompute"]) or (arguments and action is not Action.FLIP):
        raise _bad(f"arguments of {text!r}: delay takes seconds, flip may take recompute, all may end with seed=N")
    return Rule(action, percent, count, recompute=bool(arguments), seed=seed)


def _number(text: str | None, default: float, most: float, what: str) -> float:
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= most:
        raise _bad(f"the {what} must be a number above 0, at most {most:g}")
    return value


def _seed(text: str, rule: str) -> int:
    digits = text.removeprefix("seed=")
    if not (digits.isdecimal() and digits.isascii() and len(digits) <= 18):
        raise _bad(f"the seed of {rule!r} must be a whole number of at most 18 digits")
    return int(digits)


def _bad(message: str) -> InvalidRequest:
    return InvalidRequest(message, param="rule")
