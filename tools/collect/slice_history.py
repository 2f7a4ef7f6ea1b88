"""The coarse history of a continuous recording: seconds of waiting by minute, process, thread, system call, line of
code, file or lock, and who ended the waits; and seconds on a CPU by thread and line, from samples; in parts of ten
seconds.

A wait counts in the parts in which it lasts. The rows are kept in a small log of their own, some days long, also across
boots. Times are CLOCK_REALTIME. `history_minutes` reads it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from whystall.bpf import capture as cap
from whystall.bpf import layout as lay
from whystall.bpf.continuous import Cut
from whystall.tools.collect.proc_calls import syscall_name
from whystall.tools.collect.slice_log import SliceLog, read_log
from whystall.tools.collect.slice_parts import HISTORY, map_items, packed, unpacked
from whystall.tools.collect.slice_peers import Peers
from whystall.tools.collect.slice_scan import Scan
from whystall.tools.collect.slice_waits import WaitKey, ended_by, role_of

LOG_NAME = "history"
LOG_BYTES = 8 << 20
PART_NS = 10_000_000_000
PARTS = 6
_MINUTE_NS = PART_NS * PARTS
_MOST_ROWS, _MOST_RUNNING = 400, 100  # of a minute; the others become one row per thread
_MOST_KEPT = 2000  # while the minute lasts
_MOST_ENDS = 3  # of a row
_OFF_KEY = lay.unpacker(lay.OffKey).size
_TID = 4
FORM = 2
RUNNING = "running"
"""`Place.state` of threads on a CPU."""


class JobName(NamedTuple):
    """A job as `whystall watch` knows it."""

    id: str
    name: str


class Place(NamedTuple):
    """What threads of one role wait for, or what they run. `comm`: name of the thread, numbers as ``*``; `main`: the
    main thread of its process; `state`: D, S, R (without a CPU), other, or `RUNNING`; `call`: system call, or the
    function of an accelerator's library in which it is; `line`: of the program; `object`: file, peer of a socket, or
    lock. Texts are empty if unknown."""

    comm: str
    main: bool
    state: str
    call: str
    line: str
    object: str = ""


class HistoryRow(NamedTuple):
    """Waits, or the CPU time, of threads of one process in one place in a minute. `parts_ns`: time in each part,
    `waited_ns`: their sum; `number`: of waits that ended; `longest_ns`: of one. `enders`: who ended most of the time of
    those that ended, see `slice_waits.ended_by`, with that time."""

    minute_ns: int
    pid: int
    place: Place
    parts_ns: tuple[int, ...]
    number: int
    longest_ns: int
    enders: tuple[tuple[str, int], ...] = ()

    @property
    def waited_ns(self) -> int:
        """Return the time of all parts."""
        return sum(self.parts_ns)


@dataclass(frozen=True)
class Minute:
    """What is known of a minute. `recorded_ns`: how much of each part was recorded; `run`: when the recorder started;
    `min_ns`: the longest threshold in it, below which waits have no lock and no end, of processes that are not in
    `lowered`, which has those with less detail; `sample_ns`: the longest time that a CPU sample represents, 0: the
    minute has none, as of older versions; `lost`: records that did not fit; `jobs`: of processes."""

    minute_ns: int
    rows: tuple[HistoryRow, ...]
    recorded_ns: tuple[int, ...]
    run: int = 0
    min_ns: int = 0
    lost: int = 0
    sample_ns: int = 0
    jobs: Mapping[int, JobName] = field(default_factory=dict)
    lowered: Mapping[int, int] = field(default_factory=dict)

    @property
    def first_ns(self) -> int:
        """Return when the first part of it begins that was recorded."""
        return self.minute_ns + PART_NS * next((at for at, took in enumerate(self.recorded_ns) if took), 0)


@dataclass
class _Sum:
    """What is known of a row so far."""

    parts: list[int] = field(default_factory=lambda: [0] * PARTS)
    number: int = 0
    longest: int = 0
    enders: dict[str, int] = field(default_factory=dict)

    def add(self, other: _Sum) -> None:
        self.parts = [one + more for one, more in zip(self.parts, other.parts, strict=True)]
        self.number += other.number
        self.longest = max(self.longest, other.longest)
        for who, took in other.enders.items():
            self.enders[who] = self.enders.get(who, 0) + took


_Sums = dict[tuple[int, Place], _Sum]


class History:
    """Writes the rows of each minute."""

    def __init__(self, directory: Path | None) -> None:
        """Raises `ToolError` (busy)."""
        self._log = SliceLog(directory / LOG_NAME if directory is not None else None, LOG_BYTES, every_boot=True)
        self._run = time.time_ns()
        self._peers = Peers()
        self._names: dict[int, JobName] = {}
        self._named: dict[int, JobName] = {}
        self._begin(0)

    def _begin(self, minute: int) -> None:
        self._minute, self._written = minute, False
        self._part = 0
        self._sums: _Sums = {}
        self._recorded = [0] * PARTS
        self._min_ns = self._sample_ns = self._lost = 0
        self._lowered: dict[int, int] = {}

    def name_jobs(self, jobs: Mapping[int, JobName]) -> None:
        """Use `jobs` (by process) from now on, also for their children."""
        self._named = dict(jobs)
        self._names |= jobs  # those that ended in this minute keep their name

    def add(
        self,
        cut: Cut,
        targets: Collection[int],
        scan: Scan,
        min_ns: int = 0,
        lowered: Mapping[int, int] | None = None,
        sample_ns: int = 0,
    ) -> None:
        """Add the waits and samples of a slice of the processes `targets`. `min_ns`: its threshold; `lowered`: that of
        processes with less detail; `sample_ns`: what a sample represents of CPU time."""
        middle = time.time_ns() - (time.monotonic_ns() - (cut.start + cut.end) // 2)
        minute, part = middle // _MINUTE_NS, middle % _MINUTE_NS // PART_NS
        if minute != self._minute:
            self.flush()
            self._begin(minute)
        elif part != self._part:  # a kill then loses no more than a part
            self._write()
        self._part = part
        self._recorded[part] += cut.end - cut.start
        self._min_ns, self._sample_ns = max(self._min_ns, min_ns), max(self._sample_ns, sample_ns)
        for pid, least in (lowered or {}).items():
            if pid in targets:
                self._lowered[pid] = max(self._lowered.get(pid, 0), least)
        self._lost += sum(cut.counters.get(name, 0) for name in lay.LOSSES)
        for (pid, place), found in _slice_sums(cut, targets, scan, self._peers, part, sample_ns).items():
            key = pid, place
            if key not in self._sums and len(self._sums) >= _MOST_KEPT:
                key = pid, _without_place(place)
            self._sums.setdefault(key, _Sum()).add(found)

    def flush(self) -> None:
        """Write the minute so far, and begin it anew."""
        self._write()
        self._names = dict(self._named)
        self._begin(self._minute)

    def _write(self) -> None:
        """Write the minute so far, in the place of what was written of it before."""
        if not any(self._recorded):
            return
        rows = [
            [pid, *place, one.number, one.longest, _most(one.enders), *one.parts]
            for (pid, place), one in _folded(self._sums).items()
        ]
        pids = {pid for pid, _ in self._sums}
        jobs = {str(pid): name for pid in pids if (name := self._job_of(pid)) is not None}
        known = {"recorded": self._recorded, "run": self._run, "lost": self._lost}
        detail = {"min_ns": self._min_ns, "lowered": self._lowered, "sample_ns": self._sample_ns}
        begun = self._minute * _MINUTE_NS
        content = {"form": FORM, "rows": rows, "jobs": jobs, **known, **detail}
        put = self._log.replace_last if self._written else self._log.append
        self._written = put(HISTORY, begun, begun + _MINUTE_NS, packed(content))

    def close(self) -> None:
        """Write what is left; idempotent."""
        self.flush()
        self._log.close()

    def _job_of(self, pid: int) -> JobName | None:
        """Return the job of a process, or of the next of its ancestors that has one."""
        at = pid
        for _ in range(8):
            if at in self._names:
                return self._names[at]
            try:
                at = int(Path(f"/proc/{at}/stat").read_bytes().rpartition(b")")[2].split()[1])
            except (OSError, ValueError, IndexError):  # it has ended
                return None
        return None


def _slice_sums(cut: Cut, targets: Collection[int], scan: Scan, peers: Peers, part: int, sample_ns: int) -> _Sums:
    """Return the sums of a slice, as `part` of the minute.

    Totals of the kernel include short waits, and all of those that ended, also before the slice. The records give what
    is to be taken off, the waits in progress, and locks and ends of the longer ones.
    """
    names = cap.threads(map_items(*cut.threads, _TID))
    made: _Sums = {}

    def role(tid: int, comm: bytes) -> str:
        thread = names.get(tid)
        return role_of(thread.comm if thread is not None else comm)

    def known(key: WaitKey, comm: bytes) -> tuple[int, Place]:
        call = scan.accelerator_call(key.pystack) or (syscall_name(key.nr) if key.nr >= 0 else "")
        name = peers.name(key.tgid, key.file[0], scan.details.file_name(key.file)) if key.file[0] else ""
        line, state = scan.line(key.tgid, key.pystack), lay.OFF_CLASSES[key.state]
        return key.tgid, Place(role(key.tid, comm), key.tgid == key.tid, state, call, line, name)

    def add(where: tuple[int, Place], took: int, number: int, longest: int = 0) -> None:
        one = made.setdefault(where, _Sum())
        one.parts[part] += took
        one.number += number
        one.longest = max(one.longest, longest)

    for total in cap.off_totals(map_items(*cut.totals, _OFF_KEY)):
        if total.tgid in targets:
            file = (total.file.ino, total.file.dev, total.file.gen) if total.file is not None else (0, 0, 0)
            state = lay.OFF_CLASSES.index(total.off_class)
            key = WaitKey(total.tgid, total.tid, state, total.nr, total.pystack, file)
            add(known(key, b""), total.total_ns, total.count, total.max_ns)
    for key, how, found in scan.details.sums():
        if key.tgid not in targets:
            continue
        pid, place = known(key, found.comm)
        ended, who = found.inside_ns - found.open_ns, ended_by(how, key.tgid)
        if how.futex and not place.object:
            lock = pid, place._replace(object=f"futex {how.futex:#x}")
            add((pid, place), -ended - found.early_ns, -found.number)
            add(lock, found.inside_ns, found.number, found.longest_ns)
            place = lock[1]
        else:
            add((pid, place), found.open_ns - found.early_ns, 0, found.longest_ns)
        if who:
            add((pid, place), 0, 0)
            enders = made[pid, place].enders
            enders[who] = enders.get(who, 0) + ended
    for tgid, tid, pystack, number in scan.ran.counts():
        if tgid in targets:
            call, line = scan.accelerator_call(pystack), scan.line(tgid, pystack)
            add((tgid, Place(role(tid, b""), tgid == tid, RUNNING, call, line)), number * sample_ns, 0)
    for one in made.values():
        one.parts[part] = max(0, one.parts[part])  # totals that did not fit the map of the kernel
        one.number = max(0, one.number)
        one.longest = min(one.longest, 1 << 62)
    return {where: one for where, one in made.items() if one.parts[part]}


def _most(enders: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(enders.items(), key=lambda item: -item[1])[:_MOST_ENDS]


def _without_place(place: Place) -> Place:
    return Place(place.comm, place.main, place.state, "", "")


def _folded(sums: _Sums) -> _Sums:
    """Return the longest `_MOST_ROWS` rows of waits, and `_MOST_RUNNING` of running; the others by thread."""
    ordered = sorted(sums.items(), key=lambda item: -sum(item[1].parts))
    runs = [item for item in ordered if item[0][1].state == RUNNING]
    waits = [item for item in ordered if item[0][1].state != RUNNING]
    made: _Sums = dict([*waits[:_MOST_ROWS], *runs[:_MOST_RUNNING]])
    for (pid, place), more in (*waits[_MOST_ROWS:], *runs[_MOST_RUNNING:]):
        made.setdefault((pid, _without_place(place)), _Sum()).add(more)
    return made


def history_minutes(directory: Path, since_ns: int, until_ns: int) -> list[Minute]:
    """Return the minutes that lie at least in part between two instants (CLOCK_REALTIME), oldest first. A minute in
    which the recorder was started again is there twice. Raises `ToolError` (not_found, bad_recording)."""
    found = []
    for entry in read_log(directory / LOG_NAME):
        if entry.kind == HISTORY and since_ns - _MINUTE_NS < entry.start_ns < until_ns:
            content = unpacked(entry.data)
            if content.get("form") == FORM:  # else of an earlier version
                found.append(_minute(entry.start_ns, content))
    return found


def _minute(start: int, content: Mapping[str, Any]) -> Minute:
    rows = tuple(
        HistoryRow(
            start, row[0], Place(*row[1:7]), tuple(row[10:]), row[7], row[8], tuple((who, ns) for who, ns in row[9])
        )
        for row in content["rows"]
        if len(row) == 10 + PARTS
    )
    jobs = {int(pid): JobName(*name) for pid, name in content["jobs"].items()}
    recorded = tuple(content["recorded"])
    lowered = {int(pid): int(ns) for pid, ns in content.get("lowered", {}).items()}
    sampled = content.get("sample_ns", 0)
    return Minute(start, rows, recorded, content["run"], content["min_ns"], content["lost"], sampled, jobs, lowered)


def history_rows(directory: Path, since_ns: int, until_ns: int) -> list[HistoryRow]:
    """Return the waits of `history_minutes`. Raises as that."""
    minutes = history_minutes(directory, since_ns, until_ns)
    return [row for minute in minutes for row in minute.rows if row.place.state != RUNNING]


def jobs_of(minutes: Iterable[Minute]) -> dict[int, JobName]:
    """Return the job of each process, the last known one."""
    return {pid: name for minute in minutes for pid, name in minute.jobs.items()}
