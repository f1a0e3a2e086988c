"""A private cluster for one program: started when it is made, stopped when it is closed or its owner dies.

A keeper process runs the local supervisor and holds the reading end of a pipe; when the pipe closes, however its other
end went away, it stops the cluster. So nothing of it outlives the program, not even one that was killed.
"""

from __future__ import annotations

import atexit
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common.base.errors import NotReady
from pando.lang.endpoint import RuntimeEndpoint

_POLL_S = 0.1
_STOP_S = 60.0
_LOG_LINES = 15
_MAX_STARTS = 3
_PORT_TAKEN = "already in use"


class Runtime(RuntimeEndpoint):
    """A cluster over a model folder, and the backend for it; a context manager that stops it.

    Args:
        model_path: model folder.
        profile: "unified" (one worker does everything) or "pd" (prefill and decode apart).
        prefill_workers, decode_workers: how many processes of each.
        worker_flags: further flags of the workers, such as ("--num-threads", "2").
        settings: section -> key -> value for all services, such as {"worker": {"max_total_tokens": 65536}}.
        start_timeout_s: how long all of it may take to become ready.

    Attributes:
        url: of the HTTP gateway.
        router: host:port of the gRPC API.

    Raises:
        NotReady: it did not start; the message has the end of the log.
    """

    def __init__(
        self,
        model_path: str | Path,
        *,
        profile: str = "unified",
        prefill_workers: int = 1,
        decode_workers: int = 1,
        worker_flags: tuple[str, ...] = (),
        settings: dict[str, dict[str, Any]] | None = None,
        start_timeout_s: float = 120.0,
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="pando-runtime-"))
        order = {
            "model_path": str(model_path),
            "run_dir": str(self._folder / "run"),
            "profile": profile,
            "prefill_workers": prefill_workers,
            "decode_workers": decode_workers,
            "worker_flags": list(worker_flags),
            "settings": [
                [section, key, str(value)] for section, keys in (settings or {}).items() for key, value in keys.items()
            ],
            "start_timeout_s": start_timeout_s,
        }
        self._keeper = self._start(order)
        atexit.register(self.shutdown)
        try:
            state = self._wait_ready(order, start_timeout_s)
        except BaseException:
            self.shutdown()
            raise
        self.url, self.router = str(state["url"]), str(state["router"])
        super().__init__(self.router)

    def shutdown(self) -> None:
        """Stop the cluster and wait until nothing of it is left. Idempotent."""
        atexit.unregister(self.shutdown)
        self._stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def close(self) -> None:
        """Close the connection and stop the cluster."""
        super().close()
        self.shutdown()

    def _start(self, order: dict[str, Any]) -> subprocess.Popen[bytes]:
        with (self._folder / "keeper.log").open("wb") as log:
            keeper = subprocess.Popen(
                [sys.executable, "-m", "pando.lang.keeper"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        assert keeper.stdin is not None
        keeper.stdin.write(json.dumps(order).encode() + b"\n")
        keeper.stdin.flush()
        return keeper

    def _stop(self) -> None:
        if self._keeper.stdin is not None:
            self._keeper.stdin.close()
        try:
            self._keeper.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._keeper.kill()  # the kernel ends its children
            self._keeper.wait()

    def _wait_ready(self, order: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """The state of the cluster once it serves. A port may be taken after it was picked: then it starts anew."""
        gives_up_at = time.monotonic() + timeout_s
        num_starts = 1
        while time.monotonic() < gives_up_at:
            state = self._read_state()
            if state.get("state") == "ready":
                return state
            if self._keeper.poll() is not None:
                if num_starts >= _MAX_STARTS or _PORT_TAKEN not in self._log_end():
                    break
                self._stop()
                self._keeper = self._start(order)
                num_starts += 1
            time.sleep(_POLL_S)
        raise NotReady(f"the cluster did not start:\n{self._log_end()}")

    def _read_state(self) -> dict[str, Any]:
        try:
            state: dict[str, Any] = json.loads((self._folder / "run" / "state.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return state

    def _log_end(self) -> str:
        lines = (self._folder / "keeper.log").read_text("utf-8", "replace").splitlines()
        return "\n".join(lines[-_LOG_LINES:])
