"""From options to processes: names, layers, flags, environment; every flag is one that the service knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from common.base.config import Settings, load
from common.worker.config import WorkerSettings
from pando.cli.cluster_spec import ClusterOptions, ClusterSpec, ServiceSpec, StoreOptions, build_spec
from services.gateway.config import GatewaySettings
from services.kvstore.config import KvStoreSettings
from services.router.config import RouterSettings

OPTIONS = ClusterOptions(
    python="python",
    model_path="/models/m",
    registry="redis://127.0.0.1:7/0",
    registry_command=("valkey-server", "--port", "7"),
    registry_address="127.0.0.1:7",
    prefill_workers=2,
    decode_workers=3,
    port=8000,
    router_ports=(8001,),
    settings=(("worker", "chunked_prefill_size", "64"), ("log", "level", "debug")),
)
SETTINGS = {
    "services.prefill": WorkerSettings,
    "services.decode": WorkerSettings,
    "services.kvstore": KvStoreSettings,
    "services.router": RouterSettings,
    "services.gateway": GatewaySettings,
}


def service(spec: ClusterSpec, name: str) -> ServiceSpec:
    return next(one for one in spec.services if one.name == name)


def parse(argv: Sequence[str]) -> Any:
    """What the service will read from its command line, by its own rules."""
    assert argv[:2] == ("python", "-m")
    settings: type[Settings] = SETTINGS[argv[2]]
    return load(settings, argv[3:], argv[2])


def test_names_and_layers():
    spec = build_spec(OPTIONS)
    assert [(one.name, one.layer) for one in spec.services] == [
        ("registry", 0),
        *(("prefill-0", 2), ("prefill-1", 2), ("decode-0", 2), ("decode-1", 2), ("decode-2", 2)),
        ("router", 3),
        ("gateway", 4),
    ]


def test_a_store_stands_below_the_workers_that_use_it():
    spec = build_spec(replace(OPTIONS, store=StoreOptions(64 << 20, "/run/kvstore", 1 << 30)))
    assert [(one.name, one.layer) for one in spec.services][:2] == [("registry", 0), ("kvstore-0", 1)]
    store = parse(service(spec, "kvstore-0").argv)
    assert (store.kvstore.node_id, store.kvstore.segment_size) == ("kvstore-0", 64 << 20)
    assert (store.kvstore.ssd_path, store.kvstore.ssd_size) == (Path("/run/kvstore"), 1 << 30)
    assert store.registry.url == "redis://127.0.0.1:7/0"
    assert parse(service(spec, "decode-0").argv).worker.hicache_storage_backend == "kvstore"
    assert parse(service(build_spec(OPTIONS), "decode-0").argv).worker.hicache_storage_backend == ""


def test_sizes_that_the_user_gave_hold():
    settings = (("kvstore", "segment_size", "77"), ("kvstore", "ssd_path", "/fast"))
    argv = service(
        build_spec(replace(OPTIONS, store=StoreOptions(1, "/run/k", 2), settings=settings)), "kvstore-0"
    ).argv
    assert "--segment-size" not in argv and "--ssd-path" not in argv and argv[argv.index("--ssd-size") + 1] == "2"


def test_a_store_without_a_disk_keeps_memory_only():
    spec = build_spec(replace(OPTIONS, store=StoreOptions(64 << 20)))
    assert parse(service(spec, "kvstore-0").argv).kvstore.ssd_path is None


def test_workers_understand_their_flags():
    spec = build_spec(replace(OPTIONS, worker_flags=("--transport", "tcp")))
    settings = parse(service(spec, "decode-1").argv)
    assert settings.worker.worker_id == "decode-1"
    assert settings.worker.model_path == Path("/models/m")
    assert settings.worker.workers_on_host == 5
    assert settings.worker.roles == ""
    assert settings.worker.transport == "tcp"
    assert settings.registry.url == "redis://127.0.0.1:7/0"
    assert service(spec, "prefill-0").argv[2] == "services.prefill"


def test_unified_workers_have_both_roles():
    spec = build_spec(replace(OPTIONS, profile="unified", decode_workers=2))
    assert [one.name for one in spec.services if one.layer == 2] == ["worker-0", "worker-1"]
    settings = parse(service(spec, "worker-1").argv)
    assert settings.worker.roles == "prefill,decode"
    assert settings.worker.workers_on_host == 2


def test_router_and_gateway_understand_their_flags_and_meet():
    spec = build_spec(replace(OPTIONS, router_flags=("--served-model-name", "tiny")))
    router = parse(service(spec, "router").argv).router
    gateway = parse(service(spec, "gateway").argv).gateway
    assert (router.host, router.port, router.served_model_name) == ("127.0.0.1", 8001, "tiny")
    assert (gateway.host, gateway.port, gateway.router_address) == ("127.0.0.1", 8000, "127.0.0.1:8001")
    assert spec.url == "http://127.0.0.1:8000"
    assert service(spec, "gateway").probe.target == "http://127.0.0.1:8000/ready"


def test_the_gateway_knows_all_routers():
    spec = build_spec(replace(OPTIONS, router_ports=(8001, 8002)))
    assert [one.name for one in spec.services if one.layer == 3] == ["router-0", "router-1"]
    assert [parse(service(spec, name).argv).router.port for name in ("router-0", "router-1")] == [8001, 8002]
    assert parse(service(spec, "gateway").argv).gateway.router_address == "127.0.0.1:8001,127.0.0.1:8002"
    assert spec.router == "127.0.0.1:8001"


def test_an_external_registry_is_not_started():
    spec = build_spec(replace(OPTIONS, registry_command=(), registry_address="", registry="redis://10.0.0.1/0"))
    assert [one.name for one in spec.services if one.layer == 0] == []
    assert parse(service(spec, "router").argv).registry.url == "redis://10.0.0.1/0"


def test_settings_reach_every_service_as_environment(monkeypatch: pytest.MonkeyPatch):
    spec = build_spec(OPTIONS)
    assert spec.environment["OMP_WAIT_POLICY"] == "PASSIVE"
    for key, value in spec.environment.items():
        monkeypatch.setenv(key, value)
    worker = parse(service(spec, "prefill-0").argv)
    assert worker.worker.chunked_prefill_size == 64
    assert worker.log.level == "debug"
    assert parse(service(spec, "gateway").argv).log.level == "debug"


def test_services_are_killed_only_after_their_drain_time():
    spec = build_spec(replace(OPTIONS, drain_s=60.0))
    assert {one.name: one.grace_s for one in spec.services if one.grace_s < 61} == {"registry": 5.0}


def test_survives_json():
    spec = build_spec(OPTIONS)
    assert ClusterSpec.from_json(orjson.loads(orjson.dumps(spec.to_json()))) == spec
