"""Two of every process over the tiny model, harmed under load: no request fails, every text is the undisturbed one.

The same at full size and with a real model, and more ways to harm, are in `tests/chaos/test_loss_smollm2.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from pando.v1.inference_pb2 import WorkerStatus
from tests.support.cluster import Cluster
from tests.support.load import make_prompts
from tests.support.loss import Pressed, Work, lose, router_names, wait_known

CLIENTS = 3
PAUSE_S = 0.5
FLAGS = ("--prefill-workers", "2", "--decode-workers", "2", "--routers", "2", "--worker.enable-failpoints")
PREFILL, DECODE = ("prefill-0", "prefill-1"), ("decode-0", "decode-1")
HANDOFF, STREAM = "rpc.PrefillService.Handoff.message", "rpc.DecodeService.Generate.message"
FEW_WORDS = "10*off;drop"
"""Far fewer than any stream of these has, so that one which has begun hangs in the midst."""
SCHEMA = {
    "type": "object",
    "properties": {"tags": {"type": "array", "items": {"type": "string", "maxLength": 6}, "minItems": 70}},
    "required": ["tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("pairs"), *FLAGS) as running:
        yield running


@pytest.fixture(autouse=True)
def whole(cluster: Cluster) -> Iterator[None]:
    cluster.wait_serving()
    yield
    cluster.wait_serving()
    cluster.check_idle()
    cluster.check_logs()


@pytest.fixture(scope="module")
def schema(cluster: Cluster) -> Work:
    """JSON by a schema, long enough to be cut in the midst of the object."""
    fields = {"json_schema": SCHEMA, "ignore_eos": False}
    return Work(make_prompts(CLIENTS, 62), 450, fields).learn(cluster, CLIENTS)


@pytest.fixture(scope="module")
def plain(cluster: Cluster) -> Work:
    """Prompts for prefill workers."""
    return Work(make_prompts(12, 63), 32).learn(cluster, CLIENTS)


async def all_under_way(run: Pressed) -> None:
    await run.until_started(CLIENTS)


def test_json_is_whole_though_its_decode_worker_is_killed_and_a_router_ends(cluster: Cluster, schema: Work) -> None:
    assert all(text.startswith("{") for text in schema.texts), "no schema was obeyed"
    victims: list[WorkerStatus] = []
    victim = ""

    def has_credit(known: list[WorkerStatus]) -> bool:
        victims[:] = [worker for worker in known if worker.worker_id == victim and worker.blocks_in_view]
        return bool(victims)

    async def harm(run: Pressed) -> None:
        nonlocal victim
        victim = await run.in_use(DECODE, STREAM)
        await run.hold(victim, STREAM, FEW_WORDS)
        await wait_known(cluster, has_credit, 60.0, "the blocks of the worker to be killed are known")
        run.kill_now(victim)
        run.terminate("router-1")

    loss = lose(cluster, schema, CLIENTS, CLIENTS, harm)
    loss.check(schema)
    assert loss.num_moved > 0, "nothing was cut"

    def has_no_credit(known: list[WorkerStatus]) -> bool:
        lives = [worker for worker in known if worker.worker_id == victim]
        return bool(lives) and lives[0].incarnation != victims[0].incarnation and not lives[0].blocks_in_view

    asyncio.run(wait_known(cluster, has_no_credit, 60.0, "the old life's blocks are forgotten"))


def test_a_frozen_decode_worker_is_left_and_its_late_words_do_no_harm(cluster: Cluster, schema: Work) -> None:
    async def freeze(run: Pressed) -> None:
        await all_under_way(run)
        victim = await run.in_use(DECODE, STREAM)

        async def answered() -> None:
            while len(run.loss.replies) < CLIENTS:  # noqa: ASYNC110 - several clients add to it
                await asyncio.sleep(0.05)

        await run.freeze(victim, answered)

    lose(cluster, schema, CLIENTS, CLIENTS, freeze).check(schema)
    cluster.wait_serving()
    lose(cluster, schema, CLIENTS, CLIENTS, all_under_way).check(schema)


def test_prompts_are_computed_elsewhere_though_their_prefill_worker_is_killed(cluster: Cluster, plain: Work) -> None:
    async def kill(run: Pressed) -> None:
        victim = await run.in_use(PREFILL, HANDOFF)
        await run.hold(victim, HANDOFF, "drop")
        run.kill_now(victim)

    loss = lose(cluster, plain, 3 * CLIENTS, CLIENTS, kill)
    loss.check(plain)
    assert loss.num_retried > 0, "nothing was hit"


def test_all_workers_and_routers_are_restarted_one_half_after_the_other(cluster: Cluster, plain: Work) -> None:
    names = [*cluster.workers, *router_names(cluster)]
    halves = [[name for name in names if name.endswith(half)] for half in ("-0", "-1")]
    assert sorted([*halves[0], *halves[1]]) == sorted(names) and len(names) == 6
    before = {name: cluster.service(name).restarts for name in names}

    async def roll(run: Pressed) -> None:
        await all_under_way(run)
        for half in halves:
            await run.restart(*half)

    lose(cluster, plain, CLIENTS, CLIENTS, roll, pause_s=PAUSE_S).check(plain)
    assert all(cluster.service(name).restarts > before[name] for name in names)
