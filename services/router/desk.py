"""What every choice of every request needs: the parts of the router that carry one out."""

from __future__ import annotations

from dataclasses import dataclass

from common.base.clock import Clock
from common.base.logging import Logger
from common.tokenizer.tokenizer import Tokenizer
from services.router.budget import RetryBudget
from services.router.config import RouterConfig
from services.router.decisions import DecisionLog
from services.router.loop import Fleet
from services.router.metrics import RouterMetrics
from services.router.worker_rpc import WorkerRpc


@dataclass(slots=True, frozen=True)
class Desk:
    """Made once by `__main__`."""

    config: RouterConfig
    fleet: Fleet
    rpc: WorkerRpc
    tokenizer: Tokenizer
    metrics: RouterMetrics
    clock: Clock
    log: Logger
    budget: RetryBudget
    decisions: DecisionLog
