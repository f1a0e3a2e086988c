"""Flags that `pando up` does not know itself: `--section.key value` for any service. Pure.

They become `PANDO_SECTION__KEY` in the environment of every service, so one rule serves all of them; a service checks
the keys of its own sections and refuses the start with a line that names a wrong one.
"""

from __future__ import annotations

from collections.abc import Sequence

from common.base.config import SECTIONS
from pando.cli.errors import BAD_INPUT, CliError

Setting = tuple[str, str, str]
OWN_FLAGS = {
    ("worker", "model_path"): "--model-path",
    ("router", "model_path"): "--model-path",
    ("router", "host"): "",
    ("router", "port"): "--router-port",
    ("gateway", "host"): "--host",
    ("gateway", "port"): "--port",
    ("gateway", "router_address"): "--router-port",
    ("worker", "worker_id"): "",
    ("worker", "workers_on_host"): "--prefill-workers and --decode-workers",
    ("worker", "roles"): "--profile",
    ("kvstore", "node_id"): "",
    ("registry", "url"): "--registry",
    ("log", "format"): "",
}


def parse_settings(arguments: Sequence[str]) -> tuple[Setting, ...]:
    """`--section.key value`, `--section.key=value` or, for switches, `--section.key`, as (section, key, value).

    Raises:
        CliError: anything else, or a key that another flag of `pando up` sets.
    """
    settings = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("--"):
            raise CliError(f"unexpected argument {argument!r}", fix="see --help", code=BAD_INPUT)
        name, equals, value = argument[2:].partition("=")
        if not equals:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        section, dot, key = name.partition(".")
        if not dot or section not in SECTIONS or not key:
            known = ", ".join(f"--{one}.*" for one in SECTIONS)
            raise CliError(f"unknown flag --{name}", fix=f"see --help; flags of the services: {known}", code=BAD_INPUT)
        settings.append(_checked(section, key.replace("-", "_"), value))
    return tuple(settings)


def _checked(section: str, key: str, value: str) -> Setting:
    if (section, key) in OWN_FLAGS:
        own = OWN_FLAGS[section, key]
        fix = f"use {own}" if own else "it is set by pando up"
        raise CliError(f"--{section}.{key.replace('_', '-')} cannot be given", fix=fix, code=BAD_INPUT)
    return section, key, value
