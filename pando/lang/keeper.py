"""Keeps a private cluster for `Runtime`: `python -m pando.lang.keeper`, with the order as one line on standard input.

The cluster is stopped when standard input ends; then its folder goes too, since nobody else may be left to do it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from rich.console import Console

from pando.cli.errors import CliError
from pando.cli.up import UpRequest, up


def main() -> int:
    """Run the cluster that was ordered; returns the exit status."""
    line = sys.stdin.buffer.readline()
    if not line:
        return 0
    order = json.loads(line)
    ended = _watch_input()
    try:
        return up(_request(order), Console(soft_wrap=True), detach=False)
    except CliError as error:
        print(f"pando: {error}", file=sys.stderr)
        return error.code
    finally:
        if ended.is_set():
            shutil.rmtree(Path(order["run_dir"]).parent, ignore_errors=True)


def _request(order: dict[str, Any]) -> UpRequest:
    return UpRequest(
        model_path=Path(order["model_path"]),
        run_dir=Path(order["run_dir"]),
        profile=order["profile"],
        prefill_workers=order["prefill_workers"],
        decode_workers=order["decode_workers"],
        port=0,
        router_port=0,
        worker_flags=tuple(order["worker_flags"]),
        settings=tuple((section, key, value) for section, key, value in order["settings"]),
        start_timeout_s=order["start_timeout_s"],
    )


def _watch_input() -> threading.Event:
    """Stop when the input ends, from a thread that takes no signals: they are the supervisor's. Returns that event."""
    main_thread, ended = threading.get_ident(), threading.Event()

    def watch() -> None:
        while os.read(0, 4096):
            pass
        ended.set()
        signal.pthread_kill(main_thread, signal.SIGTERM)

    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    threading.Thread(target=watch, name="input", daemon=True).start()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return ended


if __name__ == "__main__":
    sys.exit(main())
