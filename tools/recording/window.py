"""Run the collectors of several tools together for one window, in a thread of its own."""

from __future__ import annotations

import fcntl
import math
import os
import select
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

import anyio

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.node.containers import Containers
from whystall.tools.recording.assemble import assemble
from whystall.tools.recording.assignment import Request, close_engines, start_engines
from whystall.tools.recording.collector import Engine, Need, merge_needs
from whystall.tools.recording.home import home
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target, alive, all_pids, cgroup_pids

Progress = Callable[[float, float, str], None]
_TICK_S = 0.1
# A window cut shorter than this by the target's exit proves nothing, and rules nothing out; nor does one in which the
# target was never seen alive because it exited while engines started.
_LEAST_NS = 100_000_000
# A busy ring buffer wakes its reader for every record; draining at most this often keeps our own CPU time bounded.
_DRAIN_S = 0.02


async def observe(
    needs: Iterable[Need],
    target: Target,
    duration_s: float,
    engines: Sequence[Callable[[], Engine]],
    *,
    choice: str = "auto",
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
) -> Recording:
    """Run the collectors of `needs` for `duration_s` seconds, or until `stop` returns True, and return the recording.

    The window ends early when every target process has exited. It runs in its own thread, which also calls `stop`;
    `progress` (seconds done, seconds in all, phase) is called on the event loop. A cancelled window closes its engines
    before the cancellation is raised.

    Args:
        engines: factories in order of preference; the first that can serve a collector does.
        choice: name of the only engine wanted, or ``auto``. A collector that this engine never serves goes to the
            engines after it.

    Raises `ToolError`: busy when another window of this user runs on the host, no_engine when no engine can serve a
    collector, and what engines raise.
    """
    state = _State()
    needs = list(needs)
    options = merge_needs(needs)
    required = {need.collector for need in needs if not need.optional}
    request = Request(options, options.keys() - required, target, engines, choice, state.check)
    outcome: list[Recording | BaseException] = []

    def work() -> None:
        try:
            outcome.append(_observe(request, duration_s, stop, state))
        except BaseException as error:  # raised again on the event loop
            outcome.append(error)

    ended = anyio.Event()

    async def wait() -> None:
        # Not abandoned when cancelled: the thread detaches everything first.
        await anyio.to_thread.run_sync(work, limiter=anyio.CapacityLimiter(1))
        ended.set()

    judging = False
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        try:
            while not ended.is_set():
                if progress is not None and state.watching and not judging:
                    judging = state.watched
                    done_s = duration_s if judging else min(state.done_s, duration_s)
                    progress(done_s, duration_s, "judging" if judging else "observing")
                with anyio.move_on_after(_TICK_S):
                    await ended.wait()
        finally:
            state.cancelled.set()
    (result,) = outcome
    if isinstance(result, BaseException):
        raise result
    if progress is not None and not judging:
        progress(duration_s, duration_s, "judging")
    return result


@dataclass
class _State:
    """State shared by the window's thread and the event loop."""

    cancelled: threading.Event = field(default_factory=threading.Event)
    """Set by the event loop: end the window without a recording."""
    watching: bool = False
    """All engines have started."""
    watched: bool = False
    """The window has ended."""
    done_s: float = 0.0

    def check(self) -> None:
        if self.cancelled.is_set():
            raise _Cancelled


class _Cancelled(Exception):
    """The caller was cancelled and needs no recording."""


def _observe(request: Request, duration_s: float, stop: Callable[[], bool] | None, state: _State) -> Recording:
    """Run the window in the calling thread. Raises `_Cancelled` when the event loop cancelled it."""
    target = request.target
    with _exclusive():
        containers = Containers()
        containers.locate(all_pids() if target.everything else target.pids)
        started, start_ns, left_out = start_engines(request)
        try:
            wall = datetime.now(timezone.utc) - timedelta(microseconds=(time.monotonic_ns() - start_ns) / 1000)
            alive_ns = _watch([a.engine for a in started], target, duration_s, state, stop)
            over_ns = time.monotonic_ns()
            # The one that started first stops last, so that what it reads at the end is not read after the window.
            window_ns = max([over_ns, *(a.engine.stop() for a in reversed(started))]) - start_ns
            exited = alive_ns is not None
            if exited and (not alive_ns or over_ns - start_ns < _LEAST_NS):
                raise ToolError(
                    ErrorCode.NO_SUCH_PROCESS,
                    f"{target.describe()} exited before it could be observed",
                    "observe a process that lives longer",
                )
            # Counters of /proc first, since naming symbols takes time.
            captures = [(a, a.engine.read()) for a in reversed(started)]
        finally:
            close_engines(started)
    return assemble(
        captures,
        target=target,
        started=wall,
        start_ns=start_ns,
        window_ns=window_ns,
        requested_ns=int(duration_s * 1e9),
        target_exited=exited,
        left_out=left_out,
        containers=containers,
    )


def _watch(
    engines: list[Engine],
    target: Target,
    duration_s: float,
    state: _State,
    stop: Callable[[], bool] | None,
) -> int | None:
    """Drain the engines until the time is up or `stop` returns True (return None), or every target process has exited
    (return when one was last seen alive, in ns of CLOCK_MONOTONIC; 0 for never).
    """
    started = time.monotonic()
    state.watching = True
    drains = [_Drain(engine, started) for engine in engines]
    alive_ns, tick = 0, started
    try:
        while (now := time.monotonic()) < started + duration_s:
            state.check()
            state.done_s = now - started
            if now >= tick:
                tick = now + _TICK_S
                checked_ns = time.monotonic_ns()
                if target.pids and not _any_alive(target):
                    return alive_ns
                alive_ns = checked_ns
                if stop is not None and stop():
                    return None
            for drain in drains:
                if time.monotonic() >= drain.due:
                    drain.poll()
            until = min([tick, started + duration_s, *(drain.due for drain in drains)])
            _wait([drain for drain in drains if drain.fd is not None and not drain.readable], until)
        return None
    finally:
        state.watched = True


class _Drain:
    """Schedule the polls of an engine: soon after its descriptor became readable, at the latest after its period."""

    def __init__(self, engine: Engine, now: float) -> None:
        self._engine = engine
        self.fd = engine.fileno()
        self.readable = False
        self.due = now + engine.period_s

    def poll(self) -> None:
        self._engine.poll()
        self.readable = False
        self.due = time.monotonic() + self._engine.period_s

    def wake(self) -> None:
        self.readable = True
        self.due = min(self.due, time.monotonic() + _DRAIN_S)


def _wait(drains: list[_Drain], until: float) -> None:
    """Wait until `until` (time.monotonic()), or until an engine of `drains` has events to read."""
    poller = select.poll()
    for drain in drains:
        poller.register(drain.fd or 0, select.POLLIN)
    # rounded up: poll() with 0 ms would spin until `until`
    found = {fd for fd, _ in poller.poll(math.ceil(max(0.0, until - time.monotonic()) * 1000))}
    for drain in drains:
        if drain.fd in found:
            drain.wake()


def _any_alive(target: Target) -> bool:
    """Return whether any target process is left; for a cgroup, whether any process runs in it."""
    if any(alive(pid) for pid in target.pids):
        return True
    return target.cgroup is not None and any(alive(pid) for pid in cgroup_pids(target.cgroup))


@contextmanager
def _exclusive() -> Iterator[None]:
    """Hold the lock that allows one window at a time, as two would observe each other. It ends with its process."""
    path = home() / "window.lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ToolError(
            ErrorCode.IO_ERROR,
            f"cannot open {path}: {error.strerror}",
            "set WHYSTALL_HOME to a directory you can write",
        ) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            raise ToolError(
                ErrorCode.BUSY, f"process {holder} is observing already", "wait until it ends, or stop it"
            ) from None
        with suppress(OSError):  # a full disk: the lock is held, only without our pid in it
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)
