"""Configuration: defaults < TOML file (`PANDO_CONFIG`) < `PANDO_SECTION__KEY` < flags.

A service declares one `Settings` subclass whose fields are sections (pydantic models). The description of a field is
its `--help`. Flags of the service's own section are written without the section's name: `--port` for
`gateway.port`; others with it: `--timeouts.scale`. An unknown or bad value stops the start with a line that names
the key.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

ENV_PREFIX = "PANDO_"
CONFIG_FILE_VARIABLE = "PANDO_CONFIG"
SECTIONS = ("timeouts", "log", "registry", "gateway", "router", "worker", "kvstore", "limits")
"""Every section of every service: one TOML file and one environment may serve all of them."""


class Section(BaseModel):
    """Base of a configuration section; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TimeoutsConfig(Section):
    """All time limits of the cluster in one place. Tests set `scale` instead of touching each."""

    scale: float = Field(1.0, gt=0, description="factor on every limit of this section, for tests and slow machines")
    heartbeat_s: float = Field(0.5, gt=0, description="seconds between two heartbeats of a worker")
    registration_ttl_s: float = Field(2.5, gt=0, description="seconds without heartbeat after which an entry expires")
    ping_s: float = Field(0.5, gt=0, description="seconds a suspect worker has to answer a ping before ejection")
    keepalive_s: float = Field(1.0, gt=0, description="seconds of silence before a gRPC keepalive ping")
    keepalive_timeout_s: float = Field(1.5, gt=0, description="seconds a gRPC keepalive ping may stay unanswered")
    connect_s: float = Field(1.0, gt=0, description="seconds to reach a worker for a new call")
    transfer_s: float = Field(3.0, gt=0, description="seconds for one read of KV blocks from a peer")
    request_s: float = Field(600.0, gt=0, description="deadline of a request that brings none, in seconds")
    drain_s: float = Field(10.0, gt=0, description="seconds that running requests get to finish after SIGTERM")
    engine_stall_s: float = Field(20.0, gt=0, description="age of one engine step at which a worker stops being ready")

    def scaled(self) -> TimeoutsConfig:
        """The same limits with `scale` applied (and set back to 1)."""
        values = {name: getattr(self, name) * self.scale for name in type(self).model_fields if name != "scale"}
        return TimeoutsConfig(**values)


class LogConfig(Section):
    """What is logged and how."""

    level: str = Field("info", pattern="^(debug|info|warning|error)$", description="lowest level that is logged")
    format: str = Field("auto", pattern="^(auto|json|console)$", description="auto: console on a terminal, else JSON")


class RegistryConfig(Section):
    """Where workers register (any Redis-protocol server)."""

    url: str = Field("redis://127.0.0.1:6379/0", description="URL of the Redis-protocol registry")
    cluster: str = Field("pando", pattern="^[a-z0-9-]+$", description="name that separates clusters on one registry")


class Settings(BaseSettings):
    """Base of a service's settings; `flat_section` names the section whose flags need no prefix."""

    flat_section: ClassVar[str] = ""
    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True, cli_kebab_case=True
    )

    timeouts: TimeoutsConfig = TimeoutsConfig()
    log: LogConfig = LogConfig()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order of precedence, highest first."""
        path = os.environ.get(CONFIG_FILE_VARIABLE)
        if path is None:
            return init_settings, env_settings
        return init_settings, env_settings, _SharedTomlSource(settings_cls, Path(path))


class _SharedTomlSource(TomlConfigSettingsSource):
    """A TOML file that serves all services: sections of others are left out, unknown ones stay and are refused."""

    def __init__(self, settings_cls: type[BaseSettings], path: Path) -> None:
        if not path.is_file():
            raise ConfigError(f"{CONFIG_FILE_VARIABLE}={path}: no such file")
        super().__init__(settings_cls, path)

    def __call__(self) -> dict[str, object]:
        foreign = set(SECTIONS) - set(self.settings_cls.model_fields)
        return {key: value for key, value in super().__call__().items() if key not in foreign}


class ConfigError(Exception):
    """The configuration cannot be used; the message names the key and what is wrong with it."""


S = TypeVar("S", bound=Settings)


def load(settings_cls: type[S], argv: Sequence[str], program: str) -> S:
    """Read the configuration of a service from all sources.

    Args:
        settings_cls: the service's settings.
        argv: flags, without the program's name. `--help` prints and exits 0.
        program: name for the usage line.

    Raises:
        ConfigError: an unknown key or a bad value, named.
    """
    _refuse_unknown_environment(os.environ, settings_cls)
    source: CliSettingsSource[S] = CliSettingsSource(
        settings_cls,
        cli_prog_name=program,
        cli_parse_args=_with_section(argv, settings_cls),
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_exit_on_error=False,
    )
    try:
        return settings_cls(_cli_settings_source=source)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{key}: {first['msg']} (got {first['input']!r})") from error


def load_or_exit(settings_cls: type[S], argv: Sequence[str], program: str) -> S:
    """`load` for entry points: a bad configuration is one line on stderr and exit status 2."""
    try:
        return load(settings_cls, argv, program)
    except Exception as error:
        print(f"{program}: {error}", file=sys.stderr)
        raise SystemExit(2) from error


def _with_section(argv: Sequence[str], settings_cls: type[Settings]) -> list[str]:
    section = settings_cls.flat_section
    if not section:
        return list(argv)
    model = settings_cls.model_fields[section].annotation
    assert isinstance(model, type) and issubclass(model, BaseModel), f"section {section} is no model"
    own = {name.replace("_", "-") for name in model.model_fields}
    return [_expand(argument, section, own) for argument in argv]


def _expand(argument: str, section: str, own: set[str]) -> str:
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument[2:].partition("=")
    negated = name.startswith("no-") and name[3:] in own
    bare = name[3:] if negated else name
    if bare not in own:
        return argument
    return f"--{'no-' if negated else ''}{section}.{bare}{equals}{value}"


def _refuse_unknown_environment(environment: Mapping[str, str], settings_cls: type[Settings]) -> None:
    for key in environment:
        if not key.startswith(ENV_PREFIX) or "__" not in key:
            continue
        section, _, name = key[len(ENV_PREFIX) :].lower().partition("__")
        if section not in SECTIONS:
            raise ConfigError(f"{key}: no such section; sections are {', '.join(SECTIONS)}")
        field = settings_cls.model_fields.get(section)
        model = field.annotation if field else None
        if isinstance(model, type) and issubclass(model, BaseModel) and name not in model.model_fields:
            raise ConfigError(f"{key}: no such key in section {section}")
