"""The engine ``tracefs`` of the Window: fills ``ftrace`` from an own tracefs instance, through the reader of traces."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import polars as pl

from whystall.tools.collect.ftrace.options import GROUPS, RecordOptions
from whystall.tools.collect.ftrace.pids import lives
from whystall.tools.collect.ftrace.session import Session
from whystall.tools.collect.ftrace.trace_file import TraceFile
from whystall.tools.collect.ftrace.tracefs import find
from whystall.tools.collect.options import FtraceOptions
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.node.vantage import FOREIGN_PIDS, PARTIAL_PROC, pids_are_the_hosts, proc_is_whole
from whystall.tools.recording.collector import Capture, Engine, Options
from whystall.tools.recording.target import Target
from whystall.tools.timeline.ftrace import text as ftrace_text
from whystall.tools.timeline.sched import TABLES, SchedTrace, empty_tables

EVENT_TABLES = frozenset(TABLES) - {"holes", "names", "clocks"}
"""Tables of a trace whose rows are events; the others are about it."""
READ_ONLY = "tracefs is read-only"
_BUDGET_S = 0.2
# More text than this is not recorded in one window: it could not be judged within a sane memory.
_MOST_BYTES = 1 << 30


class TracefsEngine(Engine):
    """See the module; one instance serves one window.

    Options of the collector: a group of events by its name (1: wanted; ``sched`` always is), ``cpus`` as bits (0: all),
    ``only_target`` (1: only events of the target's threads and about them), ``buffer_kb`` per CPU (0: the recorder's
    choice).
    """

    name = "tracefs"
    serves = frozenset({"ftrace"})
    period_s = 0.05

    def __init__(self) -> None:
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._session: Session | None = None
        self._file: TraceFile | None = None
        self._proof = (0, 0)
        self._stopped_ns = 0

    def unavailable(self) -> str | None:
        """Why there can be no instance of ours, without making one, or why it would tell nothing."""
        if not pids_are_the_hosts():
            return FOREIGN_PIDS
        if not proc_is_whole():
            return PARTIAL_PROC
        try:
            tracefs = find()
        except ToolError as error:
            return error.message
        try:
            # as whom we act, and not as whom we came: else a capability does not count
            if os.access(tracefs.root / "instances", os.W_OK, effective_ids=True):
                return None
            read_only = os.statvfs(tracefs.root).f_flag & os.ST_RDONLY
        finally:
            tracefs.close()
        return READ_ONLY if read_only else "no permission to make a tracefs instance (root may)"

    def load(self, wanted: Mapping[str, Options], target: Target) -> None:
        """Record into a file of our own; then sleep once, so that it can be seen to be told."""
        options = FtraceOptions.of(wanted, "ftrace")
        bits = options.cpus
        pids: tuple[int, ...] = ()
        if options.only_target and not target.everything:
            pids = tuple(pid for pid in target.pids if lives(pid))
            if not pids:
                raise ToolError(ErrorCode.NO_SUCH_PROCESS, f"{target.describe()} has ended", "name one that runs")
        asked = RecordOptions(
            cpus=tuple(cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1),
            groups=tuple(group for group in GROUPS if group in options.groups),
            mode="stream",
            buffer_kb=options.buffer_kb,
            pids=pids,
            children=target.follow,
        )
        own = threading.get_native_id()
        self._session = session = Session(asked, streaming=True, also=(own,))
        try:
            self._directory = tempfile.TemporaryDirectory(prefix="whystall-")
            session.open()
            session.start()
            self._file = TraceFile(
                Path(self._directory.name, "trace.txt"),
                session.head,
                session.foot,
                min_free_bytes=asked.min_free_bytes,
            )
            self._proof = (own, time.monotonic_ns())
            _sleep_on(session.cpus)
        except OSError as error:
            self.close()
            raise ToolError(
                ErrorCode.IO_ERROR, f"no place for the trace: {error.strerror}", "set TMPDIR to a directory with room"
            ) from error
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int | None:
        """None: the kernel's file is readable with every single event, and draining so often would disturb."""
        return None

    def poll(self) -> None:
        """Take out what waits; stop recording when the text becomes too much."""
        session, file = self._session, self._file
        if session is None or file is None or self._stopped_ns:
            return
        session.drain(file.write, _BUDGET_S)
        if file.short or file.written > _MOST_BYTES:
            session.halt()
            self._stopped_ns = session.recorded_ns[1]

    def read(self) -> dict[str, Capture]:
        """Stop recording, remove the instance, and read the file."""
        session, file, directory = self._session, self._file, self._directory
        if session is None or file is None or directory is None:
            return {}
        try:
            session.halt()
            session.drain(file.write)
            file.close()
            losses, taken, notes = session.losses(), session.taken(), session.notes()
            hooks = [*session.events, *filter(None, [session.mounted])]
            session.close()
            trace = ftrace_text.read(file.files[-1]) if taken else _empty(session)
        finally:
            self.close()
        lost = sum(loss.overrun + loss.dropped for loss in losses)
        if session.threads:  # the others' switches are missing on purpose
            told = trace.table("holes").filter(pl.col("why") != "unseen")
            trace = replace(trace, tables={**trace.tables, "holes": told})
        if self._stopped_ns:
            trace = _stopped(trace, self._stopped_ns)
            notes.append(("cut_short", ""))
        if trace.odd.count:
            notes.append(("odd_lines", str(trace.odd.count)))
        tid, since = self._proof
        slept = pl.col("prev_tid").eq(tid) & pl.col("at_ns").is_between(since - 1000, since + 1_000_000_000)
        capture = Capture(
            tables=dict(trace.tables),
            hooks=hooks,
            seen=taken + lost,
            kept=sum(trace.table(name).height for name in EVENT_TABLES),
            lost=lost,
            proven=trace.table("switches").filter(slept).height > 0,
            not_seen=[*notes, *trace.notes],
            events=EVENT_TABLES,
        )
        return {"ftrace": capture}

    def close(self) -> None:
        """Remove the instance and the file; idempotent."""
        session, self._session = self._session, None
        file, self._file = self._file, None
        directory, self._directory = self._directory, None
        try:
            if session is not None:
                session.close()
        finally:
            if file is not None:
                file.discard()
            if directory is not None:
                directory.cleanup()


def _empty(session: Session) -> SchedTrace:
    """The trace of a capture in which nothing at all was told."""
    return SchedTrace(empty_tables(), *session.recorded_ns, session.cpus, session.options.clock)


def _stopped(trace: SchedTrace, at_ns: int) -> SchedTrace:
    """`trace` with a hole from where recording was stopped for its size."""
    hole = pl.DataFrame([(at_ns, time.monotonic_ns(), -1, -1, "stopped")], schema=TABLES["holes"], orient="row")
    return replace(trace, tables={**trace.tables, "holes": pl.concat([trace.table("holes"), hole])})


def _sleep_on(cpus: tuple[int, ...]) -> None:
    """Sleep on one of `cpus`, where this thread may run there, so that the switch is one of those recorded."""
    allowed = os.sched_getaffinity(0)
    there = allowed & set(cpus)
    if there and there != allowed:
        os.sched_setaffinity(0, there)
        try:
            time.sleep(0.002)
        finally:
            os.sched_setaffinity(0, allowed)
    else:
        time.sleep(0.002)
