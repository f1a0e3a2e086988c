"""The deploy files parse and agree with themselves: compose files, Prometheus configurations, other YAML and JSON.

It knows the few rules that matter here, not the whole schemas. That the commands in a compose file are understood by
the services is checked by tests/unit/deploy.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
COMPOSE_KEYS = frozenset({"name", "services", "volumes", "networks", "configs", "secrets"})
SERVICE_KEYS = frozenset({
    "image", "build", "command", "entrypoint", "environment", "ports", "volumes", "depends_on", "healthcheck",
    "restart", "networks", "profiles", "shm_size", "hostname", "init", "user", "working_dir", "stop_grace_period",
    "expose",
})  # fmt: skip
PROMETHEUS_KEYS = frozenset({"global", "scrape_configs", "rule_files", "alerting"})
SCRAPE_KEYS = frozenset({"job_name", "file_sd_configs", "static_configs", "metrics_path", "scrape_interval"})


def check_compose(content: Any) -> Iterator[str]:
    """What is wrong with a compose file."""
    if not isinstance(content, dict) or not isinstance(content.get("services"), dict):
        yield "no services"
        return
    yield from _unknown(content, COMPOSE_KEYS, "top level")
    services = content["services"]
    volumes = content.get("volumes") or {}
    for name, service in services.items():
        yield from _unknown(service, SERVICE_KEYS, name)
        if "image" not in service and "build" not in service:
            yield f"{name}: neither image nor build"
        yield from (
            f"{name}: depends on unknown {other}" for other in service.get("depends_on", ()) if other not in services
        )
        yield from _volumes(name, service, volumes)


def _volumes(name: str, service: dict[str, Any], declared: dict[str, Any]) -> Iterator[str]:
    for volume in service.get("volumes", ()):
        source = str(volume).partition(":")[0]
        if not source.startswith((".", "/")) and source not in declared:
            yield f"{name}: volume {source} is not declared"


def check_prometheus(content: Any) -> Iterator[str]:
    """What is wrong with a Prometheus configuration."""
    if not isinstance(content, dict) or not content.get("scrape_configs"):
        yield "no scrape_configs"
        return
    yield from _unknown(content, PROMETHEUS_KEYS, "top level")
    seen = set()
    for job in content["scrape_configs"]:
        name = job.get("job_name")
        if not name or name in seen:
            yield f"job_name {name!r} is missing or not unique"
        seen.add(name)
        yield from _unknown(job, SCRAPE_KEYS, str(name))
        if not job.get("file_sd_configs") and not job.get("static_configs"):
            yield f"{name}: no targets"


def _unknown(content: dict[str, Any], known: frozenset[str], where: str) -> Iterator[str]:
    yield from (f"{where}: unknown key {key!r}" for key in sorted(set(content) - known))


def check(path: Path) -> list[str]:
    """All findings in one file, each with its path."""
    try:
        if path.suffix == ".json":
            json.loads(path.read_text("utf-8"))
            return []
        documents = list(yaml.safe_load_all(path.read_text("utf-8")))
    except (ValueError, yaml.YAMLError) as error:
        return [f"{path}: {error}"]
    if path.name.startswith("docker-compose"):
        return [f"{path}: {finding}" for finding in check_compose(documents[0])]
    if path.name == "prometheus.yml":
        return [f"{path}: {finding}" for finding in check_prometheus(documents[0])]
    return []


def main() -> int:
    """Check everything under deploy/ and the pre-commit configuration; exit status 1 with one line per finding."""
    paths = [path for path in sorted((ROOT / "deploy").rglob("*")) if path.suffix in (".yml", ".yaml", ".json")]
    lines = [line for path in (*paths, ROOT / ".pre-commit-config.yaml") for line in check(path)]
    print("\n".join(lines) or f"{len(paths) + 1} files")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
