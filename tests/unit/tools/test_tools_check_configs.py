"""The configuration check accepts what is there and names what would be wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tools.check_configs import check, check_compose, check_prometheus, main

COMPOSE: dict[str, Any] = {
    "services": {
        "a": {"image": "x", "volumes": ["data:/d", "./b:/b"]},
        "b": {"build": ".", "depends_on": {"a": {"condition": "service_healthy"}}},
    },
    "volumes": {"data": None},
}
PROMETHEUS: dict[str, Any] = {"scrape_configs": [{"job_name": "a", "static_configs": [{"targets": ["x:1"]}]}]}


def test_the_repository_is_clean(capsys: pytest.CaptureFixture[str]):
    assert main() == 0, capsys.readouterr().out


def test_good_files_have_no_findings():
    assert list(check_compose(COMPOSE)) == []
    assert list(check_prometheus(PROMETHEUS)) == []


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ({"services": None}, "no services"),
        ({"volumes": {}}, "a: volume data is not declared"),
        ({"servces": {}}, "top level: unknown key 'servces'"),
        ({"services": {"a": {"command": "x"}}}, "a: neither image nor build"),
        ({"services": {"a": {"image": "x", "depends_on": ["c"]}}}, "a: depends on unknown c"),
        ({"services": {"a": {"image": "x", "comand": "y"}}}, "a: unknown key 'comand'"),
    ],
)
def test_compose_findings(change: dict[str, Any], finding: str):
    assert list(check_compose({**COMPOSE, **change})) == [finding]


@pytest.mark.parametrize(
    ("content", "finding"),
    [
        ({}, "no scrape_configs"),
        ({"scrape_configs": [{"job_name": "a"}]}, "a: no targets"),
        ({**PROMETHEUS, "scrape": 1}, "top level: unknown key 'scrape'"),
        ({"scrape_configs": PROMETHEUS["scrape_configs"] * 2}, "job_name 'a' is missing or not unique"),
    ],
)
def test_prometheus_findings(content: dict[str, Any], finding: str):
    assert list(check_prometheus(content)) == [finding]


@pytest.mark.parametrize(("name", "text"), [("a.yml", "a: [1"), ("a.json", "{")])
def test_what_does_not_parse_is_a_finding(tmp_path: Path, name: str, text: str):
    (tmp_path / name).write_text(text)
    assert len(check(tmp_path / name)) == 1
