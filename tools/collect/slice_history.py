"""The coarse history of a continuous recording: seconds of waiting by minute, process, thread, system call, line of
code, file or lock, and who ended the waits; in parts of ten seconds.

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
from whystall.tools.collect.slice_waits import UNKNOWN_END, WaitEnd, WaitKey, ended_by, role_of

LOG_NAME = "history"
LOG_BYTES = 8 << 20
PART_NS = 10_000_000_000
PARTS = 6
_MINUTE_NS = PART_NS * PARTS
_MOST_ROWS = 400  # of a minute; the others become one row per thread
_MOST_KEPT = 2000  # while the minute lasts
_MOST_ENDS = 4  # locks and threads that one row of a slice is divided by
_OFF_KEY = lay.unpacker(lay.OffKey).size
_TID = 4
_FORM = 2


class JobName(NamedTuple):
    """A job as `whystall watch` knows it."""

    id: str
    name: str


class Place(NamedTuple):
    """What threads of one role wait for. `comm`: name of the thread, digits as ``*``; `main`: the main thread of its
    process; `state`: D, S, R (without a CPU) or other; `line`: of the program; `object`: file, peer of a socket, or
    lock; `ended_by`: see `slice_waits.ended_by`. Texts are empty if unknown."""

    comm: str
    main: bool
    state: str
    call: str
    line: str
    object: str = ""
    ended_by: str = ""


class HistoryRow(NamedTuple):
    """Waits of threads of one process in one place in a minute. `parts_ns`: time in each part, `waited_ns`: their sum;
    `number`: of waits that ended; `longest_ns`: of one."""

    minute_ns: int
    pid: int
    place: Place
    parts_ns: tuple[int, ...]
    number: int
    longest_ns: int

    @property
    def waited_ns(self) -> int:
        """Return the time of all parts."""
        return sum(self.parts_ns)


@dataclass(frozen=True)
class Minute:
    """What is known of a minute. `recorded_ns`: how much of each part was recorded; `run`: when the recorder started;
    `min_ns`: the longest threshold in it, below which waits have no lock and no end; `lost`: records that did not fit;
    `jobs`: of processes."""

    minute_ns: int
    rows: tuple[HistoryRow, ...]
    recorded_ns: tuple[int, ...]
    run: int = 0
    min_ns: int = 0
    lost: int = 0
    jobs: Mapping[int, JobName] = field(default_factory=dict)


_Sums = dict[tuple[int, Place], list[int]]  # number, longest, then the parts


class History:
    """Writes the rows of each minute."""

    def __init__(self, directory: Path | None) -> None:
        """Raises `ToolError` (busy)."""
        self._log = SliceLog(directory / LOG_NAME if directory is not None else None, LOG_BYTES, every_boot=True)
        self._run = time.time_ns()
        self._peers = Peers()
        self._names: dict[int, JobName] = {}
        self._begin(0)

    def _begin(self, minute: int) -> None:
        self._minute = minute
        self._sums: _Sums = {}
        self._recorded = [0] * PARTS
        self._min_ns = self._lost = 0

    def name_jobs(self, jobs: Mapping[int, JobName]) -> None:
        """Use `jobs` (by process) from now on, also for their children."""
        self._names = dict(jobs)

    def add(self, cut: Cut, targets: Collection[int], scan: Scan, min_ns: int = 0) -> None:
        """Add the waits of a slice of the processes `targets`. `min_ns`: its threshold."""
        middle = time.time_ns() - (time.monotonic_ns() - (cut.start + cut.end) // 2)
        minute, part = middle // _MINUTE_NS, middle % _MINUTE_NS // PART_NS
        if minute != self._minute:
            self.flush()
            self._begin(minute)
        self._recorded[part] += cut.end - cut.start
        self._min_ns = max(self._min_ns, min_ns)
        self._lost += sum(cut.counters.get(name, 0) for name in lay.LOSSES)
        for (pid, place), (waited, number, longest) in _slice_sums(cut, targets, scan, self._peers).items():
            if waited <= 0:
                continue
            key = pid, place
            if key not in self._sums and len(self._sums) >= _MOST_KEPT:
                key = pid, _without_place(place)
            known = self._sums.setdefault(key, [0, 0, *[0] * PARTS])
            known[0] += number
            known[1] = max(known[1], longest)
            known[2 + part] += waited

    def flush(self) -> None:
        """Write the minute so far."""
        if not any(self._recorded):
            return
        rows = [[pid, *place, *sums] for (pid, place), sums in _folded(self._sums).items()]
        pids = {pid for pid, _ in self._sums}
        jobs = {str(pid): name for pid in pids if (name := self._job_of(pid)) is not None}
        known = {"recorded": self._recorded, "run": self._run, "min_ns": self._min_ns, "lost": self._lost}
        begun = self._minute * _MINUTE_NS
        content = {"form": _FORM, "rows": rows, "jobs": jobs, **known}
        self._log.append(HISTORY, begun, begun + _MINUTE_NS, packed(content))
        self._begin(self._minute)

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


def _slice_sums(
    cut: Cut, targets: Collection[int], scan: Scan, peers: Peers
) -> dict[tuple[int, Place], tuple[int, int, int]]:
    """Return (time, number, longest) by process and place of a slice.

    Totals of the kernel include short waits, and all of those that ended, also before the slice. The records give what
    is to be taken off, the waits in progress, and what the longer ones were for.
    """
    names = cap.threads(map_items(*cut.threads, _TID))
    sums: dict[tuple[int, Place], list[int]] = {}
    ends: dict[tuple[int, Place], dict[WaitEnd, list[int]]] = {}

    def known(key: WaitKey, comm: bytes) -> tuple[int, Place]:
        call = syscall_name(key.nr) if key.nr >= 0 else ""
        name = peers.name(key.tgid, key.file[0], scan.details.file_name(key.file)) if key.file[0] else ""
        line, state = scan.line(key.tgid, key.pystack), lay.OFF_CLASSES[key.state]
        return key.tgid, Place(role_of(comm), key.tgid == key.tid, state, call, line, name)

    for total in cap.off_totals(map_items(*cut.totals, _OFF_KEY)):
        if total.tgid in targets:
            file = (total.file.ino, total.file.dev, total.file.gen) if total.file is not None else (0, 0, 0)
            state = lay.OFF_CLASSES.index(total.off_class)
            thread = names.get(total.tid)
            key = WaitKey(total.tgid, total.tid, state, total.nr, total.pystack, file)
            one = sums.setdefault(known(key, thread.comm if thread is not None else b""), [0, 0, 0])
            one[0] += total.total_ns
            one[1] += total.count
            one[2] = max(one[2], total.max_ns)
    for key, how, found in scan.details.sums():
        if key.tgid in targets:
            thread = names.get(key.tid)
            where = known(key, thread.comm if thread is not None else found.comm)
            one = sums.setdefault(where, [0, 0, 0])
            one[0] += found.open_ns - found.early_ns
            one[2] = max(one[2], found.longest_ns)
            if how != UNKNOWN_END:
                end = ends.setdefault(where, {}).setdefault(how, [0, 0])
                end[0] += found.inside_ns
                end[1] += found.count
    made: dict[tuple[int, Place], tuple[int, int, int]] = {}
    for (pid, place), (waited, number, longest) in sums.items():
        parts = sorted(ends.get((pid, place), {}).items(), key=lambda item: -item[1][0])[:_MOST_ENDS]
        for how, (inside, count) in parts:
            named = place._replace(
                object=place.object or (f"futex {how.futex:#x}" if how.futex else ""), ended_by=ended_by(how, pid)
            )
            inside, count = min(inside, waited), min(count, number)
            _add(made, (pid, named), inside, count, longest)
            waited, number = waited - inside, number - count
        _add(made, (pid, place), waited, number, longest if not parts else 0)
    return made


def _add(
    made: dict[tuple[int, Place], tuple[int, int, int]],
    key: tuple[int, Place],
    waited: int,
    number: int,
    longest: int,
) -> None:
    before = made.get(key, (0, 0, 0))
    made[key] = before[0] + waited, before[1] + number, max(before[2], min(longest, 1 << 62))


def _without_place(place: Place) -> Place:
    return Place(place.comm, place.main, place.state, "", "")


def _folded(sums: _Sums) -> _Sums:
    """Return the longest `_MOST_ROWS` rows; the others by thread."""
    ordered = sorted(sums.items(), key=lambda item: -sum(item[1][2:]))
    made: _Sums = dict(ordered[:_MOST_ROWS])
    for (pid, place), more in ordered[_MOST_ROWS:]:
        key = pid, _without_place(place)
        before = made.get(key, [0] * len(more))
        made[key] = [before[0] + more[0], max(before[1], more[1]), *map(sum, zip(before[2:], more[2:], strict=True))]
    return made


def history_minutes(directory: Path, since_ns: int, until_ns: int) -> list[Minute]:
    """Return the minutes that lie at least in part between two instants (CLOCK_REALTIME), oldest first. A minute in
    which the recorder was started again is there twice. Raises `ToolError` (not_found, bad_recording)."""
    found = []
    for entry in read_log(directory / LOG_NAME):
        if entry.kind == HISTORY and since_ns - _MINUTE_NS < entry.start_ns < until_ns:
            content = unpacked(entry.data)
            if content.get("form") == _FORM:  # else of an earlier version
                found.append(_minute(entry.start_ns, content))
    return found


def _minute(start: int, content: Mapping[str, Any]) -> Minute:
    rows = tuple(
        HistoryRow(start, row[0], Place(*row[1:8]), tuple(row[10:]), row[8], row[9])
        for row in content["rows"]
        if len(row) == 10 + PARTS
    )
    jobs = {int(pid): JobName(*name) for pid, name in content["jobs"].items()}
    recorded = tuple(content["recorded"])
    return Minute(start, rows, recorded, content["run"], content["min_ns"], content["lost"], jobs)


def history_rows(directory: Path, since_ns: int, until_ns: int) -> list[HistoryRow]:
    """Return the rows of `history_minutes`. Raises as that."""
    return [row for minute in history_minutes(directory, since_ns, until_ns) for row in minute.rows]


def jobs_of(minutes: Iterable[Minute]) -> dict[int, JobName]:
    """Return the job of each process, the last known one."""
    return {pid: name for minute in minutes for pid, name in minute.jobs.items()}
