"""Which workers a local cluster gets or loses when the number of a kind changes. Pure.

A kind is what a worker's name begins with: `prefill`, `decode`, or `worker` (both roles), whatever its role is now. A
new worker is started as its first sibling was, under the lowest number that is free; the highest numbers leave first.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pando.cli.cluster_spec import ServiceSpec
from pando.cli.errors import BAD_INPUT, CliError

KINDS = ("prefill", "decode", "worker")
MAX_OF_A_KIND = 256
"""More on one machine is a slip of the finger."""
_ON_HOST = "--workers-on-host"
_COUNT = re.compile("[0-9]{1,4}")


@dataclass(slots=True, frozen=True)
class Change:
    """Workers to start, and names of those to stop."""

    added: tuple[ServiceSpec, ...] = ()
    removed: tuple[str, ...] = ()


def parse_counts(arguments: Sequence[str]) -> dict[str, int]:
    """`KIND=COUNT` arguments.

    Raises:
        CliError: one that is not of this form, or asks for none or for too many.
    """
    counts = {}
    for argument in arguments:
        kind, _, count = argument.partition("=")
        if kind not in KINDS or not _COUNT.fullmatch(count) or not 1 <= int(count) <= MAX_OF_A_KIND:
            fix = f"kinds: {', '.join(KINDS)}; counts: 1 to {MAX_OF_A_KIND}"
            raise CliError(f"{argument!r} is not KIND=COUNT", fix=fix, code=BAD_INPUT)
        counts[kind] = int(count)
    return counts


def of_kind(names: Collection[str], kind: str) -> list[str]:
    """Names of a kind, by number."""
    return sorted((name for name in names if name.rpartition("-")[0] == kind), key=_number)


def leaving(names: Collection[str], counts: Mapping[str, int]) -> list[str]:
    """Names of the workers that are too many.

    Raises:
        CliError: there is none of a kind, so that none can be started like it.
    """
    for kind in counts:
        if not of_kind(names, kind):
            known = ", ".join(one for one in KINDS if of_kind(names, one))
            raise CliError(f"this cluster has no {kind} workers", fix=f"it has: {known}", code=BAD_INPUT)
    return [name for kind, count in counts.items() for name in of_kind(names, kind)[count:]]


def resized(specs: Mapping[str, ServiceSpec], taken: Collection[str], counts: Mapping[str, int]) -> Change:
    """What to start and stop.

    Args:
        specs: the services that shall run now.
        taken: further names that are in use, of workers that are about to end.
        counts: how many of each kind there shall be; other kinds stay.

    Raises:
        CliError: see `leaving`.
    """
    removed = leaving(specs, counts)
    num_new = {kind: max(0, count - len(of_kind(specs, kind))) for kind, count in counts.items()}
    total = sum(len(of_kind(specs, kind)) for kind in KINDS) + sum(num_new.values()) - len(removed)
    added: list[ServiceSpec] = []
    for kind, count in num_new.items():
        first = of_kind(specs, kind)[0]
        names = _free_names(kind, {*specs, *taken}, count)
        added += [_like(specs[first], name, total) for name in names]
    return Change(tuple(added), tuple(removed))


def _free_names(kind: str, taken: Collection[str], count: int) -> list[str]:
    candidates = [f"{kind}-{number}" for number in range(len(taken) + count)]
    return [name for name in candidates if name not in taken][:count]


def _like(sibling: ServiceSpec, name: str, num_workers: int) -> ServiceSpec:
    """A worker as its sibling, but for its name and its share of the host."""
    argv = [name if part == sibling.name else part for part in sibling.argv]
    if _ON_HOST in argv:
        argv[argv.index(_ON_HOST) + 1] = str(num_workers)
    return replace(sibling, name=name, argv=tuple(argv))


def _number(name: str) -> int:
    number = name.rpartition("-")[2]
    return int(number) if number.isdigit() else 0
