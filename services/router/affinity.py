"""Which worker a session was on last: a hint that decides between equals. Bounded; the longest unused are forgotten."""

from __future__ import annotations

from services.router.prefix_view import WorkerKey


class Affinity:
    """The last worker of each session."""

    def __init__(self, max_sessions: int) -> None:
        """Start empty; at most `max_sessions` are remembered."""
        self._max_sessions = max_sessions
        self._workers: dict[str, WorkerKey] = {}

    def __len__(self) -> int:
        """Sessions remembered."""
        return len(self._workers)

    def worker(self, session_id: str) -> WorkerKey | None:
        """The session's last worker."""
        return self._workers.get(session_id) if session_id else None

    def note(self, session_id: str, key: WorkerKey) -> None:
        """A request of the session goes to a worker; an empty id is no session."""
        if session_id and self._max_sessions:
            self._workers.pop(session_id, None)
            self._workers[session_id] = key
            if len(self._workers) > self._max_sessions:
                del self._workers[next(iter(self._workers))]

    def forget(self, key: WorkerKey) -> None:
        """The worker is gone."""
        for session_id in [one for one, worker in self._workers.items() if worker == key]:
            del self._workers[session_id]
