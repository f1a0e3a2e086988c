"""A plan in force: its workers are charged from the moment it is made until its attempt ends, however it ends."""

from __future__ import annotations

from services.router.load import LoadBook
from services.router.policy import Plan


class Placement:
    """A plan and its charges; the owner calls `release`."""

    def __init__(self, load: LoadBook, plan: Plan) -> None:
        """Charge the plan's workers."""
        self.plan = plan
        self._prompt = load.charge((plan.prefill or plan.decode).key, plan.prompt_tokens)
        self._output = load.charge(plan.decode.key, plan.output_tokens)

    def progress(self, num_tokens: int) -> None:
        """Tokens came: the prompt is computed, and decode has less to do."""
        self._prompt.release()
        self._output.progress(num_tokens)

    def release(self) -> None:
        """Take back what is left; a second call does nothing."""
        self._prompt.release()
        self._output.release()
