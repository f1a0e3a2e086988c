"""`pando admin` against servers on real sockets: tiers, policies, failpoints, the token, and how workers are found."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from common.base.failpoints import Failpoints
from common.cache.config import PrefetchPolicy, WritePolicy
from common.rpc.registry import Heartbeat, RegistryReader, WorkerRecord
from common.worker.admin import TierName
from pando.cli.errors import CliError
from pando.cli.local_registry import registry_command
from pando.cli.main import app
from pando.cli.ports import free_port
from pando.cli.probes import answers_ping
from pando.cli.processes import spawn
from tests.support.admin_server import admin_server, some_failpoints
from tests.support.fake_tiers import FakeTiers
from tests.support.workers import wait_until

TOKEN = "a-long-secret"
LIMIT_S = 60.0


async def admin(*arguments: str, status: int = 0) -> str:
    """Run a command to its expected exit status; returns what it printed, on both streams."""
    done = await asyncio.to_thread(CliRunner().invoke, app, ["admin", *arguments])
    if isinstance(done.exception, CliError):
        assert done.exception.code == status, done.exception
        return str(done.exception)
    assert done.exit_code == status, done.output
    return done.output


async def test_tiers_are_shown_and_changed() -> None:
    async with admin_server() as (address, tiers):
        to = ("--worker", address)
        assert "60/30/10" in await admin("tiers", *to)
        assert "done" in await admin(
            *(
                "attach",
                "file",
                "--set",
                "path=/x",
                "--prefetch",
                "policy=best_effort",
                "--prefetch",
                "min-tokens=9",
                *to,
            )
        )
        assert tiers.attached is not None and tiers.attached.settings == {"path": "/x"}
        assert (tiers.prefetch.policy, tiers.prefetch.min_tokens) == (PrefetchPolicy.BEST_EFFORT, 9)
        listed = json.loads(await admin("--json", "tiers", *to))[address]
        assert [tier["tier"] for tier in listed["tiers"]] == ["l1", "l3"] and listed["worker_id"] == "w1"
        assert "30 blocks dropped" in await admin("flush", "l3", "--namespace", "ab01", *to)
        assert tiers.flushed == [(TierName.L3, b"\xab\x01")]
        assert "write_through_selective" in await admin("policy", "--write", "write_through_selective", *to)
        assert tiers.policies.write is WritePolicy.WRITE_THROUGH_SELECTIVE
        await admin("detach", *to)
        assert tiers.attached is None


async def test_roles_are_shown_and_set() -> None:
    async with admin_server() as (address, _):
        assert "prefill" in await admin("roles", "--worker", address)
        assert "prefill -> decode" in await admin("role", address, "decode", "--force", "--drain-s", "0")
        assert json.loads(await admin("--json", "roles", "--worker", address))[address]["roles"] == ["decode"]
        assert "(roles)" in await admin("role", address, "cook", "--force", status=1)


async def test_what_is_refused_is_one_line_and_a_status() -> None:
    async with admin_server() as (address, tiers):
        to = ("--worker", address)
        assert "(write_policy)" in await admin("policy", "--write", "sometimes", *to, status=1)
        assert "failpoints_disabled" in await admin("failpoint", "arm", "l3.read", "fail", *to, status=1)
        refused = json.loads(await admin("--json", "flush", "l2", *to, status=1))
        assert "no l2" in refused[address]["error"]
        assert tiers == FakeTiers()
    assert address in await admin("--timeout", "5", "tiers", *to, status=1), "nobody listens there any more"


async def test_failpoints_are_armed_and_disarmed() -> None:
    failpoints = some_failpoints()
    async with admin_server(failpoints) as (address, _):
        to = ("--worker", address)
        assert "nothing is armed" in await admin("failpoint", "list", *to)
        assert "30%flip(recompute)" in await admin("failpoint", "arm", "l3.*", "30%flip(recompute)", *to)
        assert [armed.name for armed in failpoints.armed()] == ["l3.*"]
        listed = await admin("failpoint", "list", *to)
        assert "one object is read" in listed and "admin" in listed
        assert "1 disarmed" in await admin("failpoint", "disarm", "--all", *to)
        assert failpoints.armed() == []


async def test_the_token_is_wanted(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_text(TOKEN + "\n")
    bad.write_text("another-secret")
    async with admin_server(token=TOKEN) as (address, tiers):
        to = ("--worker", address)
        assert "operator token" in await admin("--token-file", str(bad), "flush", "l1", *to, status=1)
        assert not tiers.flushed
        await admin("--token-file", str(good), "flush", "l1", *to)
        assert tiers.flushed


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """URL of a real registry."""
    port = free_port()
    server = spawn(registry_command(port, tmp_path), os.environ, tmp_path / "log")
    try:
        wait_until(lambda: answers_ping(f"127.0.0.1:{port}"), LIMIT_S, lambda: "no registry")
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.kill()
        server.wait()


async def test_workers_are_found_in_the_registry(registry: str) -> None:
    failpoints: list[Failpoints] = [some_failpoints(), some_failpoints()]
    async with admin_server(failpoints[0]) as (first, _), admin_server(failpoints[1]) as (second, _):
        records = [WorkerRecord("decode-0", 1, first), WorkerRecord("prefill-0", 2, second)]
        beats = [
            Heartbeat(registry, "other", lambda record=record: record, interval_s=0.2, ttl_s=20.0) for record in records
        ]
        for beat in beats:
            beat.start()
        try:
            await both_registered(registry)
            at = ("--registry", registry, "--cluster", "other")
            await admin(*at, "failpoint", "arm", "l3.read", "fail")
            assert all(one.armed() for one in failpoints)
            await admin(*at, "failpoint", "disarm", "--all", "--worker", "prefill-0")
            assert [bool(one.armed()) for one in failpoints] == [True, False]
            said = await admin(*at, "tiers", "--worker", "decode-7", status=2)
            assert "known: decode-0, prefill-0" in said
            assert "prefill -> decode" in await admin(*at, "role", "decode-0", "decode")
            assert "left to prefill" in await admin(*at, "role", "prefill-0", "decode", status=2)
            assert "prefill -> decode" in await admin(*at, "role", "prefill-0", "decode", "--force")
        finally:
            for beat in beats:
                await asyncio.to_thread(beat.close)


async def both_registered(url: str) -> None:
    reader = RegistryReader(url, "other", 5.0)
    async with asyncio.timeout(LIMIT_S):
        while len(await reader.list_workers()) < 2:  # noqa: ASYNC110 - the state is in another process
            await asyncio.sleep(0.02)
    await reader.close()


async def test_a_registry_that_is_not_there() -> None:
    said = await admin("--registry", f"redis://127.0.0.1:{free_port()}/0", "tiers", status=1)
    assert "registry" in said and "--worker HOST:PORT" in said
