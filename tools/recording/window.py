"""The Window: runs the union of the collectors that the asked tools need, once, over one span."""

from __future__ import annotations

import fcntl
import math
import os
import platform
import secrets
import select
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

import anyio
import polars as pl

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.result import BlindSpot
from whystall.tools.contract.text import clean
from whystall.tools.node.containers import Containers
from whystall.tools.node.vantage import host_name
from whystall.tools.recording.collector import Capture, Engine, Need, Options, merge_needs
from whystall.tools.recording.home import home
from whystall.tools.recording.manifest import CollectorManifest, Manifest
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target, alive, all_pids, cgroup_pids

Progress = Callable[[float, float, str], None]
_TICK_S = 0.1
# A window cut shorter than this by the target's exit says nothing, least of all what is normal; nor does one in which
# the target was not seen alive: it exited while engines began.
_LEAST_NS = 100_000_000
# A busy ring buffer wakes its reader for every record; draining at most this often keeps our own CPU time bounded.
_DRAIN_S = 0.02


@dataclass
class _Assignment:
    """Which engine serves which collectors, and why not a better one."""

    engine: Engine
    place: int
    """Among all engines, in order of preference."""
    wanted: dict[str, Options] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)


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
    """Run the collectors of `needs` for `duration_s` seconds, or until `stop` says True, and return the recording.

    `engines` are factories in order of preference; the first that can serve a collector does. `choice` names the
    only engine wanted; what it does not serve at all is left to those after it, never to those before it. The window
    ends early when every target process has exited. It runs in a thread of its own, which calls `stop` too; `progress`
    is called on the event loop. A cancelled window has closed its engines when the cancellation goes on. Raises
    `ToolError`: busy when another window of this user runs on the host, no_engine when nothing can serve
    a collector, and what engines raise.
    """
    state = _State()
    outcome: list[Recording | BaseException] = []

    def work() -> None:
        try:
            outcome.append(_observe(list(needs), target, duration_s, engines, choice, stop, state))
        except BaseException as error:  # raised by the caller, as itself
            outcome.append(error)

    over = anyio.Event()

    async def wait() -> None:
        # Not abandoned when cancelled: the thread detaches everything first.
        await anyio.to_thread.run_sync(work, limiter=anyio.CapacityLimiter(1))
        over.set()

    judging = False
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        try:
            while not over.is_set():
                if progress is not None and state.watching and not judging:
                    judging = state.watched
                    done_s = duration_s if judging else min(state.done_s, duration_s)
                    progress(done_s, duration_s, "judging" if judging else "observing")
                with anyio.move_on_after(_TICK_S):
                    await over.wait()
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
    """What the window's thread and the event loop share."""

    cancelled: threading.Event = field(default_factory=threading.Event)
    """Set by the loop: end the window without a recording."""
    watching: bool = False
    watched: bool = False
    """All engines have started; the window is over."""
    done_s: float = 0.0

    def check(self) -> None:
        if self.cancelled.is_set():
            raise _Cancelled


class _Cancelled(Exception):
    """The caller was cancelled and needs no recording."""


def _observe(
    needs: list[Need],
    target: Target,
    duration_s: float,
    engines: Sequence[Callable[[], Engine]],
    choice: str,
    stop: Callable[[], bool] | None,
    state: _State,
) -> Recording:
    """Do the work of `observe`; blocks, in the window's own thread. Raises `_Cancelled` when `state` asks for it."""
    with _exclusive():
        containers = Containers()
        containers.look(all_pids() if target.everything else target.pids)
        spare = {n.collector for n in needs} - {n.collector for n in needs if not n.optional}
        started, start_ns, left_out = _start(merge_needs(needs), target, engines, choice, spare, state)
        try:
            wall = datetime.now(timezone.utc) - timedelta(microseconds=(time.monotonic_ns() - start_ns) / 1000)
            seen_ns = _watch([a.engine for a in started], target, duration_s, state, stop)
            over_ns = time.monotonic_ns()
            # The one that started first stops last, so that what reads at the end is not read after the window.
            window_ns = max([over_ns, *(a.engine.stop() for a in reversed(started))]) - start_ns
            exited = seen_ns is not None
            if exited and (not seen_ns or over_ns - start_ns < _LEAST_NS):
                raise ToolError(
                    ErrorCode.NO_SUCH_PROCESS,
                    f"{target.describe()} exited before it could be observed",
                    "observe a process that lives longer",
                )
            # Counters of /proc first, since naming symbols takes time.
            captures = [(a, a.engine.read()) for a in reversed(started)]
        finally:
            _close(started)
    manifest = Manifest(
        id=f"{wall:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}",
        host=host_name(),
        kernel=clean(platform.release()),
        machine=platform.machine(),
        cpus=os.cpu_count() or 1,
        target=target,
        started=wall.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        start_ns=start_ns,
        window_ns=window_ns,
        requested_ns=int(duration_s * 1e9),
        target_exited=exited,
        observer=os.getpid(),
        left_out=left_out,
    )
    tables: dict[str, pl.DataFrame] = {}
    for assignment, by_collector in captures:
        for name, capture in by_collector.items():
            manifest.collectors[name] = _describe(assignment, name, capture)
            for table, frame in capture.tables.items():
                if table in capture.events:
                    inside = pl.col("at_ns").is_between(start_ns, start_ns + window_ns)
                    frame = frame.filter(inside | (pl.col("at_ns") < 0))
                tables[f"{name}.{table}"] = _relative(frame, start_ns, window_ns)
    pids = _pids(tables) | set(target.pids)
    containers.look(pids)
    manifest.containers = containers.told(pids)
    return Recording.in_memory(manifest, tables)


def _pids(tables: Mapping[str, pl.DataFrame]) -> set[int]:
    """The processes that `tables` tell of."""
    found: set[int] = set()
    for frame in tables.values():
        for name in {"pid", "waker_pid"} & set(frame.columns):
            found.update(frame[name].unique().to_list())
    return found


def can_serve(collector: str, engines: Sequence[Callable[[], Engine]], choice: str = "auto") -> bool:
    """Whether some engine says that it can serve `collector` here; it may still fail to start."""
    return any(
        collector in engine.serves and _allowed(engine, collector, engines, choice) and engine.unavailable() is None
        for engine in (make() for make in engines)
    )


def _start(
    wanted: dict[str, Options],
    target: Target,
    engines: Sequence[Callable[[], Engine]],
    choice: str,
    spare: Container[str],
    state: _State,
) -> tuple[list[_Assignment], int, dict[str, str]]:
    """Assign and start engines, then have them begin; a collector whose engine fails falls to the next one.

    Returned with the instant when the first of them began, and the collectors of `spare` that nothing here serves, with
    the reasons.
    """
    failed: dict[int, ToolError] = {}
    while True:
        started, left_out = _assign(wanted, target, engines, choice, failed, spare, state)
        begun: list[int] = []
        try:
            for assignment in started:
                state.check()
                begun.append(assignment.engine.start())
        except ToolError as error:  # all anew, without this one
            _close(started)
            failed[assignment.place] = error
        except BaseException:
            _close(started)
            raise
        else:
            return started, min(begun, default=time.monotonic_ns()), left_out


def _assign(
    wanted: dict[str, Options],
    target: Target,
    engines: Sequence[Callable[[], Engine]],
    choice: str,
    failed: dict[int, ToolError],
    spare: Container[str],
    state: _State,
) -> tuple[list[_Assignment], dict[str, str]]:
    """Start the engines that serve `wanted`, less those that `failed` before, by their place; and why nothing serves
    what of `spare` is left out. An engine that could and fails is an error all the same."""
    started: list[_Assignment] = []
    waiting: dict[str, Options] = dict(wanted)
    reasons: dict[str, list[str]] = {name: [] for name in wanted}
    last: ToolError | None = None
    tried: set[str] = set()
    try:
        for place, make in enumerate(engines):
            state.check()
            engine = make()
            mine = {n: o for n, o in waiting.items() if n in engine.serves and _allowed(engine, n, engines, choice)}
            if place in failed:
                last = failed[place]
                problem: str | None = _told(last)
            else:
                problem = engine.unavailable() if mine else None
            if problem is None:
                given = set(mine)
                mine, error = _begin(engine, mine, target, reasons)
                last = error or last
                tried |= given - mine.keys() if error else set()
            else:
                for name in mine:
                    reasons[name].append(f"{engine.name}: {problem}")
                mine = {}
            if not mine:
                continue
            started.append(_Assignment(engine, place, mine, {n: "; ".join(reasons[n]) for n in mine}))
            waiting = {n: o for n, o in waiting.items() if n not in mine}
        spared = [name for name in waiting if name in spare and name not in tried]
        left_out = {name: "; ".join(reasons[name]) or f"no engine {choice!r} serves it" for name in spared}
        waiting = {n: o for n, o in waiting.items() if n not in left_out}
        if waiting:
            if last is not None:
                raise last
            name = next(iter(waiting))
            others = list(dict.fromkeys(e.name for e in (make() for make in engines) if name in e.serves))
            if not reasons[name] and choice != "auto" and others:
                told = f"no engine {choice!r} serves it"
                remedy = f"choose auto or {' or '.join(others)}"
            else:
                told, remedy = "; ".join(reasons[name]) or "no engine serves it", "run `whystall doctor`"
            raise ToolError(ErrorCode.NO_ENGINE, f"nothing can observe {name}: {told}", remedy)
    except BaseException:
        _close(started)
        raise
    return started, left_out


def _begin(
    engine: Engine, mine: dict[str, Options], target: Target, reasons: dict[str, list[str]]
) -> tuple[dict[str, Options], ToolError | None]:
    """Start `engine` for those of `mine` that it can serve, and return them; why not the others goes to `reasons`.

    An engine whose ways differ per collector says by `cannot` which it cannot serve, also after it failed to start:
    then it is tried once more without them.
    """
    last: ToolError | None = None
    for _ in range(2):
        for name in [n for n in mine if engine.cannot(n) is not None]:
            reasons[name].append(f"{engine.name}: {engine.cannot(name)}")
            mine.pop(name)
        if not mine:
            break
        try:
            engine.load(mine, target)
        except ToolError as error:
            engine.close()
            last = error
            if all(engine.cannot(name) is None for name in mine):
                break
        except BaseException:
            engine.close()  # interrupted half-way: nothing may stay attached
            raise
        else:
            return mine, None
    for name in mine:
        reasons[name].append(f"{engine.name}: {_told(last)}" if last else engine.name)
    return {}, last


def _told(error: ToolError) -> str:
    return f"{error.code.value}: {error.message}"


def _allowed(engine: Engine, collector: str, engines: Sequence[Callable[[], Engine]], choice: str) -> bool:
    """Whether `choice` leaves `collector` to `engine`. What only one engine serves may be of one that comes after the
    chosen (/proc is read beside all of them), never of one before it: who chooses `procfs` has no program loaded.
    """
    if choice in ("auto", engine.name):
        return True
    names = [make().name for make in engines]
    if choice not in names or sum(collector in make().serves for make in engines) > 1:
        return False
    return engine.name in names[names.index(choice) :]


def _close(started: list[_Assignment]) -> None:
    """Close all, the last started first, also when one fails."""
    with ExitStack() as stack:
        for assignment in started:
            stack.callback(assignment.engine.close)


def _watch(
    engines: list[Engine],
    target: Target,
    duration_s: float,
    state: _State,
    stop: Callable[[], bool] | None,
) -> int | None:
    """Drain the engines until the time is up or `stop` returns True (None), or every target process is gone: the last
    instant when one was seen alive, 0 where none was."""
    started = time.monotonic()
    state.watching = True
    drains = [_Drain(engine, started) for engine in engines]
    seen_ns, tick = 0, started
    try:
        while (now := time.monotonic()) < started + duration_s:
            state.check()
            state.done_s = now - started
            if now >= tick:
                tick = now + _TICK_S
                looked_ns = time.monotonic_ns()
                if target.pids and not _lives(target):
                    return seen_ns
                seen_ns = looked_ns
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
    """When an engine is polled next: soon after its descriptor became readable, at the latest after its period."""

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
    """Wait until `until` (time.monotonic()), or until an engine of `drains` has something to take in."""
    poller = select.poll()
    for drain in drains:
        poller.register(drain.fd or 0, select.POLLIN)
    # rounded up: half a millisecond is no reason to ask again at once
    found = {fd for fd, _ in poller.poll(math.ceil(max(0.0, until - time.monotonic()) * 1000))}
    for drain in drains:
        if drain.fd in found:
            drain.wake()


def _lives(target: Target) -> bool:
    """Whether any target process is left; a cgroup lives while anything runs in it."""
    if any(alive(pid) for pid in target.pids):
        return True
    return target.cgroup is not None and any(alive(pid) for pid in cgroup_pids(target.cgroup))


def _describe(assignment: _Assignment, name: str, capture: Capture) -> CollectorManifest:
    return CollectorManifest(
        engine=assignment.engine.name,
        why=clean(assignment.why.get(name, ""), 500),
        options=assignment.wanted[name].as_dict(),
        hooks=capture.hooks,
        seen=capture.seen,
        kept=capture.kept,
        lost=capture.lost,
        proven=capture.proven,
        not_seen=[BlindSpot(code=code, detail=clean(detail)) for code, detail in capture.not_seen],
    )


_POINTS = ("start_ns", "end_ns", "issue_ns", "at_ns", "woken_ns", "prev_arrived_ns", "longest_at_ns")


def _relative(frame: pl.DataFrame, start_ns: int, window_ns: int) -> pl.DataFrame:
    """Absolute instants to nanoseconds since the start, kept within the window; 0 stays for "never", and
    what is below it for "not known"."""
    return frame.with_columns(
        pl.when(pl.col(c) <= 0).then(pl.col(c)).otherwise((pl.col(c) - start_ns).clip(0, window_ns)).alias(c)
        for c in _POINTS
        if c in frame.columns
    )


@contextmanager
def _exclusive() -> Iterator[None]:
    """One window at a time: two would observe each other. The lock dies with its process."""
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
        with suppress(OSError):  # a full disk: the lock holds all the same, only without our name in it
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)
