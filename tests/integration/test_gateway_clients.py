"""The tour of the official client, in the version that is installed here."""

from __future__ import annotations

import pytest

from tests.support.fake_inference import MODEL
from tests.support.gateway_thread import GatewayThread
from tests.support.openai_tour import tour


def test_the_official_client_finds_all_it_looks_for() -> None:
    with GatewayThread() as gateway:
        tour(gateway.url, MODEL, with_structured=True, fake=True)
        gateway.settle()


def test_the_tour_sees_another_server() -> None:
    with GatewayThread() as gateway, pytest.raises(AssertionError):
        tour(gateway.url, "another-model", with_structured=False, fake=True)
