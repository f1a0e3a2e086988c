"""The compose file's commands are understood by the services, and its addresses meet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from common.base.config import Settings, load
from common.worker.config import WorkerSettings
from services.gateway.config import GatewaySettings
from services.router.config import RouterSettings

ROOT = Path(__file__).resolve().parents[3]
SETTINGS: dict[str, type[Settings]] = {
    "services.prefill": WorkerSettings,
    "services.decode": WorkerSettings,
    "services.router": RouterSettings,
    "services.gateway": GatewaySettings,
}


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    compose = yaml.safe_load((ROOT / "deploy/compose/docker-compose.yml").read_text())
    services: dict[str, Any] = compose["services"]
    return services


def settings_of(service: dict[str, Any]) -> Any:
    _, _, module, *flags = service["command"]
    return load(SETTINGS[module], flags, module)


@pytest.mark.parametrize("name", ["router", "prefill", "decode", "gateway"])
def test_commands_parse(services: dict[str, Any], name: str):
    settings_of(services[name])


@pytest.mark.parametrize("name", ["prefill", "decode"])
def test_workers_are_reachable_by_their_container_name_over_a_network_transport(services: dict[str, Any], name: str):
    worker = settings_of(services[name]).worker
    assert worker.host == name == services[name]["hostname"]
    assert worker.transport == "ucx,tcp"


def test_addresses_meet(services: dict[str, Any]):
    router, gateway = settings_of(services["router"]), settings_of(services["gateway"])
    assert gateway.gateway.router_address == f"router:{router.router.port}"
    urls = {settings_of(services[name]).registry.url for name in ("router", "prefill", "decode")}
    assert urls == {"redis://redis:6379/0"}


def test_only_the_gateway_is_published_and_only_on_loopback(services: dict[str, Any]):
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert published == {"gateway": ["127.0.0.1:30000:30000"]}


def test_one_service_builds_the_image_for_all(services: dict[str, Any]):
    builds = [name for name, service in services.items() if "build" in service]
    assert builds == ["router"]
    assert {services[name]["image"] for name in ("router", "prefill", "decode", "gateway")} == {"pando"}
