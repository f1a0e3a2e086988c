"""A real gateway over a fake router, both on one event loop in a thread of their own, for blocking clients."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any

import uvloop
from prometheus_client import CollectorRegistry

from common.base.config import TimeoutsConfig
from common.base.limits import LimitsConfig
from common.rpc.server import RpcServer
from pando.v1 import inference_pb2_grpc
from services.gateway.app import Gateway, build
from services.gateway.client import RouterClient
from services.gateway.config import GatewayConfig
from services.gateway.router_rpc import SERVICE
from services.gateway.server import HttpServer, listen
from tests.support.fake_inference import FakeInference, Knobs


class GatewayThread:
    """Context manager.

    Attributes:
        url: of the gateway.
        router_address: of the fake router's gRPC.
        fake: the router.
        gateway, http, rpc: the running objects; touch them on their loop only (`call`).
    """

    def __init__(
        self, timeouts: TimeoutsConfig | None = None, limits: LimitsConfig | None = None, **config: Any
    ) -> None:
        self._limits = limits or LimitsConfig()
        self._timeouts = timeouts or TimeoutsConfig(drain_s=5)
        self._config = GatewayConfig(host="127.0.0.1", port=0, **config)
        self._ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, name="gateway")
        self.fake = FakeInference()
        self.url = ""
        self.router_address = ""
        self.gateway: Gateway
        self.http: HttpServer
        self.rpc: RpcServer
        self._loop: asyncio.AbstractEventLoop

    def __enter__(self) -> GatewayThread:
        self._thread.start()
        self._ready.result(timeout=60)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self.http.drain)
        self._thread.join(timeout=60)
        assert not self._thread.is_alive(), "the gateway did not drain"

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the gateway's loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=60)

    def settle(self) -> None:
        """Return when no request is under way any more; raises AssertionError when one stays."""

        async def turn() -> None:
            for _ in range(10_000):
                if not len(self.gateway.running):
                    return
                await asyncio.sleep(0)
            raise AssertionError(f"{len(self.gateway.running)} requests stay")

        assert self.fake.wait_for(lambda: self.fake.num_active == 0), "a call outlived its request"
        self.call(turn())

    def drain(self) -> None:
        """What SIGTERM does."""
        self._loop.call_soon_threadsafe(self.http.drain)

    def set_knobs(self, knobs: Knobs) -> None:
        """Break the router from the next request on."""
        self.fake.knobs = knobs

    def resume(self) -> None:
        """Let paused requests go on."""
        self._loop.call_soon_threadsafe(self.fake.knobs.resume.set)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.rpc = RpcServer(self._timeouts, [SERVICE])
        inference_pb2_grpc.add_InferenceServicer_to_server(self.fake, self.rpc.grpc)
        self.router_address = f"127.0.0.1:{self.rpc.bind('127.0.0.1', 0)}"
        await self.rpc.start()
        await self.rpc.set_serving(True)
        config = self._config
        client = RouterClient(
            self.router_address, self._timeouts, config.probe_s, config.router_wait_s, new_seed=lambda: 0
        )
        self.gateway = build(self._config, client, CollectorRegistry(), self._limits)
        self.http = HttpServer(self.gateway, self._config, self._limits, self._timeouts.drain_s)
        sock = listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        self._ready.set_result(None)
        try:
            await self.http.serve(sock)
        finally:
            await client.close()
            await self.rpc.stop(0)
