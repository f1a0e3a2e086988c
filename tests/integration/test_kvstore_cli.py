"""`pando store` against a running store process."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from common.cache import kvstore_wire as wire
from common.cache.l3 import HEADER_BYTES
from pando.cli.errors import CliError
from pando.cli.main import app
from tests.support.kvstore_rig import StoreRig, running_store
from tests.support.l3_contract import BLOCK_BYTES, OTHER_SPACE, SPACE, BareStore, block_of, key_of

ROOT = Path(__file__).parents[2]
OBJECT_BYTES = HEADER_BYTES + BLOCK_BYTES


@pytest.fixture
async def rig() -> AsyncIterator[StoreRig]:
    """Three objects of one namespace and one of another."""
    async with running_store() as rig:
        store = BareStore(await rig.client())
        await store.put([block_of(key_of(number)) for number in range(3)] + [block_of(key_of(0, OTHER_SPACE))])
        await store.close()
        yield rig


async def pando_store(*arguments: str) -> tuple[int, str, str]:
    """Exit status, output, errors; in this process, which has imported all that it needs."""
    done = await asyncio.to_thread(CliRunner().invoke, app, ["store", *arguments])
    if isinstance(done.exception, CliError):
        return done.exception.code, done.stdout, str(done.exception)
    return done.exit_code, done.stdout, done.stderr


async def as_process(*arguments: str) -> tuple[int, str, str]:
    """The same as a user's own process."""
    command = (sys.executable, "-m", "pando.cli.main", "store", *arguments)
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def test_stat_ls_verify_and_rm(rig: StoreRig) -> None:
    at = ("--node", rig.address)
    code, out, _ = await pando_store(*at, "stat")
    assert code == 0 and "node,master" in out and " 4 " in out
    code, out, _ = await pando_store(*at, "--json", "ls", "--namespace", SPACE.hex())
    (listing,) = json.loads(out)
    assert code == 0 and len(listing["objects"]) == 3 and not listing["more"]
    assert {one["prefix_hash"] for one in listing["objects"]} == {key_of(n).prefix_hash.hex() for n in range(3)}
    code, out, _ = await pando_store(*at, "ls", "--limit", "2")
    assert code == 0 and out.count(" KiB ") == 2 and "there are more" in out
    code, out, _ = await pando_store(*at, "rm", OTHER_SPACE.hex())
    assert code == 0 and "1 objects removed" in out

    assert rig.process.parts is not None
    holdings = rig.process.parts.holdings
    one = holdings.objects.get(wire.name_of(key_of(1)))
    assert one is not None and one.run is not None
    holdings.arena.view(one.run)[0] ^= 1
    code, out, err = await pando_store(*at, "verify")
    assert code == 1 and "3 objects checked, 1 damaged" in out and key_of(1).prefix_hash.hex() in out
    assert "damaged objects" in err


async def test_a_quota_is_seen_and_a_namespace_goes_without_the_others() -> None:
    async with running_store(namespace_quota=5 * OBJECT_BYTES) as rig:
        store, at = BareStore(await rig.client()), ("--node", rig.address)
        for number in range(12):
            await store.put([block_of(key_of(number)), block_of(key_of(number, OTHER_SPACE))])
        await store.close()
        for space, others in ((SPACE, 5), (OTHER_SPACE, 0)):
            _, out, _ = await pando_store(*at, "--json", "ls", "--namespace", space.hex())
            assert len(json.loads(out)[0]["objects"]) == 5
            code, out, _ = await pando_store(*at, "--json", "rm", space.hex())
            assert code == 0 and json.loads(out)[0]["num_removed"] == 5
            _, out, _ = await pando_store(*at, "--json", "stat")
            assert json.loads(out)[0]["values"]["num_objects"] == str(others)
        code, out, _ = await pando_store(*at, "rm", SPACE.hex())
        assert code == 0 and "0 objects removed" in out


async def test_what_cannot_work_is_one_line(rig: StoreRig) -> None:
    code, _, err = await as_process("--node", "127.0.0.1:1", "stat")
    assert code == 1 and err.count("\n") == 1
    code, _, err = await pando_store("--node", rig.address, "rm", "xyz")
    assert code == 2 and "not hex" in err
