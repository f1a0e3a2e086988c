"""The backend for a Pando cluster, over gRPC or through its gateway.

Prompts travel as token ids that only grow (`spelling`), so what one call computed the next one finds: turns of a
conversation, forks, and the items of a batch share every full block of their common prefix.
"""

from __future__ import annotations

from common.base.errors import InvalidRequest
from pando.client.http import HttpClient
from pando.client.sync_client import Client
from pando.client.target import grpc_target
from pando.lang.backend import Answer, Backend, Listener, Position, metas_of
from pando.lang.expr import Gen, Select
from pando.lang.scoring import score
from pando.lang.spelling import keep, spell, split, tail_ids

WARM_TOKENS = 32
"""New prompt tokens from which it pays to compute them once before several go on from there."""


class RuntimeEndpoint(Backend):
    """A cluster that runs already.

    Args:
        where: a client, which the caller closes; or an address: host:port of the router, or an http:// URL of the
            gateway; None: PANDO_TARGET, the cluster of ./run, localhost:50051.
    """

    def __init__(self, where: str | Client | HttpClient | None = None) -> None:
        self._owned = not isinstance(where, Client | HttpClient)
        self.client = where if isinstance(where, Client | HttpClient) else _connect(where or grpc_target())

    def generate(self, at: Position, gen: Gen, listener: Listener) -> Answer:
        """See `Backend`."""
        prompt = spell(self.client, at)
        with self.client.stream(prompt.ids, **gen.options) as stream:
            listener.began(stream.close)
            for chunk in stream:
                listener.said(chunk.text if chunk.choice == 0 else "")
            whole = stream.collect()
        first = whole.choices[0]
        position = Position(at.script.append(first.text), keep(self.client, prompt, first))
        return Answer([choice.text for choice in whole.choices], metas_of(whole), position)

    def select(self, at: Position, select: Select) -> Answer:
        """See `Backend`."""
        if not select.choices or "" in select.choices:
            raise InvalidRequest("select needs choices, none of them empty", param="choices")
        parts = split(self.client, at)
        if not parts.kept.ids and not parts.rest:
            raise InvalidRequest("select needs a prompt", param="prompt")
        unconditional = select.method.needs_unconditional
        scored, prompts, answers = score(self.client, parts, select.choices, unconditional=unconditional)
        pick = select.method.pick(scored)
        usage = answers[pick.index].usage
        meta = {
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "cached_tokens_by_choice": [answer.usage.cached_tokens for answer in answers],
            **pick.meta,
        }
        text = select.choices[pick.index]
        return Answer([text], [meta], Position(at.script.append(text), prompts[pick.index]))

    def warm(self, at: Position) -> Position:
        """See `Backend`. A prompt that brings little new is left to those who need it."""
        script = at.script
        asked = script.is_chat and not script.open and script.messages[-1].role == "user"
        if script.is_chat and not script.open and not asked:
            return at  # what comes next decides how the template goes on
        here = Position(script.begin("assistant"), at.memo) if asked else at
        parts = split(self.client, here)
        ids = tail_ids(self.client, parts)
        if len(ids) < WARM_TOKENS:
            return at
        prompt = parts.kept.extended(ids, parts.rest)
        self.client.generate(prompt.ids, max_tokens=1, temperature=0.0)
        # After a question another message may come instead of the answer: the ids are no part of the prompt yet.
        return at if asked else Position(script, prompt)

    def close(self) -> None:
        """See `Backend`."""
        if self._owned:
            self.client.close()


def _connect(where: str) -> Client | HttpClient:
    return HttpClient(where) if where.startswith(("http://", "https://")) else Client(where)
