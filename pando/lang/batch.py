"""Many runs at once: a bounded number of threads, one leader that fills the cache, a progress bar."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

from pando.lang.executor import Run
from pando.lang.state import ProgramState

AUTO_THREADS = 32


@dataclass(slots=True, frozen=True)
class Job:
    """One run: its state, and what runs it (raises its error)."""

    run: Run
    state: ProgramState
    execute: Callable[[], None]


def run_jobs(
    jobs: Sequence[Job], *, num_threads: int | Literal["auto"], progress_bar: bool, return_errors: bool
) -> None:
    """Run all jobs. Raises the first error, once nothing runs any more, unless errors are to stay in the states."""
    if not jobs:
        return
    width = min(AUTO_THREADS if num_threads == "auto" else max(num_threads, 1), len(jobs))
    begun, given_up = jobs[0].run.first_output, threading.Event()
    with ThreadPoolExecutor(width, thread_name_prefix="pando-batch") as pool, _bar(progress_bar) as bar:
        task = bar.add_task("run_batch", total=len(jobs)) if bar else None
        futures = [pool.submit(_one, job, index == 0, begun, given_up) for index, job in enumerate(jobs)]
        try:
            for future in as_completed(futures):
                if bar is not None and task is not None:
                    bar.advance(task)
                if not return_errors and future.exception() is not None:
                    given_up.set()
        except BaseException:
            given_up.set()
            raise
    if not return_errors:
        _raise_first(futures)


def _one(job: Job, leads: bool, begun: threading.Event, given_up: threading.Event) -> None:
    if not leads:
        begun.wait()
    if given_up.is_set():
        job.run.finish(stop=True)
        return
    try:
        job.execute()
    except Exception as error:
        job.state.fail(error)
        raise


def _raise_first(futures: Sequence[Future[None]]) -> None:
    for future in futures:
        future.result()


def _bar(wanted: bool) -> Progress | nullcontext[None]:
    if not wanted:
        return nullcontext()
    return Progress(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=Console(stderr=True))
