"""Whether a grammar may be served at all: tried out in a process that can be killed, the verdict remembered.

A grammar comes from a stranger, and the engine that compiles it cannot be interrupted. So each new one is tried out in
a fork of a small process (`trial_process`) that the kernel kills when it takes too long or too much memory; what passes
is safe to compile where requests run. Verdicts, good and bad, are kept; equal grammars that come at once are tried
once. The process starts with `start`, or with the first grammar.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.base.errors import InvalidRequest, NotReady, Overloaded
from common.grammar.spec import PARAM, GrammarSpec, too_complex

MAX_TRIALS_AT_ONCE = 4
MAX_WAITING = 64
MAX_ANSWER_BYTES = 1 << 16
GIVE_UP_S = 20.0
"""Longest wait for a verdict; covers the start of the process on a busy machine."""


@dataclass(slots=True, frozen=True)
class Verdict:
    """What a trial found; an empty reason means that the grammar may be served."""

    reason: str = ""
    message: str = ""


class GrammarChecker:
    """Lives on one event loop; close it when done.

    Args:
        model_path: model directory whose tokenizer.json was found good.
        vocab_size: of the model.
        eos_token_ids: of the model.
        limit_s: CPU seconds that a trial may take.
        max_verdicts: how many are remembered.
    """

    def __init__(
        self,
        model_path: Path,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        *,
        limit_s: float = 0.7,
        max_verdicts: int = 4096,
    ) -> None:
        self._args = [str(model_path), str(vocab_size), json.dumps(list(eos_token_ids)), str(limit_s)]
        self._max_verdicts = max_verdicts
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()
        self._trials: dict[bytes, asyncio.Task[Verdict]] = {}
        self._slots = asyncio.Semaphore(MAX_TRIALS_AT_ONCE)
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self.num_trials = 0

    def start(self) -> None:
        """Start the process now, so that the first grammar does not wait for it."""
        self._running_channel()

    async def check(self, spec: GrammarSpec) -> None:
        """Return if `spec` may be served.

        Raises:
            InvalidRequest: it is no grammar, nothing matches it, or it costs too much.
            Overloaded: too many new grammars wait for their trial.
            NotReady: the trial process died or does not answer.
        """
        verdict = self._verdicts.get(spec.digest)
        if verdict is None:
            verdict = await asyncio.shield(self._trial(spec))
        else:
            self._verdicts.move_to_end(spec.digest)
        if verdict.reason:
            raise InvalidRequest(verdict.message, reason=verdict.reason, param=PARAM)

    async def close(self) -> None:
        """End the process and all trials."""
        for task in self._trials.values():
            task.cancel()
        await asyncio.gather(*self._trials.values(), return_exceptions=True)
        self._stop()

    def _trial(self, spec: GrammarSpec) -> asyncio.Task[Verdict]:
        task = self._trials.get(spec.digest)
        if task is None:
            if len(self._trials) >= MAX_WAITING:
                raise Overloaded(f"{MAX_WAITING} new grammars wait already", retry_after_s=1.0, param=PARAM)
            task = self._trials[spec.digest] = asyncio.create_task(self._try_and_remember(spec))
        return task

    async def _try_and_remember(self, spec: GrammarSpec) -> Verdict:
        try:
            async with self._slots, asyncio.timeout(GIVE_UP_S):
                verdict = await self._ask(spec)
        except (TimeoutError, OSError) as error:
            self._stop()
            raise NotReady("the process that tries out grammars does not answer", reason="grammar_trial") from error
        finally:
            del self._trials[spec.digest]
        self._verdicts[spec.digest] = verdict
        while len(self._verdicts) > self._max_verdicts:
            self._verdicts.popitem(last=False)
        return verdict

    async def _ask(self, spec: GrammarSpec) -> Verdict:
        """Hand a socket of its own to a fork of the process and read what it says; nothing: it was killed."""
        self.num_trials += 1
        channel = self._running_channel()
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(channel, [b"t"], [theirs.fileno()])
        reader, writer = await asyncio.open_connection(sock=ours, limit=MAX_ANSWER_BYTES)
        try:
            with contextlib.suppress(ConnectionError):  # killed while it read
                writer.write(json.dumps({"kind": spec.kind, "text": spec.text}).encode())
                writer.write_eof()
                await writer.drain()
            answer = await _read_all(reader)
        finally:
            writer.transport.abort()
        if answer:
            return Verdict(**json.loads(answer))
        if self._process is None or self._process.poll() is not None:
            raise BrokenPipeError("the process ended")
        error = too_complex("the grammar takes too much time or memory to compile")
        return Verdict(error.reason, error.message)

    def _running_channel(self) -> socket.socket:
        if self._process is not None and self._process.poll() is not None:
            self._stop()
        if self._channel is None:
            self._channel, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "common.grammar.trial_process", str(theirs.fileno()), *self._args],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
        return self._channel

    def _stop(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""
