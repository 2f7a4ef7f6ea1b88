"""Record scheduling events of this host into a text file. Standard library only."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from whystall.tools.collect.ftrace.cpus import chosen_cpus
from whystall.tools.collect.ftrace.events import check_groups
from whystall.tools.collect.ftrace.options import ENGINES, MODES, RING_S, Progress, Recorded, RecordOptions
from whystall.tools.collect.ftrace.session import Session
from whystall.tools.collect.ftrace.trace_file import TraceFile
from whystall.tools.contract.errors import ErrorCode, ToolError

TICK_S = 0.05
_BUDGET_S = 0.2  # of draining, before `stop` is checked again
_PROGRESS_S = 0.5
_MOST_PIDS = 1024


def record(
    options: RecordOptions,
    output: Path,
    *,
    stop: Callable[[], bool] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Recorded:
    """Record into `output` until the duration is over, `stop` returns True (called some 20 times per second), all
    followed processes have exited, or disk space runs short; block until then. Without `stop`, SIGINT or SIGTERM end it
    (in the main thread). `progress` is called about twice per second.

    With rotation, full files are renamed ``NAME.0001.EXT``, ``NAME.0002.EXT`` ... However it ends, also by an
    exception, the file is complete up to a whole line, and the tracefs instance is removed. Several captures may run at
    the same time, each in its own instance and file. If the engine ``trace-cmd``, which writes its own format, cannot
    do it, ``tracefs`` does, with the reason in `Recorded.why`. Raises `ToolError`: bad_argument, no_privilege,
    no_tracefs, no_such_process, busy (another capture writes that file), disk_full, io_error, probe_failed.
    """
    check(options)
    with ExitStack() as stack:
        asked = stop if stop is not None else stack.enter_context(stopping_on_signals())
        why = ""
        if options.engine == "trace-cmd":
            from whystall.tools.collect.ftrace import trace_cmd  # late, as it imports much of the library

            why = trace_cmd.unavailable(options) or ""
            if not why:
                return trace_cmd.record(options, output, stop=asked, progress=progress)
        return _record(options, output, asked, progress, why)


@contextmanager
def stopping_on_signals() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns True after the first SIGINT or SIGTERM; the next one raises KeyboardInterrupt.
    In a thread other than the main one signals are not handled.
    """
    received: list[int] = []
    before = {}

    def handle(signum: int, _frame: FrameType | None) -> None:
        received.append(signum)
        if len(received) > 1:
            raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, handle)
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def check(options: RecordOptions) -> None:
    """Raise `ToolError` (bad_argument) if `options` are invalid."""
    for what, value, valid in (("engine", options.engine, ENGINES), ("mode", options.mode, MODES)):
        if value not in valid:
            raise ToolError(ErrorCode.BAD_ARGUMENT, f"no {what} is called {value!r}", f"valid: {', '.join(valid)}")
    check_groups(options.groups)
    chosen_cpus(options.cpus)
    numbers = (*options.pids, *(() if options.namespace_of is None else (options.namespace_of,)))
    if any(not 0 < pid <= 4194304 for pid in numbers) or len(options.pids) > _MOST_PIDS:
        raise _bad("a PID is out of bounds", f"give up to {_MOST_PIDS} PIDs from 1 to 4194304")
    if (options.children or options.in_namespace) and not options.pids:
        raise _bad("children and PIDs of a container need PIDs", "name the processes to follow")
    if options.namespace_of is not None and not options.in_namespace:
        raise _bad("a process of a container is named, but the PIDs are not those of a container", "say that they are")
    if min(options.rotate_bytes, options.keep, options.min_free_bytes) < 0 or options.duration_s != options.duration_s:
        raise _bad("a size or time is no such number", "give 0 or more")
    if options.keep and not options.rotate_bytes:
        raise _bad("files are kept by number only when they rotate", "give a size to rotate at")
    if options.rotate_bytes and options.mode == "ring":
        raise _bad("a ring is written once, at the end, and does not rotate", "use mode stream")


def streams(options: RecordOptions) -> bool:
    """Return whether events are written continuously (see `RecordOptions`)."""
    if options.mode != "auto":
        return options.mode == "stream"
    return bool(options.rotate_bytes) or not 0 < options.duration_s <= RING_S


class Writing:
    """A running session and its output file; `finish` or `abandon` ends both."""

    def __init__(self, session: Session, output: Path) -> None:
        options = session.options
        self._session = session
        self._ended = "rotated"
        self.file = TraceFile(
            output,
            session.head,
            lambda: session.foot(self._ended),
            rotate_bytes=options.rotate_bytes,
            keep=options.keep,
            min_free_bytes=options.min_free_bytes,
        )

    def finish(self, ended: str, why: str = "", progress: Callable[[Progress], None] | None = None) -> Recorded:
        """Stop recording, write the rest, and remove the instance. `ended`: `Recorded.stopped_by`; `why`: see there."""
        session, file = self._session, self.file
        asked = time.monotonic()
        session.halt()
        halted = time.monotonic()
        while not session.drain(file.write, _PROGRESS_S) and not file.short:
            if progress is not None:
                progress(Progress("writing", time.monotonic() - asked, file.written, 0))
        self._ended = "disk_guard" if file.short else ended
        file.close()
        written = time.monotonic()
        losses, events, notes = session.losses(), session.taken(), session.notes()
        if not events:  # every host has context switches
            notes.append(("not_proven", ""))
        why = "; ".join(filter(None, (why, session.mounted)))
        session.close()
        return Recorded(
            files=file.files,
            bytes=file.written,
            events=events,
            losses=losses,
            start_ns=session.recorded_ns[0],
            end_ns=session.recorded_ns[1],
            stopped_by=self._ended,
            clock=session.options.clock,
            cpus=session.cpus,
            engine="tracefs",
            why=why,
            notes=tuple(notes),
            stop_s=halted - asked + time.monotonic() - written,
            write_s=written - halted,
        )

    def abandon(self) -> None:
        """After a failure: leave a file that ends with a whole line. Events still in the kernel are lost."""
        self._ended = "error"
        self.file.abandon()


def _record(
    options: RecordOptions,
    output: Path,
    stop: Callable[[], bool],
    progress: Callable[[Progress], None] | None,
    why: str,
) -> Recorded:
    with Session(options, streaming=streams(options)) as session:
        session.start()
        writing = Writing(session, output)
        try:
            ended = _wait(session, writing.file, options, stop, progress)
            return writing.finish(ended, why, progress)
        except BaseException:
            writing.abandon()
            raise


def _wait(
    session: Session,
    file: TraceFile,
    options: RecordOptions,
    stop: Callable[[], bool],
    progress: Callable[[Progress], None] | None,
) -> str:
    """Wait until the capture is to end; return the reason."""
    began = reported = time.monotonic()
    streaming = streams(options)
    while True:
        now = time.monotonic()
        if stop():
            return "asked"
        if 0 < options.duration_s <= now - began:
            return "duration"
        behind = streaming and not session.drain(file.write, _BUDGET_S)
        if file.short:
            return "disk_guard"
        if now - reported >= _PROGRESS_S:
            reported = now
            if not session.alive():
                return "target_exited"
            if progress is not None:
                lost = sum(loss.overrun + loss.dropped for loss in session.losses())
                progress(Progress("recording", now - began, file.written, 0 if not streaming else lost))
        left = options.duration_s - (now - began) if options.duration_s > 0 else TICK_S
        if not behind:
            time.sleep(max(0.0, min(TICK_S, left)))


def _bad(message: str, remedy: str) -> ToolError:
    return ToolError(ErrorCode.BAD_ARGUMENT, message, remedy)
