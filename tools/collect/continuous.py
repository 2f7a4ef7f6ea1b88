"""Record the waits of a job without an end, and cut any part of the last minutes out as a normal recording.

One BPF session stays attached (`whystall.bpf.continuous`). Its records go raw into a `SliceLog`, a slice every few
seconds. The module imports nothing large: what a recording needs is imported when one is cut.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whystall.bpf import layout as lay
from whystall.bpf.attached import MAX_TARGETS
from whystall.bpf.continuous import ContinuousSession, Cut
from whystall.bpf.errors import BpfError
from whystall.tools.collect.continuous_budget import Budget, Cost, Limits
from whystall.tools.collect.continuous_memory import MemoryGuard, free_memory
from whystall.tools.collect.continuous_objects import look_at_objects
from whystall.tools.collect.continuous_proc import ProcLooks
from whystall.tools.collect.slice_history import History, JobName
from whystall.tools.collect.slice_log import SliceLog, read_log
from whystall.tools.collect.slice_parts import (
    CALLS,
    CODES,
    OBJECTS,
    PROC,
    RECORDS,
    SLICE,
    calls_entry,
    slice_end,
)
from whystall.tools.collect.slice_scan import OpenWait, Scan, Waits, framed
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.recording.home import home

if TYPE_CHECKING:
    from whystall.tools.collect.accelerator_watch import AcceleratorWatch
    from whystall.tools.recording.store import Recording
    from whystall.tools.recording.target import Target

LOG_NAME = "slices"
_RELEASE_NS = 60_000_000_000  # followed wakers are followed again if they still wake a target
_SHRUNK = 4  # a part of the log is kept when memory is scarce
MOST_RECORDED = MAX_TARGETS * 3 // 4
"""Maximum processes to record: the rest of the map is for their children, and for who ends their waits."""
_CODES_PER = 4  # all code objects are written again after this part of the log: it always has those it needs


class ContinuousRecorder:
    """See the module. One thread calls `start`, `poll` each second (or when `fileno` is readable), then `close`."""

    def __init__(self, target: Target, limits: Limits, directory: Path | None) -> None:
        """`directory`: where the slices are kept, too; None: in memory only. Raises `ToolError` (busy)."""
        self._target, self._limits, self._directory = target, limits, directory
        self._scan = Scan()
        self._waits = Waits()
        self._proc = ProcLooks()
        self._seeded_codes: list[bytes] = []
        self._log: SliceLog | None = None
        self._history: History | None = None
        self._session: ContinuousSession | None = None
        self._budget = Budget(limits)
        self._calls: AcceleratorWatch | None = None
        self._guard = MemoryGuard(limits.memory_bytes)
        self._slice_due = self._release_due = 0
        self._codes_at = 0
        self._taken = 0
        self._lost = self._overflowed = 0
        self._longest_cut_ns = 0
        self._note = self._no_calls = ""

    def start(self) -> None:
        """Attach and begin. Raises `ToolError`; then nothing stays attached."""
        try:
            self._start()
        except BpfError as error:
            self.close()
            raise _tool_error(error) from error
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        path = self._directory / LOG_NAME if self._directory is not None else None
        self._log = SliceLog(path, self._limits.log_bytes)
        self._history = History(self._directory)
        session = self._session = ContinuousSession(
            frozenset(self._target.pids),
            self._limits.min_ns,
            1_000_000_000 // self._limits.sample_hz,
            self._keep_code,
            accelerator=self._limits.calls and self._can_probe(),
        )
        session.load()
        now = self._taken = session.start()
        if session.calls is not None:
            from whystall.tools.collect.accelerator_watch import AcceleratorWatch

            self._calls = AcceleratorWatch(session.calls, self._limits.calls_share)
            self._name_calls()
        self._scan.details.begin(now)
        self._budget.start(session)
        began = time.thread_time_ns()
        self._look(always=True)  # the first one costs most
        self._budget.spend(time.thread_time_ns() - began, asked=True)
        # for a reader before the end of the first slice
        self._log.append(SLICE, now, now, slice_end(Cut(now, now, (b"", b""), (b"", b""), {}), self._head(session)))
        self._slice_due, self._release_due = now + self._limits.slice_ns, now + _RELEASE_NS

    def fileno(self) -> int:
        """Return a descriptor that is readable when much has arrived."""
        return self._loaded()[0].fileno()

    def min_ns_of(self, pid: int) -> int:
        """Return the shortest wait of a process that is recorded now; it depends on the cost."""
        return self._budget.min_ns_of(pid)

    def poll(self) -> Waits:
        """Return the waits that ended since the last call; end a slice when one is due."""
        began = time.thread_time_ns()
        session, _ = self._loaded()
        try:
            self._take()
            self._look()
            now = time.monotonic_ns()
            if now >= self._slice_due:
                self._cut()
            if now >= self._release_due:
                self._release_due = now + _RELEASE_NS
                session.release_wakers()
                self._scan.wakers.clear()
            self._budget.check(session, self._scan.events, self._overflowed)
            if self._calls is not None:
                self._calls.check(session.target_pids(), session.hits(), self._budget.job_cores)
            self._keep_memory_small()
        except BpfError as error:
            raise _tool_error(error) from error
        finally:
            self._budget.spend(time.thread_time_ns() - began)
        waits, self._waits = self._waits, Waits()
        return waits

    def in_progress(self) -> dict[int, OpenWait]:
        """Return the waits that went on at the end of the last slice, by thread."""
        return self._scan.in_progress

    def call_and_line(self, place: int) -> tuple[int, str]:
        """Return the number of the system call of a place, negative outside of one, and the program's line, empty if
        unknown."""
        return self._scan.call_and_line(place)

    def retarget(self, pids: frozenset[int], jobs: Mapping[int, JobName] | None = None) -> None:
        """Record the processes `pids` from now on, and no others but their children. `jobs`: of processes, for the
        history."""
        session, _ = self._loaded()
        alive = frozenset(pid for pid in pids if Path(f"/proc/{pid}").exists())
        try:
            session.set_targets(alive)
        except BpfError as error:
            raise _tool_error(error) from error
        self._scan.wakers -= alive
        if self._history is not None:
            self._history.name_jobs(jobs or {})

    def flush(self) -> None:
        """End the slice now: the log then has all until now, also what each thread waits for and who holds it. Costs
        some 50 ms and more: for moments that will be explained. Raises `ToolError`."""
        began = time.thread_time_ns()
        try:
            self._look(always=True)
            session, log = self._loaded()
            now = time.monotonic_ns()
            log.append(OBJECTS, now, now, look_at_objects(session.target_pids()))
            self._cut()
        except BpfError as error:
            raise _tool_error(error) from error
        finally:
            self._budget.spend(time.thread_time_ns() - began, asked=True)

    def recording(self, start_ns: int, end_ns: int, pids: frozenset[int] | None = None) -> Recording:
        """Return what was recorded between two instants (CLOCK_MONOTONIC) as a recording, of the target or of `pids`.

        Raises `ToolError` (no_overlap) when nothing of that time is kept.
        """
        from whystall.tools.collect.continuous_cut import recording_of

        _, log = self._loaded()
        self.flush()
        return recording_of(list(log.entries()), start_ns, end_ns, pids)

    def cost(self) -> Cost:
        """Return what the recorder costs, and what it has lowered."""
        log = self._log
        cost = self._budget.cost(
            memory_bytes=log.used if log is not None and not log.on_disk else 0,
            disk_bytes=log.used if log is not None and log.on_disk else 0,
            lost=self._lost,
            longest_cut_ns=self._longest_cut_ns,
            notes=tuple(
                note
                for note in (log.note if log is not None else "", self._note, self._guard.note, self._no_calls)
                if note
            ),
        )
        return replace(cost, calls=self._calls.state()) if self._calls is not None else cost

    def close(self) -> None:
        """End the slice, detach, and keep what was recorded; idempotent."""
        if self._session is not None and self._log is not None and self._slice_due:
            with suppress(BpfError):  # what was read so far is kept
                self._cut()
        session, self._session = self._session, None
        if session is not None:
            session.close()
        self._budget.close()
        log, self._log = self._log, None
        history, self._history = self._history, None
        for one in (log, history):
            if one is not None:
                one.close()

    def _loaded(self) -> tuple[ContinuousSession, SliceLog]:
        if self._session is None or self._log is None:
            raise ToolError(ErrorCode.PROBE_FAILED, "the recorder is not started", "call start")
        return self._session, self._log

    def _can_probe(self) -> bool:
        """Return whether functions of libraries can be probed here; note why not."""
        from whystall.bpf.functions import unsupported

        why = unsupported()
        self._no_calls = f"calls of accelerators are not recorded: {why}" if why else ""
        return not why

    def _name_calls(self) -> None:
        """Keep the names of the functions that are probed."""
        from whystall.tools.collect.accelerator_calls import frame_records

        for record in frame_records() if self._calls is not None else ():
            self._keep_code(record)

    def _keep_code(self, record: bytes) -> None:
        self._scan.codes.add(record)
        self._seeded_codes.append(record)

    def _take(self) -> None:
        """Read what has arrived into the log."""
        session, log = self._loaded()
        taken = session.take()
        now = time.monotonic_ns()
        self._scan.read(taken, self._waits)
        found, self._scan.followed = self._scan.followed, []
        session.admit(found)
        self._scan.add_stacks(session.seeded().items())
        codes, self._seeded_codes = self._seeded_codes, []
        for data in (framed(codes), taken):
            if data and not log.append(RECORDS, self._taken, now, data):
                self._note = "some records were too large for the log"
        self._taken = now

    def _keep_memory_small(self) -> None:
        todo = self._guard.check()
        if not todo:
            return
        session, log = self._loaded()
        if todo != "free":
            self._log = log.resized(self._limits.log_bytes // (_SHRUNK if self._guard.small else 1))
            self._codes_at = -self._limits.log_bytes  # they are written at the next cut
        if todo != "grow":
            free_memory((self._scan.free, self._scan.codes.forget))
            self._name_calls()
            session.emit_codes_again()

    def _look(self, *, always: bool = False) -> None:
        """Read the counters of /proc that are due."""
        session, log = self._loaded()
        found = self._proc.look(session.target_pids(), always=always)
        if found:
            now = time.monotonic_ns()
            log.append(PROC, now, now, found)

    def _cut(self) -> None:
        """End the slice, and begin the next one."""
        session, log = self._loaded()
        self._take()
        began = time.monotonic_ns()
        cut = session.cut()
        self._longest_cut_ns = max(self._longest_cut_ns, time.monotonic_ns() - began)
        self._take()
        self._lost += sum(cut.counters.get(name, 0) for name in lay.LOSSES)
        self._overflowed += sum(cut.counters.get(name, 0) for name in lay.LOSSES if name.startswith("ring_"))
        log.append(SLICE, cut.start, cut.end, slice_end(cut, self._head(session)))
        if cut.calls[0]:
            log.append(CALLS, cut.start, cut.end, calls_entry(cut))
        if self._history is not None:
            targets = frozenset(session.target_pids())
            least, lowered = self._limits.min_ns, self._budget.lowered
            self._history.add(cut, targets, self._scan, least, lowered, self._sample_ns())
        if carried := self._scan.carry(cut.end):
            log.append(RECORDS, cut.end, cut.end, carried)
        ended = session.prune()
        self._scan.codes.forget(ended)
        self._scan.wakers.difference_update(ended)
        if self._scan.codes.full:
            self._scan.codes.forget()
            self._name_calls()
            session.emit_codes_again()
        if log.appended - self._codes_at > log.size // _CODES_PER:
            self._codes_at = log.appended
            log.append(CODES, cut.end, cut.end, zlib.compress(self._scan.codes.framed(), 1))
        log.forget_pages()
        self._slice_due = time.monotonic_ns() + self._limits.slice_ns

    def _sample_ns(self) -> int:
        """Return the CPU time that a sample represents, ns."""
        return 1_000_000_000 // self._limits.sample_hz * self._budget.sample_one_in

    def _head(self, session: ContinuousSession) -> dict[str, Any]:
        python = session.python.processes
        return {
            "pids": session.kinds(),
            "min_ns": self._limits.min_ns,
            "lowered": self._budget.lowered,
            "sample_ns": self._sample_ns(),
            "hooks": session.hooks,
            "variants": {name: "new" if here else "old" for name, here in session.variants.items()},
            "python": python.result.processes if python is not None else {},
            "refused": python.result.refused if python is not None else {},
            "target": {"pid": self._target.pid, "comm": self._target.comm, "cgroup": self._target.cgroup},
            "observer": os.getpid(),
        }


def recording_from(directory: Path, start_ns: int, end_ns: int, pids: frozenset[int] | None = None) -> Recording:
    """Return what a recorder, which may run or have been killed, has written to `directory` between two instants
    (CLOCK_MONOTONIC), of its target or of `pids`. Raises `ToolError` (not_found, bad_recording, no_overlap)."""
    from whystall.tools.collect.continuous_cut import recording_of

    return recording_of(read_log(directory / LOG_NAME), start_ns, end_ns, pids)


def directory_of_watch() -> Path:
    """Return where `whystall watch` keeps what it records. Raises `ToolError` (io_error)."""
    return home() / "watch"


def recording_of_past(start_ns: int, end_ns: int = 0, pids: frozenset[int] | None = None) -> Recording:
    """Return what `whystall watch` has recorded from `start_ns` ago to `end_ns` ago, of all its targets or of `pids`.
    Raises as `recording_from`."""
    now = time.monotonic_ns()
    return recording_from(directory_of_watch(), max(0, now - start_ns), now - end_ns, pids)


def _tool_error(error: BpfError) -> ToolError:
    from whystall.tools.collect.ebpf_engine import tool_error

    return tool_error(error)
