"""The process that tries out grammars of strangers: one fork per grammar, each within hard limits of time and memory.

Started by `common.grammar.checker`, which passes one end of a socket pair. Over it come the sockets of single trials;
a fork answers on its own and exits. When the pair closes, because the parent has gone, so does this process. A fork
that runs out of time or memory is killed by the kernel and says nothing: that is its answer.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys
import time
from pathlib import Path

from common.base.errors import InvalidRequest
from common.grammar.llg import Vocabulary
from common.grammar.spec import GrammarKind, GrammarSpec
from common.grammar.trial import try_out

EXTRA_BYTES = 512 << 20
"""Memory that a trial may take beyond what the process has before it."""

WALL_FACTOR = 10
NICENESS = 5
_REQUEST_BYTES = 1 << 20


def serve(parent: socket.socket, vocabulary: Vocabulary, limit_s: float) -> None:
    """Fork a trial for every socket that comes; returns when the parent has gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps them
    while True:
        message, fds, _, _ = socket.recv_fds(parent, 1, 1)
        if not message:
            return
        with socket.socket(fileno=fds[0]) as trial:
            if os.fork() == 0:
                parent.close()
                limit(limit_s)
                answer(trial, vocabulary)
                os._exit(0)


def limit(limit_s: float) -> None:
    """Have this process killed after `limit_s` of CPU time, `WALL_FACTOR` times that in all, or too much memory.

    CPU time, so that a busy machine does not refuse a good grammar; a trial never sleeps.
    """
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    signal.setitimer(signal.ITIMER_REAL, WALL_FACTOR * limit_s)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + EXTRA_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def answer(trial: socket.socket, vocabulary: Vocabulary) -> None:
    """Read one grammar as JSON up to the half-close, write what is wrong with it as JSON."""
    with trial.makefile("rb") as incoming:
        question = json.loads(incoming.read(_REQUEST_BYTES))
    verdict = {}
    try:
        try_out(vocabulary, GrammarSpec(GrammarKind(question["kind"]), question["text"]), time.process_time)
    except InvalidRequest as error:
        verdict = {"message": error.message, "reason": error.reason}
    except (MemoryError, RecursionError) as error:
        verdict = {"message": f"the grammar is too large: {type(error).__name__}", "reason": "grammar_too_complex"}
    trial.sendall(json.dumps(verdict).encode())


def main() -> None:
    """Entry point: file descriptor, tokenizer folder, vocabulary size, end-of-sequence ids, limit."""
    fd, model_path, vocab_size, eos, limit_s = sys.argv[1:]
    os.nice(NICENESS)
    vocabulary = Vocabulary.load(Path(model_path), int(vocab_size), json.loads(eos))
    with socket.socket(fileno=int(fd)) as parent:
        serve(parent, vocabulary, float(limit_s))


if __name__ == "__main__":
    main()
