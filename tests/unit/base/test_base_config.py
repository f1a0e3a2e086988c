"""Where a value comes from, and what is said about one that cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import Field

from common.base.config import ConfigError, LogConfig, Section, Settings, TimeoutsConfig, load, load_or_exit


class ThingConfig(Section):
    size: int = Field(1, ge=1, description="how large, in things")
    name: str = Field("default", description="what to call it")
    brave: bool = Field(False, description="whether it is")


class ThingSettings(Settings):
    flat_section: ClassVar[str] = "gateway"

    gateway: ThingConfig = ThingConfig()


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PANDO_CONFIG", "PANDO_GATEWAY__SIZE", "PANDO_GATEWAY__NAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "pando.toml"
    monkeypatch.setenv("PANDO_CONFIG", str(path))
    return path


def size(*flags: str) -> int:
    return load(ThingSettings, flags, "thing").gateway.size


def test_flags_beat_the_environment_beats_the_file_beats_defaults(toml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toml.write_text("")
    assert size() == 1
    toml.write_text("[gateway]\nsize = 2\nname = 'file'\n")
    assert size() == 2
    monkeypatch.setenv("PANDO_GATEWAY__SIZE", "3")
    assert size() == 3
    assert size("--size", "4") == size("--size=4") == size("--gateway.size", "4") == 4
    assert load(ThingSettings, ["--size", "4"], "thing").gateway.name == "file", "sources mix key by key"


def test_flags_of_other_sections_and_switches() -> None:
    settings = load(ThingSettings, ["--timeouts.scale", "2", "--brave", "--log.level", "debug"], "thing")
    assert settings.timeouts.scale == 2 and settings.gateway.brave and settings.log.level == "debug"
    assert not load(ThingSettings, ["--no-brave"], "thing").gateway.brave


def test_one_file_serves_all_services(toml: Path) -> None:
    toml.write_text("[gateway]\nsize = 2\n[router]\nanything = 1\n")
    assert size() == 2


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("[gateway]\nsize = 0\n", "gateway.size"),
        ("[gateway]\nsise = 2\n", "gateway.sise"),
        ("[gatewai]\nsize = 2\n", "gatewai"),
        ("[timeouts]\nscale = 'x'\n", "timeouts.scale"),
    ],
)
def test_a_bad_file_names_the_key(toml: Path, content: str, named: str) -> None:
    toml.write_text(content)
    with pytest.raises(ConfigError, match=named):
        size()


def test_a_missing_file_is_named(toml: Path) -> None:
    with pytest.raises(ConfigError, match=str(toml)):
        size()


@pytest.mark.parametrize(
    ("name", "value"),
    [("PANDO_GATEWAY__SISE", "2"), ("PANDO_GATEWAI__SIZE", "2"), ("PANDO_GATEWAY__SIZE", "many")],
)
def test_a_bad_variable_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"PANDO_GATEWA|gateway\.size"):
        size()


def test_a_bad_flag_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        load_or_exit(ThingSettings, ["--sise", "2"], "thing")
    assert ended.value.code == 2
    error = capsys.readouterr().err.strip()
    assert "sise" in error and error.startswith("thing: ") and "\n" not in error


def test_help_is_the_description(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        load(ThingSettings, ["--help"], "thing")
    assert ended.value.code == 0
    assert "how large, in things" in capsys.readouterr().out


def test_scale_stretches_every_limit_and_is_used_up() -> None:
    scaled = TimeoutsConfig(scale=3, drain_s=2).scaled()
    assert (scaled.scale, scaled.drain_s, scaled.heartbeat_s) == (1, 6, 1.5)
    assert scaled.scaled() == scaled


def test_a_frozen_peer_is_noticed_within_three_seconds_by_default() -> None:
    limits = TimeoutsConfig()
    assert limits.keepalive_s + limits.keepalive_timeout_s <= 3
    assert limits.registration_ttl_s + limits.ping_s <= 3


@pytest.mark.parametrize("section", [TimeoutsConfig, LogConfig])
def test_every_field_says_what_it_is(section: type[Section]) -> None:
    assert all(field.description for field in section.model_fields.values())
