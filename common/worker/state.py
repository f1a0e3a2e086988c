"""Who a worker is, as its services tell it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from common.base.errors import Draining
from common.transport.base import Endpoint
from common.worker.job import Identity
from common.worker.roles import WorkerRoles


@dataclass(slots=True)
class WorkerState:
    """Who this worker is, and whether it takes new work.

    Attributes:
        worker_id, incarnation, model, pid: as they register.
        roles: those that it has now.
        identity: see `Identity`.
        endpoints: transports that peers may read from.
        max_model_len, num_blocks: limits.
        draining: set once, on the way down.
    """

    worker_id: str
    incarnation: int
    roles: WorkerRoles
    model: str
    pid: int
    identity: Identity
    endpoints: Sequence[Endpoint]
    max_model_len: int
    num_blocks: int
    draining: bool = False

    def check_takes_work(self, role: str) -> None:
        """Raise Draining on the way down, WrongRole when the worker has not the role now."""
        if self.draining:
            raise Draining(f"worker {self.worker_id} is going down")
        self.roles.check(role)
