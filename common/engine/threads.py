"""How many threads an engine computes with, and how they wait.

Several worker processes share few cores. OpenMP threads that spin while they wait steal those cores from the others
and a step can take many times as long, so whoever starts a worker sets OMP_WAIT_POLICY=PASSIVE (OpenMP reads it when
it is loaded, which is too late from inside the process).
"""

from __future__ import annotations

import os

import torch


def apply_thread_settings(num_threads: int) -> list[str]:
    """Make torch compute with `num_threads` threads (0: all cores of this process's affinity mask).

    Returns:
        Notes for the log, one per thing that will make steps slow.
    """
    cores = len(os.sched_getaffinity(0))
    threads = num_threads or cores
    torch.set_num_threads(threads)
    notes = []
    if threads > cores:
        notes.append(f"{threads} engine threads on {cores} cores: steps will be slow")
    if os.environ.get("OMP_WAIT_POLICY", "").upper() != "PASSIVE":
        notes.append("OMP_WAIT_POLICY is not PASSIVE: waiting engine threads steal cores from other workers")
    return notes
