"""Who has how much to do: what this router gave to each worker and what is not done yet.

A request is charged to its workers when they are chosen: prompt tokens that one has to compute, output tokens that one
is expected to generate, and the context that they will occupy. The charge shrinks as tokens arrive and is released on
every path, exactly once however often `release` is called. What others (routers, drained streams) gave to a worker is
known by its own word only: whatever it reports beyond the charges is foreign. Invariants: a worker's tokens are the sum
of its open charges; nothing is latched: every figure follows from open charges and the last report. Knows nothing about
requests; the time comes as an argument, and what has none happens at the latest one seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from services.router.prefix_view import WorkerKey


@dataclass(slots=True)
class Load:
    """What one worker has to do. Changed by the book only.

    Attributes:
        prompt_tokens: to compute before a request that comes now.
        output_tokens: to generate still.
        context_tokens: of all open charges; what they occupy in the worker's memory, blocks shared by several counted
            for each.
        num_generating: open charges with output.
        num_charges: open charges.
        last_used: position of the last charge among all charges of all workers; 0: never.
        foreign_tokens, foreign_requests: prompt tokens that wait, and requests, that are not this router's.
        max_requests, max_context_tokens: the worker's bounds; 0 until it has told them.
    """

    prompt_tokens: int = 0
    output_tokens: int = 0
    context_tokens: int = 0
    num_generating: int = 0
    num_charges: int = 0
    last_used: int = 0
    foreign_tokens: int = 0
    foreign_requests: int = 0
    max_requests: int = 0
    max_context_tokens: int = 0
    _forgotten: bool = False
    _head_since_s: float = 0.0
    _prompts: dict[Charge, None] = field(default_factory=dict)

    @property
    def is_full(self) -> bool:
        """Whether one more request has to wait for room; False while the bounds are not known."""
        seats_taken = 0 < self.max_requests <= self.num_requests
        return seats_taken or 0 < self.max_context_tokens <= self.context_tokens

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens that are computed before those of a request that comes now."""
        return self.prompt_tokens + self.foreign_tokens

    def queue_s(self, token_s: float, now_s: float) -> float:
        """When a request that comes now would be looked at, if a prompt token takes `token_s`.

        Prompts are taken to be computed in turn, and the oldest to be as far as the time since the one before it was
        done allows. One that is late is taken to need as long again as it is late.
        """
        if not self._prompts:
            return self.foreign_tokens * token_s
        head = next(iter(self._prompts))
        left_s = abs(head.prompt_tokens * token_s - (now_s - self._head_since_s))
        return (self.queued_tokens - head.prompt_tokens) * token_s + left_s

    @property
    def num_requests(self) -> int:
        """Requests that generate or will."""
        return self.num_generating + self.foreign_requests


class Charge:
    """What one request still costs one worker."""

    __slots__ = ("_book", "_key", "_open", "context_tokens", "generates", "output_tokens", "prompt_tokens")

    def __init__(
        self, book: LoadBook, key: WorkerKey, prompt_tokens: int, output_tokens: int, context_tokens: int
    ) -> None:
        self._book = book
        self._key = key
        self._open = True
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.context_tokens = context_tokens
        self.generates = output_tokens > 0

    def computed(self, now_s: float) -> None:
        """The prompt is computed; a second call does nothing."""
        if self._open:
            self._book._now_s = now_s
            self._book._computed(self._key, self)

    def progress(self, tokens: int) -> None:
        """`tokens` of the output came; more than were expected count as all of it."""
        if self._open:
            self._book._generated(self._key, self, min(tokens, self.output_tokens))

    def release(self) -> None:
        """Take back what is left; a second call does nothing."""
        if self._open:
            self._open = False
            self._book._close(self._key, self)


class LoadBook:
    """Open charges by worker."""

    def __init__(self) -> None:
        self._loads: dict[WorkerKey, Load] = {}
        self._uses = 0
        self._now_s = 0.0

    def charge(
        self,
        key: WorkerKey,
        now_s: float,
        *,
        prompt_tokens: int = 0,
        output_tokens: int = 0,
        context_tokens: int = 0,
    ) -> Charge:
        """Charge a worker; the caller releases the result on every path."""
        self._now_s = now_s
        load = self._account(key)
        self._uses += 1
        load.last_used = self._uses
        load.prompt_tokens += prompt_tokens
        load.output_tokens += output_tokens
        load.context_tokens += context_tokens
        load.num_charges += 1
        load.num_generating += output_tokens > 0
        charge = Charge(self, key, prompt_tokens, output_tokens, context_tokens)
        if prompt_tokens:
            load._head_since_s = load._head_since_s if load._prompts else now_s
            load._prompts[charge] = None
        return charge

    def observe(self, key: WorkerKey, waiting_tokens: int, num_requests: int) -> None:
        """A worker told what waits and how many requests it has: what is not charged here is foreign."""
        load = self._account(key)
        load.foreign_tokens = max(0, waiting_tokens - load.prompt_tokens)
        load.foreign_requests = max(0, num_requests - load.num_charges)

    def bounds(self, key: WorkerKey, max_requests: int, max_context_tokens: int) -> None:
        """A worker told how much it can hold."""
        load = self._account(key)
        load.max_requests = max_requests
        load.max_context_tokens = max_context_tokens

    def of(self, key: WorkerKey) -> Load:
        """What the worker has to do; to be read at once, not kept."""
        load = self._loads.get(key)
        return Load() if load is None else load

    def outstanding_tokens(self, key: WorkerKey) -> int:
        """Tokens of the open charges that the worker still has to compute."""
        load = self.of(key)
        return load.prompt_tokens + load.output_tokens

    def forget(self, key: WorkerKey) -> None:
        """The worker is gone: its account closes with its last charge."""
        load = self._loads.get(key)
        if load:
            load._forgotten = True
            self._sweep(key, load)

    def _account(self, key: WorkerKey) -> Load:
        load = self._loads.get(key)
        if load is None:
            load = self._loads[key] = Load()
        return load

    def _computed(self, key: WorkerKey, charge: Charge) -> None:
        load = self._loads[key]
        if charge not in load._prompts:
            return
        if next(iter(load._prompts)) is charge:
            load._head_since_s = self._now_s
        del load._prompts[charge]
        load.prompt_tokens -= charge.prompt_tokens
        charge.prompt_tokens = 0
        assert load.prompt_tokens >= 0, f"{key}: {load.prompt_tokens} prompt tokens outstanding"

    def _generated(self, key: WorkerKey, charge: Charge, tokens: int) -> None:
        load = self._loads[key]
        load.output_tokens -= tokens
        charge.output_tokens -= tokens
        assert load.output_tokens >= 0, f"{key}: {load.output_tokens} output tokens outstanding"

    def _close(self, key: WorkerKey, charge: Charge) -> None:
        self._computed(key, charge)
        self._generated(key, charge, charge.output_tokens)
        load = self._loads[key]
        load.context_tokens -= charge.context_tokens
        load.num_generating -= charge.generates
        load.num_charges -= 1
        assert load.num_charges >= 0 and load.context_tokens >= 0, f"{key}: {load}"
        self._sweep(key, load)

    def _sweep(self, key: WorkerKey, load: Load) -> None:
        if load._forgotten and not load.num_charges:
            del self._loads[key]
