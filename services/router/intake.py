"""Wish -> job: checks, tokens, context, seed, hashes; what happens to a request once, before it is planned."""

from __future__ import annotations

from common.base.errors import Leg, ModelNotFound, NotReady
from common.base.ids import new_seed
from common.base.limits import LimitsConfig
from common.grammar.checker import GrammarChecker
from common.kv.hashing import block_hashes, prefix_root
from services.router.closing import detokenizer
from services.router.job import Job, Wish
from services.router.membership import Membership
from services.router.prompts import Model, PromptPool, prompt_size
from services.router.validation import check_wish, output_budget


class Intake:
    """Makes jobs for one model and the workers that serve it."""

    def __init__(
        self,
        model: Model,
        membership: Membership,
        pool: PromptPool,
        grammars: GrammarChecker,
        *,
        limits: LimitsConfig,
        strict_context: bool,
    ) -> None:
        self._model = model
        self._membership = membership
        self._pool = pool
        self._grammars = grammars
        self._limits = limits
        self._strict_context = strict_context
        self._eos_ids = frozenset(model.config.eos_token_ids)

    @property
    def max_model_len(self) -> int:
        """The context that model and workers can serve, in tokens."""
        served = self._membership.max_model_len
        return min(self._model.config.max_position, served or self._model.config.max_position)

    def check_model(self, name: str) -> None:
        """An empty name is the served model. Raises ModelNotFound."""
        if name and name != self._model.name:
            raise ModelNotFound(f"The model '{name[:200]}' does not exist.", param="model")

    async def job(self, wish: Wish, request_id: str, deadline_s: float) -> Job:
        """Turn a wish into a job.

        Raises:
            ModelNotFound, InvalidRequest: the wish can never be granted.
            NotReady: no worker has joined yet.
            Overloaded: too many new grammars wait for their trial.
        """
        self.check_model(wish.model)
        check_wish(wish, self._limits, self._model.config.vocab_size)
        assert wish.prompt is not None, "checked above"
        if wish.params.grammar is not None:
            await self._grammars.check(wish.params.grammar)
        return await self._pool.run(prompt_size(wish.prompt), lambda: self._build(wish, request_id, deadline_s))

    def _build(self, wish: Wish, request_id: str, deadline_s: float) -> Job:
        assert wish.prompt is not None, "checked by the caller"
        max_model_len = self.max_model_len
        prompt_ids = self._model.token_ids(wish.prompt, max_tokens=max_model_len)
        budget = output_budget(wish, len(prompt_ids), max_model_len, self._limits, self._strict_context)
        identity = self._membership.identity
        if identity is None:
            raise NotReady("no worker has joined yet", reason="no_worker", leg=Leg.ROUTER)
        root = prefix_root(identity.block_size, wish.cache_salt)
        return Job(
            wish=wish,
            request_id=request_id,
            prompt_ids=prompt_ids,
            max_tokens=budget,
            seed=new_seed() if wish.seed is None else wish.seed,
            eos_ids=self._eos_ids,
            kv=identity,
            hashes=block_hashes(root, prompt_ids, identity.block_size),
            text_offset=_text_offset(wish, self._model),
            deadline_s=deadline_s,
        )


def _text_offset(wish: Wish, model: Model) -> int:
    """Characters that the client's earlier output already gave it."""
    if not wish.output_ids:
        return 0
    text = detokenizer(wish.params, model.tokenizer)
    text.feed(wish.output_ids)
    return text.text_offset
