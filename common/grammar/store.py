"""The grammars of one worker: compiled once, kept while they are used, a matcher for every request.

What comes here has passed the router's trial (`checker`), so it compiles in milliseconds; should it not, the request
fails in bounded time and its thread is written off. Failures are remembered too.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TypeVar

from common.base.errors import InvalidRequest
from common.grammar.llg import Grammar, Vocabulary
from common.grammar.matcher import Matcher
from common.grammar.spec import GrammarSpec, too_complex
from common.grammar.threads import DaemonThreads

COMPILE_LIMIT_S = 5.0
MAX_GRAMMARS = 64
NUM_THREADS = 2

T = TypeVar("T")
Outcome = Grammar | InvalidRequest


class GrammarStore:
    """Makes the constraints of a worker's requests. Lives on one event loop.

    Args:
        vocabulary: of the model.
        jump_forward: let requests jump over tokens that their grammar forces.
        max_grammars: how many compiled ones are kept.
    """

    def __init__(self, vocabulary: Vocabulary, *, jump_forward: bool = True, max_grammars: int = MAX_GRAMMARS) -> None:
        self._vocabulary = vocabulary
        self._jump_forward = jump_forward
        self._max_grammars = max_grammars
        self._grammars: OrderedDict[bytes, Future[Outcome]] = OrderedDict()
        self._compiling = DaemonThreads(NUM_THREADS, "grammar")
        self._masks = DaemonThreads(NUM_THREADS, "mask")

    async def matcher(self, spec: GrammarSpec, output_ids: Sequence[int], *, ignore_eos: bool) -> Matcher:
        """The constraint of one request, which has `output_ids` already.

        Raises:
            InvalidRequest: it is no grammar, costs too much, or forbids that output.
        """
        outcome = await _within(self._compiled(spec))
        if isinstance(outcome, InvalidRequest):
            raise InvalidRequest(outcome.message, reason=outcome.reason, param=outcome.param)
        matcher = Matcher(
            outcome.fork(),
            self._masks,
            self._vocabulary.eos_token_ids,
            ignore_eos=ignore_eos,
            jump_forward=self._jump_forward,
        )
        if output_ids:
            await _within(self._compiling.submit(lambda: matcher.replay(output_ids)))
        return matcher

    def close(self) -> None:
        """End the threads, without waiting for them."""
        self._compiling.close()
        self._masks.close()

    def _compiled(self, spec: GrammarSpec) -> Future[Outcome]:
        """What came, or will come, of compiling `spec`; the least recently used ones are forgotten."""
        future = self._grammars.get(spec.digest)
        if future is None:
            future = self._grammars[spec.digest] = self._compiling.submit(lambda: self._compile(spec))
            while len(self._grammars) > self._max_grammars:
                self._grammars.popitem(last=False)
        self._grammars.move_to_end(spec.digest)
        return future

    def _compile(self, spec: GrammarSpec) -> Outcome:
        try:
            return self._vocabulary.compile(spec)
        except InvalidRequest as error:
            return error


async def _within(future: Future[T]) -> T:
    """Wait for a thread, for so long; the thread goes on if nobody waits any more."""
    try:
        return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), COMPILE_LIMIT_S)
    except TimeoutError:
        raise too_complex(f"the grammar needs more than {COMPILE_LIMIT_S:g} s to compile") from None
