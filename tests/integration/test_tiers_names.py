"""On a shared L3, who has another model, dtype, block size, key or salt finds nothing; who has the same finds all."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.support.oracle import Ask
from tests.support.store_files import num_files
from tests.support.tier_client import TierClient, check_exact, reusable_tokens
from tests.support.tiny_model import tiny_model_dir, write_tiny_model
from tests.support.workers import WorkerProcess, Workers

PROMPT = tuple(2 + (i * i * 29 + i * 5) % 250 for i in range(200))
SALT = "tenant"
ASK = Ask(PROMPT, 8, SALT)
BASE = {"dtype": "bf16", "block_size": "16"}


def copy_model(folder: Path) -> str:
    """The same files elsewhere."""
    shutil.copytree(tiny_model_dir(), folder)
    return str(folder)


def other_model(folder: Path) -> str:
    write_tiny_model(folder, seed=1)
    return str(folder)


def touched_model(folder: Path) -> str:
    """The same model but for the lowest bit of its last weight."""
    weights = Path(copy_model(folder)) / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-4] ^= 1
    weights.write_bytes(content)
    return str(folder)


def key_file(folder: Path) -> str:
    path = folder.with_suffix(".key")
    path.touch(0o600)
    path.write_text("z" * 32)
    return str(path)


CHANGES = {
    "kv-dtype": lambda folder: {"kv_cache_dtype": "fp16"},
    "kv-int8": lambda folder: {"kv_cache_dtype": "int8"},
    "compute-dtype": lambda folder: {"dtype": "fp32"},
    "block-size": lambda folder: {"block_size": "32"},
    "model": lambda folder: {"model_path": other_model(folder)},
    "weights": lambda folder: {"model_path": touched_model(folder)},
    "key": lambda folder: {"kv_tag_key_file": key_file(folder)},
    "nothing": lambda folder: {"model_path": copy_model(folder)},
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that a worker has filled with the prompt's blocks."""
    folder = tmp_path_factory.mktemp("shared") / "store"
    with Workers(**BASE) as workers:
        asyncio.run(_fill(workers.start("decode"), folder))
    return folder


async def _fill(worker: WorkerProcess, folder: Path) -> None:
    async with TierClient(worker.address) as client:
        await client.attach(folder)
        await client.run(ASK)
        await client.written()
        assert num_files(folder) == len(PROMPT) // 16
        for salt in ("", "tenan", "tenantt", "Tenant", "tenant\0"):
            run = await client.run(Ask(PROMPT, 8, salt))
            assert run.num_cached == 0, f"salt {salt!r} found {run.usage.cached_tokens}"
        await client.forget()
        assert (await client.run(Ask(PROMPT, 8, "t"))).num_cached == 0
        assert (await client.run(ASK)).usage.cached_tokens.l3 == reusable_tokens(PROMPT)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_misses_instead_of_colliding(change: str, store: Path, tmp_path: Path) -> None:
    flags = BASE | {"debug_logits_digest": ""} | CHANGES[change](tmp_path / "model")
    with Workers(**flags) as workers:
        worker = workers.start("decode")
        hits, own = asyncio.run(_use(worker, store, int(flags["block_size"])))
        assert worker.metric("pando_worker_integrity_failures_total") == 0, "it was found, and only then refused"
        read = worker.metric("pando_worker_l3_read_blocks_total", kind="hit")
    if change == "nothing":
        assert hits == reusable_tokens(PROMPT)
    else:
        assert (hits, own) == (0, read * int(flags["block_size"])), "it read what is not its own"


async def _use(worker: WorkerProcess, store: Path, block_size: int) -> tuple[int, int]:
    """Tokens that a worker finds in the store, of others and then of its own making; its text is right throughout."""
    async with TierClient(worker.address) as client:
        colds = await client.cold([ASK])
        await client.attach(store)
        first = await client.run(ASK)
        check_exact([ASK], [first], colds)
        await client.forget()
        second = await client.run(ASK)
        check_exact([ASK], [second], colds)
        own = second.usage.cached_tokens.l3
        assert own == reusable_tokens(PROMPT, block_size), "it does not find what it wrote itself"
        return first.usage.cached_tokens.l3, own
