"""Two of every process over a real model, harmed under load, at full size: nothing fails, every text is the right one.

`LOSS_REQUESTS` sets the number of requests of each run (800); every run prints a line of figures.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from tests.support.cluster import SMOLLM2, Cluster
from tests.support.load import make_prompts
from tests.support.loss import Loss, Pressed, Work, lose, router_names, wait_known

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]

REQUESTS = int(os.environ.get("LOSS_REQUESTS", "800"))
CLIENTS, MAX_TOKENS, PROMPTS, PROMPT_CHARS = 8, 32, 40, 80
MOVED_WITHIN_S = 2.0
REGISTRY_GONE_S = 60.0
FLAGS = (
    *("--prefill-workers", "2", "--decode-workers", "2", "--routers", "2", "--start-timeout", "300"),
    *("--worker.num-threads", "1", "--worker.max-total-tokens", "16384"),
)
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 3, "maxItems": 6},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("loss"), *FLAGS, model=SMOLLM2) as running:
        yield running


@pytest.fixture(autouse=True)
def whole(cluster: Cluster) -> Iterator[None]:
    cluster.wait_serving()
    yield
    cluster.wait_serving()
    cluster.check_idle(5.0)
    cluster.check_logs()


@pytest.fixture(scope="module")
def work(cluster: Cluster) -> Work:
    return Work(make_prompts(PROMPTS, 71, PROMPT_CHARS), MAX_TOKENS).learn(cluster, CLIENTS)


def report(capsys: pytest.CaptureFixture[str], what: str, loss: Loss, work: Work) -> None:
    """Print the figures, then check them."""
    with capsys.disabled():
        print(f"\n{what}: {loss.summary(work)}", flush=True)
    loss.check(work)


@pytest.mark.parametrize("name", ["decode-1", "prefill-1"])
def test_one_worker_is_killed(cluster: Cluster, work: Work, capsys: pytest.CaptureFixture[str], name: str) -> None:
    async def kill(run: Pressed) -> None:
        await run.until_started(REQUESTS // 4)
        await run.kill(name)

    loss = lose(cluster, work, REQUESTS, CLIENTS, kill)
    report(capsys, f"kill -9 {name}", loss, work)
    assert loss.num_moved + loss.num_retried > 0, "nothing was hit"
    assert loss.longest_silence_s() <= max(MOVED_WITHIN_S, 2 * loss.longest_usual_gap_s())


def test_json_is_cut_in_the_midst_of_its_object(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = [f"Describe person number {number} as JSON." for number in range(PROMPTS)]
    fields = {"json_schema": PERSON, "ignore_eos": False}
    work = Work(prompts, MAX_TOKENS, fields).learn(cluster, CLIENTS)
    assert all(text.startswith("{") for text in work.texts)

    async def kill(run: Pressed) -> None:
        await run.until_started(REQUESTS // 4)
        await run.kill("decode-0")

    loss = lose(cluster, work, REQUESTS, CLIENTS, kill)
    report(capsys, "kill -9 decode-0 under JSON by a schema", loss, work)
    assert loss.num_moved > 0, "no object was cut"
    assert loss.longest_silence_s() <= max(MOVED_WITHIN_S, 2 * loss.longest_usual_gap_s())


def test_every_worker_and_router_is_restarted(cluster: Cluster, work: Work, capsys: pytest.CaptureFixture[str]) -> None:
    async def roll(run: Pressed) -> None:
        await run.until_started(CLIENTS)
        for name in (*cluster.workers, *router_names(cluster)):
            await run.restart(name)

    report(capsys, "SIGTERM to all in turn", lose(cluster, work, REQUESTS, CLIENTS, roll), work)


@pytest.mark.parametrize("name", ["decode-0", "prefill-0", "router-0"])
def test_one_process_is_frozen(cluster: Cluster, work: Work, capsys: pytest.CaptureFixture[str], name: str) -> None:
    async def freeze(run: Pressed) -> None:
        await run.until_started(REQUESTS // 8)

        async def well_after_it_was_noticed() -> None:
            await asyncio.sleep(8.0)  # time itself is what is tested

        await run.freeze(name, well_after_it_was_noticed)

    report(capsys, f"SIGSTOP {name} for 8 s", lose(cluster, work, REQUESTS // 4, CLIENTS, freeze), work)


def test_the_registry_is_gone_for_a_minute(cluster: Cluster, work: Work, capsys: pytest.CaptureFixture[str]) -> None:
    async def freeze(run: Pressed) -> None:
        async def gone() -> None:
            await asyncio.sleep(REGISTRY_GONE_S)  # time itself is what is tested

        await run.freeze("registry", gone)
        await wait_known(cluster, lambda known: len(known) == 4, 2.0, "all workers are members")

    report(capsys, "registry frozen for 60 s", lose(cluster, work, CLIENTS, CLIENTS, freeze), work)
