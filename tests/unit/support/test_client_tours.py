"""The tours of the clients: a check that does not hold ends one, and the page about them tells what is installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.clients.environments import HERE
from tests.clients.run import MODULES, NAMES
from tests.clients.tour import Tour, is_weather

PAGE = Path(__file__).parents[3] / "docs" / "clients.md"


def test_a_check_that_does_not_hold_ends_the_tour(capsys: pytest.CaptureFixture[str]) -> None:
    tour = Tour("client 1", "http://127.0.0.1:1", "m", "folder")
    tour.check("this holds", "text")
    with pytest.raises(AssertionError, match="client 1: this does not: 'seen'"):
        tour.check("this does not", "", "seen")
    assert capsys.readouterr().out == "client 1: this holds: ok\n" and tour.num_checks == 1


@pytest.mark.parametrize(
    ("arguments", "fits"),
    [
        ('{"city": "Paris", "days": 3}', True),
        ({"city": "Berlin", "days": 9}, True),
        ('{"city": "Rome", "days": 3}', False),
        ('{"city": "Paris", "days": 10}', False),
        ('{"city": "Paris", "days": "3"}', False),
        ('{"city": "Paris"}', False),
        ('{"city": "Paris", "days": 3, "more": 1}', False),
    ],
)
def test_arguments_are_judged(arguments: object, fits: bool) -> None:
    assert is_weather(arguments) is fits


def test_the_page_names_every_client_and_its_version() -> None:
    page = PAGE.read_text("utf-8")
    assert [name for name in NAMES if f"(`{name}`)" not in page] == []
    pins = [line for name in MODULES for line in _requirements(name) if "==" in line]
    pins.append(f"openai=={json.loads((HERE / 'openai_node' / 'package.json').read_text())['dependencies']['openai']}")
    assert len(pins) > len(MODULES)
    assert [pin for pin in pins if pin.partition("==")[2] not in page] == []


def _requirements(name: str) -> list[str]:
    files = list(HERE.glob(f"requirements/{name}.*txt"))
    assert files, name
    return [line for file in files for line in file.read_text("utf-8").splitlines()]
