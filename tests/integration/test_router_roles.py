"""A real router over fake workers whose roles move: it follows, and what it sent to the wrong one goes elsewhere."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from prometheus_client import CollectorRegistry

from common.base.config import RegistryConfig, TimeoutsConfig
from common.base.errors import InvalidRequest, Leg, PermissionDenied, WrongRole
from common.base.logging import get_logger
from pando.v1 import inference_pb2
from services.router.config import RouterConfig, RouterSettings
from services.router.membership import Membership
from services.router.metrics import RouterMetrics
from services.router.role_loop import make_role_loop
from services.router.worker_rpc import WorkerRpc
from tests.support.admin_server import admin_server
from tests.support.fake_worker import FakeWorker, Fault
from tests.support.role_calls import roles_of
from tests.support.router_bench import LIMIT_S, Bench, bench, text_request, write_model

LIST = inference_pb2.ListWorkersRequest()


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


def give(worker: FakeWorker, *roles: str) -> None:
    """Change the roles that a worker tells when it is asked; its entry in the registry stays as it was."""
    del worker.stats.roles[:]
    worker.stats.roles.extend(roles)


def refuse(worker: FakeWorker, count: int = 1, after: int = 0) -> None:
    """Let a worker refuse Generate as one that does not decode now."""
    worker.faults.extend(Fault(after=after, error=WrongRole("not now", leg=Leg.DECODE)) for _ in range(count))


async def asked(made: Bench) -> list[int]:
    """Run a request, check its tokens, and count the calls to each worker so far."""
    request = text_request()
    answer = await made.ask(request)
    assert (answer.tokens[0], answer.text[0]) == made.expected(request)
    return [len(worker.calls) for worker in made.workers]


async def test_roles_are_followed_and_the_index_is_kept(model_dir: Path) -> None:
    async with bench(model_dir, ["decode", "prefill"]) as made:
        made.workers[1].store([bytes([7]) * 32])
        await made.until(lambda known: known["prefill-1"].blocks_in_view == 1)
        give(made.workers[1], "decode")
        give(made.workers[0], "prefill")
        await made.until(lambda known: list(known["prefill-1"].roles) == ["decode"])
        await made.until(lambda known: list(known["decode-0"].roles) == ["prefill"])
        assert await asked(made) == [0, 1]
        assert made.workers[1].calls[0].prefill.worker_id == "decode-0"
        status = await made.status()
        assert status["prefill-1"].blocks_in_view == 1 and made.workers[1].num_watches == 1


async def test_what_was_sent_to_the_wrong_worker_goes_elsewhere_and_costs_no_retry(model_dir: Path) -> None:
    async with bench(model_dir, ["decode", "decode", "prefill"], retry_ratio=0.0, retry_burst=1) as made:
        for _ in range(3):
            for worker in made.workers[:2]:
                worker.faults.clear()
            refuse(made.workers[0])
            refuse(made.workers[1], after=1)
            await asked(made)
        assert made.metric("retries_refused_total") == 0


async def test_roles_that_move_at_once_keep_a_request_waiting_not_failing(model_dir: Path) -> None:
    """The router looks seldom: it learns of both changes by the refusal."""
    async with bench(model_dir, ["decode", "prefill"], poll_s=600.0) as made:
        give(made.workers[1], "decode")
        give(made.workers[0], "prefill")
        refuse(made.workers[0])
        async with asyncio.timeout(LIMIT_S):
            assert await asked(made) == [1, 1]


async def test_without_any_worker_of_the_role_the_wait_is_short(model_dir: Path) -> None:
    async with bench(model_dir, ["decode", "prefill"]) as made:
        give(made.workers[0], "prefill")
        refuse(made.workers[0], 9)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await made.ask(text_request())
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert len(made.workers[0].calls) <= 1


@pytest.mark.parametrize("mode", ["off", "advise"])
async def test_advice_is_listed_when_it_is_wanted(model_dir: Path, mode: str) -> None:
    roles = ["decode", "decode", "prefill"]
    async with bench(model_dir, roles, role_controller=mode, role_sustain_s=0.0, role_cooldown_s=0.0) as made:
        made.workers[2].stats.waiting_tokens = 50_000
        made.workers[2].stats.prefill_tokens_per_s = 1000.0
        await made.until(lambda known: known["prefill-2"].waiting_tokens == 50_000)
        advice = ""
        for _ in range(int(LIMIT_S / 0.01) if mode == "advise" else 20):
            advice = (await made.stub.ListWorkers(LIST)).role_advice
            if advice:
                break
            await asyncio.sleep(0.01)
        assert ("decode -> prefill" in advice) == (mode == "advise")


async def test_a_role_is_set_by_the_operators_call() -> None:
    rpc = WorkerRpc(TimeoutsConfig())
    try:
        async with admin_server() as (address, _):
            await rpc.set_role(address, "decode", "")
            assert list((await roles_of(address)).roles) == ["decode"]
            with pytest.raises(InvalidRequest):
                await rpc.set_role(address, "cook", "")
        async with admin_server(token="a-long-secret") as (address, _):
            with pytest.raises(PermissionDenied):
                await rpc.set_role(address, "decode", "another-secret")
            await rpc.set_role(address, "decode", "a-long-secret")
    finally:
        await rpc.close()


async def test_without_a_registry_a_controller_that_acts_stands_by(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a-long-secret")
    config = RouterConfig(role_controller="act", admin_token_file=tmp_path / "token", poll_s=0.01)
    settings = RouterSettings(router=config, registry=RegistryConfig(url="redis://127.0.0.1:1/0"))
    metrics = RouterMetrics(CollectorRegistry())
    rpc = WorkerRpc(TimeoutsConfig())
    loop = make_role_loop(settings, Membership(20), rpc, metrics, get_logger())
    assert loop is not None
    loop.start(0.01)
    await loop.step()
    assert loop.advice == ""
    await loop.close()
    await rpc.close()
