"""Three workers for the exactness oracle, and the comparison of every run with its cold one.

The fleet: `prefill`, `decode` (computes nothing itself when a prefill worker is named) and `small`, another decode
worker whose pool is so small that it must preempt. Cold runs are made on `decode` while nothing else runs and kept by
what was asked, so that each costs once per module.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.support.oracle import Ask, Run, WorkerClient, difference
from tests.support.workers import WorkerProcess, Workers

BACKEND_VARIABLE = "ORACLE_BACKEND"
"""Names another attention backend; torch_ref promises no equal bits, and the oracle must say so."""

DEFAULT_CHUNK = 512
WHOLE_PROMPT = -1


@dataclass(slots=True)
class FleetProcesses:
    """The processes, and what their cold runs were."""

    prefill: WorkerProcess
    decode: WorkerProcess
    small: WorkerProcess
    cold: dict[Ask, Run] = field(default_factory=dict)


@contextmanager
def start_fleet(model: Path, *, small_pool_tokens: int, **flags: str) -> Generator[FleetProcesses, None, None]:
    """Run the three workers over `model`; `flags` as for `Workers`. See BACKEND_VARIABLE for another backend."""
    flags |= {"attention_backend": os.environ.get(BACKEND_VARIABLE, "cpu"), "local_prefill_tokens": "0"}
    with Workers(model_path=str(model), debug_logits_digest="", **flags) as workers:
        prefill = workers.launch("prefill", worker_id="prefill")
        decode = workers.launch("decode", worker_id="decode")
        small = workers.launch("decode", worker_id="small", max_total_tokens=str(small_pool_tokens))
        yield FleetProcesses(prefill.wait_ready(), decode.wait_ready(), small.wait_ready())


@dataclass(slots=True)
class ExactFleet:
    """Clients of a fleet on the current loop."""

    prefill: WorkerClient
    decode: WorkerClient
    small: WorkerClient
    known_cold: dict[Ask, Run]
    _salts: itertools.count[int] = field(default_factory=itertools.count)
    _chunk: int = DEFAULT_CHUNK

    @classmethod
    @asynccontextmanager
    async def connect(cls, processes: FleetProcesses) -> AsyncGenerator[ExactFleet, None]:
        """Open clients; at the end no block may be held anywhere."""
        async with AsyncExitStack() as stack:
            workers = {"prefill": processes.prefill, "decode": processes.decode, "small": processes.small}
            clients = {name: WorkerClient(worker.address, name) for name, worker in workers.items()}
            for client in clients.values():
                stack.push_async_callback(client.close)
                await client.flush()
            yield cls(clients["prefill"], clients["decode"], clients["small"], processes.cold)
            for worker in workers.values():
                await asyncio.to_thread(worker.check_idle)

    def salt(self) -> str:
        """A cache salt that nobody has used since the caches were flushed."""
        return f"salt-{next(self._salts)}"

    def by(self, way: str) -> str:
        """The prefill address for `local` or `pd`."""
        return self.prefill.address if way == "pd" else ""

    async def cold(self, ask: Ask) -> Run:
        """The cold run of an ask, wherever its KV shall come from; nothing else may be running."""
        plain = Ask(ask.prompt, ask.max_tokens, temperature=ask.temperature, seed=ask.seed, choice=ask.choice)
        if plain not in self.known_cold:
            assert (await self.decode.stats()).num_running == 0, "a cold run must be alone"
            await self.decode.configure(chunked_prefill_size=WHOLE_PROMPT)
            self.known_cold[plain] = await self.decode.run(replace(plain, salt=f"cold-{len(self.known_cold)}"))
            await self.decode.configure(chunked_prefill_size=self._chunk)
            assert self.known_cold[plain].num_cached == 0, "a cold run had cached tokens"
        return self.known_cold[plain]

    async def check(self, worker: WorkerClient, ask: Ask) -> Run:
        """Run an ask on a worker and compare it with its cold run."""
        cold = await self.cold(ask)
        run = await worker.run(ask)
        self.compare([(ask, run, cold)])
        return run

    def compare(self, runs: Iterable[tuple[Ask, Run, Run]]) -> None:
        """Assert that each (ask, run, cold run) is exact and complete."""
        for ask, run, cold in runs:
            assert run.first + len(run.token_ids) == ask.max_tokens, f"{len(run.token_ids)} tokens from {run.first} on"
            where = difference(run, cold)
            assert not where, f"{where} differ: prompt of {len(ask.prompt)} tokens, {run.num_cached} cached, {ask}"

    @asynccontextmanager
    async def chunked(self, chunk: int) -> AsyncGenerator[None, None]:
        """Another chunk size on all workers for the body; cold runs never use it."""
        await self._set_chunk(chunk)
        try:
            yield
        finally:
            await self._set_chunk(DEFAULT_CHUNK)

    async def _set_chunk(self, chunk: int) -> None:
        self._chunk = chunk
        for worker in (self.prefill, self.decode, self.small):
            await worker.configure(chunked_prefill_size=chunk)
