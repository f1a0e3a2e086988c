"""The shell around `supervisor_core`: starts the processes of a local cluster, watches them, stops them.

One thread, one loop: it sleeps in `sigtimedwait` until a child ends, a signal asks it to stop, or a deadline of the
core comes. It owns everything it started: when it ends, however it ends, nothing of that is left.
Run detached as `python -m pando.cli.supervisor`, with the cluster on standard input.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson

from pando.cli.cluster_spec import ClusterSpec, ServiceSpec
from pando.cli.errors import FAILED, CliError
from pando.cli.probes import ReadyProbe
from pando.cli.processes import ProcessId, signal_group, spawn
from pando.cli.resize import resized
from pando.cli.run_folder import ClusterState, RunFolder, RunLock, ServiceState
from pando.cli.supervisor_core import (
    Action,
    Added,
    BecameReady,
    Began,
    Event,
    Exited,
    Limits,
    Note,
    Phase,
    Removed,
    Service,
    Signal,
    Start,
    StopAsked,
    SupervisorCore,
    Ticked,
)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
ORDER_SIGNAL = signal.SIGUSR1
"""There is an order in the run folder: so many workers of each kind."""
_WATCHED = frozenset({*STOP_SIGNALS, ORDER_SIGNAL, signal.SIGCHLD})
_PROBE_PERIOD_S = 0.05
_IDLE_PERIOD_S = 5.0
_LOCK_PATIENCE_S = 2.0


class _Child:
    """One life of one service."""

    def __init__(self, process: subprocess.Popen[bytes], probe: ReadyProbe) -> None:
        self.process = process
        self.id = ProcessId.of(process.pid)
        self.probe = probe


class Supervisor:
    """Runs one cluster until it is asked to stop. Use from the main thread of a process.

    Args:
        spec: what to run.
        folder: prepared run folder whose lock the caller holds.
        show: called with the new state whenever it changed.
        say: called with lines for the user.
        limits: patience of the core.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        folder: RunFolder,
        show: Callable[[ClusterState], None],
        say: Callable[[str], None],
        limits: Limits | None = None,
    ) -> None:
        self._specs = {service.name: service for service in spec.services}
        self._spec = spec
        self._folder = folder
        self._show = show
        self._say = say
        services = [Service(one.name, one.layer, one.grace_s) for one in spec.services]
        self._core = SupervisorCore(services, limits or Limits(start_timeout_s=spec.start_timeout_s))
        self._children: dict[str, _Child] = {}
        self._self = ProcessId.of(os.getpid())
        self._shown: ClusterState | None = None
        self._environment = {**os.environ, **spec.environment}

    def run(self) -> int:
        """Start everything, watch it, return the exit status once all has been stopped."""
        with _blocked(_WATCHED):
            try:
                self._handle(Began())
                while not self._core.done:
                    self._wait()
                    self._collect()
            finally:
                self._kill_rest()
        return FAILED if self._core.failure else 0

    def _wait(self) -> None:
        """Sleep until something happens; a stop signal becomes an event at once."""
        timeout_s = max(0.0, min(self._period_s(), self._core.next_due_s() - time.monotonic()))
        received = signal.sigtimedwait(_WATCHED, timeout_s)
        if received is not None and received.si_signo in STOP_SIGNALS:
            self._handle(StopAsked())
        elif received is not None and received.si_signo == ORDER_SIGNAL:
            self._resize()

    def _resize(self) -> None:
        """Start and stop workers as the run folder's order says."""
        try:
            change = resized(self._specs, [one.name for one in self._core.services], self._folder.read_order())
        except CliError as error:
            self._say(str(error))
            return
        for name in change.removed:
            del self._specs[name]
        self._specs |= {spec.name: spec for spec in change.added}
        self._handle(Removed(change.removed))
        self._handle(Added(tuple(Service(one.name, one.layer, one.grace_s) for one in change.added)))

    def _period_s(self) -> float:
        starting = any(service.phase is Phase.STARTING for service in self._core.services)
        return _PROBE_PERIOD_S if starting else _IDLE_PERIOD_S

    def _collect(self) -> None:
        """Turn what happened meanwhile into events."""
        for name, child in list(self._children.items()):
            code = child.process.poll()
            if code is not None:
                del self._children[name]
                self._handle(Exited(name, code))
        for service in self._core.services:
            child_of = self._children.get(service.name)
            if service.phase is Phase.STARTING and child_of is not None and child_of.probe.ask():
                self._handle(BecameReady(service.name))
        self._handle(Ticked())

    def _handle(self, event: Event) -> None:
        for action in self._core.handle(event, time.monotonic()):
            self._perform(action)
        self._publish()

    def _perform(self, action: Action) -> None:
        match action:
            case Start(name):
                self._start(self._specs[name])
            case Signal(name, kill):
                child = self._children.get(name)
                if child is not None:
                    signal_group(child.process, signal.SIGKILL if kill else signal.SIGTERM)
            case Note(text):
                self._say(text)

    def _start(self, service: ServiceSpec) -> None:
        log, offset = self._folder.open_log(service.name)
        try:
            process = spawn(service.argv, self._environment, log)
        except OSError as error:
            raise CliError(f"{service.name} cannot be started ({service.argv[0]}: {error.strerror})") from error
        self._children[service.name] = _Child(process, ReadyProbe(service.probe, log, offset))

    def _publish(self) -> None:
        state = self._state()
        if state == self._shown:
            return
        self._shown = state
        try:
            self._folder.write_state(state)
        except OSError as error:
            self._say(f"the state of the cluster cannot be written ({error.strerror}); serving goes on")
        self._show(state)

    def _state(self) -> ClusterState:
        return ClusterState(
            state=self._core.state,
            url=self._spec.url,
            router=self._spec.router,
            registry=self._spec.registry,
            supervisor=self._self,
            services=tuple(self._service_state(service) for service in self._core.services),
            failure=self._core.failure,
        )

    def _service_state(self, service: Service) -> ServiceState:
        child = self._children.get(service.name)
        facts = child.probe.facts if child else {}
        metrics_address = str(facts.get("metrics", ""))
        if service.name == "gateway" and not metrics_address:
            metrics_address = self._spec.url.removeprefix("http://")
        return ServiceState(
            name=service.name,
            phase=service.phase.value,
            process=child.id if child else ProcessId(0, 0),
            log=str(self._folder.log(service.name)),
            restarts=service.restarts,
            last_exit=service.last_exit,
            address=str(facts.get("address", "")),
            metrics_address=metrics_address,
        )

    def _kill_rest(self) -> None:
        """The last resort when the loop itself failed: nothing outlives it."""
        for child in self._children.values():
            signal_group(child.process, signal.SIGKILL)
            child.process.wait()
        self._children.clear()


@contextlib.contextmanager
def _blocked(signals: frozenset[signal.Signals]) -> Iterator[None]:
    """Keep signals pending for `sigtimedwait`; what came in meanwhile is dropped at the end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        while signal.sigtimedwait(signals, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def acquire_patiently(lock: RunLock) -> bool:
    """Take the lock, waiting out somebody who only looks at it."""
    gives_up_at = time.monotonic() + _LOCK_PATIENCE_S
    while not lock.acquire():
        if time.monotonic() > gives_up_at:
            return False
        time.sleep(_PROBE_PERIOD_S)
    return True


def supervise(
    spec: ClusterSpec, folder: RunFolder, show: Callable[[ClusterState], None], say: Callable[[str], None]
) -> int:
    """Hold the folder's lock and run the cluster in it; returns the exit status.

    Raises:
        CliError: another supervisor has the folder.
    """
    with RunLock(folder) as lock:
        if not acquire_patiently(lock):
            raise CliError(f"another pando (pid {lock.owner()}) uses {folder.path}", fix="pando down, or --run-dir")
        try:
            return Supervisor(spec, folder, show, say).run()
        finally:
            state = folder.read_state()
            if state is not None and state.state != "failed":
                folder.remove_state()


def main() -> int:
    """The detached supervisor: `{"run_dir": ..., "spec": ...}` on standard input, notes on standard output."""
    order = orjson.loads(sys.stdin.buffer.read())

    def say(text: str) -> None:
        print(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {text}", flush=True)

    try:
        folder = RunFolder(Path(order["run_dir"]))
        return supervise(ClusterSpec.from_json(order["spec"]), folder, lambda state: None, say)
    except CliError as error:
        say(str(error))
        return error.code


if __name__ == "__main__":
    sys.exit(main())
