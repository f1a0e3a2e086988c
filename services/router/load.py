"""Who has how much to do: tokens that this router gave to each worker and that are not computed yet.

A request is charged to its workers when they are chosen, in tokens still to compute (uncached prompt, expected
output); the charge shrinks as tokens arrive and is released on every path, exactly once however often `release` is
called. Invariant: a worker's outstanding tokens are the sum of its open charges. Knows nothing about requests, time
or what other routers do.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.router.prefix_view import WorkerKey


@dataclass(slots=True)
class _Account:
    outstanding_tokens: int = 0
    num_charges: int = 0
    last_used: int = 0
    forgotten: bool = False


class Charge:
    """Tokens that one request still costs one worker."""

    __slots__ = ("_book", "_key", "_open", "_tokens")

    def __init__(self, book: LoadBook, key: WorkerKey, tokens: int) -> None:
        self._book = book
        self._key = key
        self._tokens = tokens
        self._open = True

    def progress(self, tokens: int) -> None:
        """`tokens` of the charge are computed; more than were charged count as all of it."""
        done = min(tokens, self._tokens)
        self._tokens -= done
        self._book._take(self._key, done)

    def release(self) -> None:
        """Take back what is left; a second call does nothing."""
        if self._open:
            self._open = False
            self._book._close(self._key, self._tokens)
            self._tokens = 0


class LoadBook:
    """Open charges by worker."""

    def __init__(self) -> None:
        self._accounts: dict[WorkerKey, _Account] = {}
        self._uses = 0

    def charge(self, key: WorkerKey, tokens: int) -> Charge:
        """Charge `tokens` to a worker; the caller releases the result on every path."""
        account = self._accounts.setdefault(key, _Account())
        self._uses += 1
        account.last_used = self._uses
        account.outstanding_tokens += tokens
        account.num_charges += 1
        return Charge(self, key, tokens)

    def outstanding_tokens(self, key: WorkerKey) -> int:
        """Tokens that the worker still has to compute."""
        account = self._accounts.get(key)
        return account.outstanding_tokens if account else 0

    def num_charges(self, key: WorkerKey) -> int:
        """Open charges of the worker."""
        account = self._accounts.get(key)
        return account.num_charges if account else 0

    def last_used(self, key: WorkerKey) -> int:
        """Position of the worker's last charge among all charges; 0 when never."""
        account = self._accounts.get(key)
        return account.last_used if account else 0

    def forget(self, key: WorkerKey) -> None:
        """The worker is gone: its account closes with its last charge."""
        account = self._accounts.get(key)
        if account:
            account.forgotten = True
            self._sweep(key, account)

    def _take(self, key: WorkerKey, tokens: int) -> None:
        if tokens:
            account = self._accounts[key]
            account.outstanding_tokens -= tokens
            assert account.outstanding_tokens >= 0, f"{key}: {account.outstanding_tokens} tokens outstanding"

    def _close(self, key: WorkerKey, tokens: int) -> None:
        self._take(key, tokens)
        account = self._accounts[key]
        account.num_charges -= 1
        self._sweep(key, account)

    def _sweep(self, key: WorkerKey, account: _Account) -> None:
        if account.forgotten and not account.num_charges:
            del self._accounts[key]
