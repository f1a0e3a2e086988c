"""The trial of grammars in a process of its own: verdicts, limits, and what happens when the process dies."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from common.base.errors import InvalidRequest, NotReady, Overloaded
from common.base.limits import LimitsConfig
from common.grammar import checker as checker_module
from common.grammar.checker import GrammarChecker
from common.grammar.spec import GrammarKind, GrammarSpec, check_spec
from tests.support.grammar_walks import tiny_tokenizer
from tests.support.hostile_grammars import REFUSED, SERVED
from tests.support.tiny_model import END, tiny_model_dir

LIMITS = LimitsConfig()
ENDLESS = '{"type": "integer", "multipleOf": %d}'
LIMIT_S = 30.0
"""Far less than a grammar takes that nobody stops; a trial has 0.7 s of CPU, which a busy machine gives late."""


@asynccontextmanager
async def checking(**options: float) -> AsyncGenerator[GrammarChecker, None]:
    made = GrammarChecker(tiny_model_dir(), tiny_tokenizer().vocab_size, (END,), **options)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        await made.close()


def spec(kind: str, text: str) -> GrammarSpec:
    return GrammarSpec(GrammarKind(kind), text)


async def judge(checker: GrammarChecker, kind: str, text: str) -> str:
    """Reason of the refusal, "" for none; as the router does it."""
    try:
        check_spec(spec(kind, text), LIMITS.max_schema_bytes, LIMITS.max_schema_depth)
        await checker.check(spec(kind, text))
    except InvalidRequest as error:
        assert error.param == "response_format" and error.message
        return error.reason
    return ""


async def test_every_hostile_grammar_has_its_verdict_in_time() -> None:
    async with checking() as checker:
        await checker.check(spec("regex", "a"))  # the process is up
        for name, (kind, text) in (REFUSED | SERVED).items():
            began = time.perf_counter()
            reason = await judge(checker, kind, text)
            assert bool(reason) == (name in REFUSED), f"{name}: {reason!r}"
            assert time.perf_counter() - began < LIMIT_S, name


async def test_equal_grammars_are_tried_once_and_verdicts_kept() -> None:
    async with checking() as checker:
        bad, good = spec("regex", "("), spec("regex", "ab")
        answers = await asyncio.gather(*(checker.check(s) for s in (bad, good) * 5), return_exceptions=True)
        assert [isinstance(answer, InvalidRequest) for answer in answers] == [True, False] * 5
        await checker.check(good)
        with pytest.raises(InvalidRequest):
            await checker.check(bad)
        assert checker.num_trials == 2


async def test_the_oldest_verdicts_are_forgotten() -> None:
    async with checking(max_verdicts=2) as checker:
        for text in ("a", "b", "a", "c", "a", "b"):
            await checker.check(spec("regex", text))
        assert checker.num_trials == 4  # a, b, c, and b again


async def test_a_waiter_that_leaves_takes_nobody_with_it() -> None:
    async with checking() as checker:
        first = asyncio.create_task(checker.check(spec("regex", "abc")))
        second = asyncio.create_task(checker.check(spec("regex", "abc")))
        await asyncio.sleep(0)
        first.cancel()
        await second
        assert checker.num_trials == 1


async def test_too_many_new_grammars_at_once_are_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checker_module, "MAX_WAITING", 3)
    async with checking() as checker:
        asks = [checker.check(spec("json_schema", ENDLESS % (99_999_900 + n))) for n in range(5)]
        answers = await asyncio.gather(*asks, return_exceptions=True)
        assert [type(answer) for answer in answers] == [InvalidRequest] * 3 + [Overloaded] * 2


async def test_a_process_that_died_is_replaced_and_says_nothing_about_the_grammar() -> None:
    async with checking(limit_s=5.0) as checker:
        checker.start()
        process = checker._process
        assert process is not None
        ask = asyncio.create_task(checker.check(spec("json_schema", ENDLESS % 99_999_999)))
        while not checker.num_trials:  # noqa: ASYNC110 - a few turns of the loop
            await asyncio.sleep(0)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        with pytest.raises(NotReady):
            await ask
        await checker.check(spec("regex", "a"))


async def test_closing_ends_the_process_and_those_who_wait() -> None:
    async with checking() as checker:
        ask = asyncio.create_task(checker.check(spec("json_schema", ENDLESS % 99_999_999)))
        while not checker.num_trials:  # noqa: ASYNC110 - a few turns of the loop
            await asyncio.sleep(0)
        process = checker._process
        await checker.close()
        with pytest.raises(asyncio.CancelledError):
            await ask
        assert process is not None and process.poll() is not None


async def test_the_process_ends_when_its_parent_is_gone() -> None:
    async with checking() as checker:
        await checker.check(spec("regex", "a"))
        process, channel = checker._process, checker._channel
        assert process is not None and channel is not None
        channel.close()  # what the kernel does when the parent dies
        assert await asyncio.to_thread(process.wait, 60) == 0
