"""What `bench/serve.py` asks for: conversations, made from a seed, the same ones every time. Pure.

A conversation is a system message and user turns; workloads of single requests are conversations of one turn. Lengths
are in words of a small English list, which most tokenizers take as one token each; the report has the true counts.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

_WORD_LIST = """
time year people way day man thing woman life child world school state family student group country problem hand part
place case week company system program question work number night point home water room mother area money story fact
month lot right study book eye job word business issue side kind head house service friend father power
"""
WORKLOADS = ("cold", "shared-prefix", "multi-turn", "batch")
SHARED_SHARE = 0.9
"""Part of a shared-prefix prompt that all requests have in common."""


@dataclass(slots=True, frozen=True)
class Shape:
    """Sizes of a workload: requests in all, words of each (first) prompt, words of later turns, turns, seed."""

    requests: int = 32
    input_words: int = 256
    turns: int = 6
    turn_words: int = 32
    seed: int = 0


@dataclass(slots=True, frozen=True)
class Conversation:
    """One client's requests: each turn is sent with the answers to all before it."""

    system: str
    turns: tuple[str, ...]


def make_workload(name: str, shape: Shape) -> list[Conversation]:
    """The conversations of a workload; raises ValueError for a name that is not in WORKLOADS."""
    random_ = random.Random(f"{name} {shape.seed}")
    if name in ("cold", "batch"):
        return [Conversation("", (_words(random_, shape.input_words),)) for _ in range(shape.requests)]
    if name == "shared-prefix":
        num_shared = int(shape.input_words * SHARED_SHARE)
        system = _words(random_, num_shared)
        num_own = max(1, shape.input_words - num_shared)
        return [Conversation(system, (_words(random_, num_own),)) for _ in range(shape.requests)]
    if name == "multi-turn":
        num_conversations = max(1, shape.requests // shape.turns)
        return [_dialogue(random_, shape) for _ in range(num_conversations)]
    raise ValueError(f"unknown workload {name!r}; one of {', '.join(WORKLOADS)}")


def _dialogue(random_: random.Random, shape: Shape) -> Conversation:
    lengths = [shape.input_words] + [shape.turn_words] * (shape.turns - 1)
    return Conversation("", tuple(_words(random_, length) for length in lengths))


def _words(random_: random.Random, count: int) -> str:
    return " ".join(random_.choices(_WORD_LIST.split(), k=count))
