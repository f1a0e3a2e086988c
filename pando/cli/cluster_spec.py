"""What a local cluster consists of: from the options of `pando up` to the processes to start. Pure.

Layers say who depends on whom::

    4 gateway -> 3 router -> 2 workers -> 1 KV store -> 0 registry

Layer 0 must be ready before the others start; all others start at the same time, since each waits by itself for what it
needs. Stopping goes from the highest layer down. It does not know ports in use, files or processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

END_S = 2.0
"""What a service may take to end once its drain time is over."""
STORE_ID = "kvstore-0"
REGISTRY_LAYER, STORE_LAYER, WORKER_LAYER, ROUTER_LAYER, GATEWAY_LAYER = range(5)
COMPUTE_ENVIRONMENT = {
    # Several processes share the cores: a thread that spins while it waits takes another worker's step.
    "OMP_WAIT_POLICY": "PASSIVE",
    "KMP_BLOCKTIME": "0",
    "GOMP_SPINCOUNT": "0",
    "PYTHONFAULTHANDLER": "1",
    # The supervisor reads the `ready` lines.
    "PANDO_LOG__FORMAT": "json",
}


@dataclass(slots=True, frozen=True)
class Probe:
    """How a service shows that it is ready.

    Attributes:
        kind: "log": it logs the event `ready`; "resp": it answers a Redis PING; "http": a GET gives status 200.
        target: host:port for "resp", a URL for "http", unused for "log".
    """

    kind: Literal["log", "resp", "http"]
    target: str = ""


@dataclass(slots=True, frozen=True)
class ServiceSpec:
    """One process of the cluster."""

    name: str
    argv: tuple[str, ...]
    layer: int
    probe: Probe
    grace_s: float
    """Seconds between SIGTERM and SIGKILL."""


@dataclass(slots=True, frozen=True)
class ClusterSpec:
    """All processes of a cluster and where it will be reached. Serialises to JSON and back."""

    services: tuple[ServiceSpec, ...]
    url: str
    router: str
    registry: str
    environment: Mapping[str, str] = field(default_factory=dict)
    start_timeout_s: float = 120.0

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> ClusterSpec:
        """The inverse of `to_json`."""
        services = tuple(
            ServiceSpec(**{**one, "argv": tuple(one["argv"]), "probe": Probe(**one["probe"])})
            for one in values["services"]
        )
        return ClusterSpec(**{**values, "services": services})


@dataclass(slots=True, frozen=True)
class StoreOptions:
    """The KV store of a local cluster.

    Attributes:
        memory_bytes: that it lends.
        ssd_path: folder of its log; empty: it keeps nothing on disk.
        ssd_bytes: cap of the log.
    """

    memory_bytes: int
    ssd_path: str = ""
    ssd_bytes: int = 0


@dataclass(slots=True, frozen=True)
class ClusterOptions:
    """What the user asked for, with all ports decided.

    Attributes:
        registry_command: starts the embedded registry; empty when an external one is used.
        registry_address: host:port of the embedded registry.
        store: the KV store behind the workers; None for none.
        worker_flags, router_flags, gateway_flags: further flags of these services.
        router_ports: a router for each.
        settings: (section, key, value) for all services.
        drain_s: how long the services drain, by the settings that they will read.
    """

    python: str
    model_path: str
    registry: str
    profile: Literal["pd", "unified"] = "pd"
    prefill_workers: int = 1
    decode_workers: int = 1
    host: str = "127.0.0.1"
    port: int = 30000
    router_ports: tuple[int, ...] = (50051,)
    registry_command: tuple[str, ...] = ()
    registry_address: str = ""
    store: StoreOptions | None = None
    worker_flags: tuple[str, ...] = ()
    router_flags: tuple[str, ...] = ()
    gateway_flags: tuple[str, ...] = ()
    settings: tuple[tuple[str, str, str], ...] = ()
    drain_s: float = 10.0
    start_timeout_s: float = 120.0

    @property
    def grace_s(self) -> float:
        """Seconds between SIGTERM and SIGKILL for a service that drains."""
        return self.drain_s + END_S


def build_spec(options: ClusterOptions) -> ClusterSpec:
    """The processes that serve `options`, in start order."""
    reach = "127.0.0.1" if options.host in ("0.0.0.0", "::") else options.host
    routers = [f"127.0.0.1:{port}" for port in options.router_ports]
    url = f"http://{reach}:{options.port}"
    services = [*_registry(options), *_store(options), *_workers(options)]
    services += [*_routers(options), _gateway(options, ",".join(routers), url)]
    return ClusterSpec(
        services=tuple(services),
        url=url,
        router=routers[0],
        registry=options.registry,
        environment={**COMPUTE_ENVIRONMENT, **settings_environment(options.settings)},
        start_timeout_s=options.start_timeout_s,
    )


def settings_environment(settings: Sequence[tuple[str, str, str]]) -> dict[str, str]:
    """(section, key, value) as the environment variables that every service reads."""
    return {f"PANDO_{section.upper()}__{key.replace('-', '_').upper()}": value for section, key, value in settings}


def _registry(options: ClusterOptions) -> list[ServiceSpec]:
    if not options.registry_command:
        return []
    probe = Probe("resp", options.registry_address)
    return [ServiceSpec("registry", options.registry_command, REGISTRY_LAYER, probe, grace_s=5.0)]


def _store(options: ClusterOptions) -> list[ServiceSpec]:
    store = options.store
    if store is None:
        return []
    sizes = {"segment_size": str(store.memory_bytes)}
    if store.ssd_path:
        sizes |= {"ssd_path": store.ssd_path, "ssd_size": str(store.ssd_bytes)}
    given = {key for section, key, _ in options.settings if section == "kvstore"}
    flags = [part for key, value in sizes.items() if key not in given for part in (f"--{key.replace('_', '-')}", value)]
    flags += ["--node-id", STORE_ID, "--registry.url", options.registry]
    argv = (options.python, "-m", "services.kvstore", *flags)
    return [ServiceSpec(STORE_ID, argv, STORE_LAYER, Probe("log"), options.grace_s)]


def _workers(options: ClusterOptions) -> list[ServiceSpec]:
    if options.profile == "unified":
        names = [("decode", f"worker-{index}") for index in range(options.decode_workers)]
        roles: tuple[str, ...] = ("--roles", "prefill,decode")
    else:
        names = [("prefill", f"prefill-{index}") for index in range(options.prefill_workers)]
        names += [("decode", f"decode-{index}") for index in range(options.decode_workers)]
        roles = ()
    shared = ("--model-path", options.model_path, "--workers-on-host", str(len(names)), *roles)
    if options.store is not None:
        shared += ("--hicache-storage-backend", "kvstore")
    shared += ("--registry.url", options.registry, *options.worker_flags)
    return [
        ServiceSpec(
            name,
            (options.python, "-m", f"services.{service}", "--worker-id", name, *shared),
            WORKER_LAYER,
            Probe("log"),
            options.grace_s,
        )
        for service, name in names
    ]


def _routers(options: ClusterOptions) -> list[ServiceSpec]:
    ports = options.router_ports
    names = ["router"] if len(ports) == 1 else [f"router-{index}" for index in range(len(ports))]
    shared = ("--model-path", options.model_path, "--registry.url", options.registry, *options.router_flags)
    return [
        ServiceSpec(
            name,
            (options.python, "-m", "services.router", "--host", "127.0.0.1", "--port", str(port), *shared),
            ROUTER_LAYER,
            Probe("log"),
            options.grace_s,
        )
        for name, port in zip(names, ports, strict=True)
    ]


def _gateway(options: ClusterOptions, routers: str, url: str) -> ServiceSpec:
    flags = ("--host", options.host, "--port", str(options.port), "--router-address", routers, *options.gateway_flags)
    argv = (options.python, "-m", "services.gateway", *flags)
    return ServiceSpec("gateway", argv, GATEWAY_LAYER, Probe("http", f"{url}/ready"), options.grace_s)
