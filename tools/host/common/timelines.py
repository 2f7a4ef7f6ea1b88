"""Build the timeline of every thread of a recording: its waits in order, totals of short waits, and CPU samples."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import polars as pl

from whystall.tools.collect.tables import FD_UNREAD
from whystall.tools.host.common.held import ENDED, held_state
from whystall.tools.host.common.places import NOWHERE, Place, place_of_calls, place_of_texts
from whystall.tools.recording.store import Recording
from whystall.tools.stacks.model import NO_STACK, NO_TIME

_MOST_WAITS = 200_000
# So many waits and samples are searched for the last one with frames of Python: a thread without a CPU has none.
_LATEST = 100
# A thread without a CPU is taken to be at the line of a sample no older than this.
_NEAR_NS = 100_000_000


class Wait(NamedTuple):
    """One time off the CPU; columns of ``switches.segments``. The thread is runnable from `awake_ns` to `end_ns`.

    `state`: a letter as in /proc/PID/stat, or F of a thread in a frozen cgroup. `fd`: the descriptor that it waits for;
    `FD_UNREAD`: some that were not read.
    """

    start_ns: int
    awake_ns: int
    end_ns: int
    state: str
    syscall: str
    path: str
    fstype: str
    object: str
    lock: int
    asked_ns: int
    kernel: tuple[str, ...]
    place: Place
    context: str
    waker_pid: int
    waker_tid: int
    waker_comm: str
    waker_syscall: str
    ran_pid: int
    ran_comm: str
    open: bool
    seeded: bool
    fd: int = -1


class ShortWaits(NamedTuple):
    """Waits at one place that were too short to be recorded individually."""

    wait: Wait
    number: int
    total_ns: int
    max_ns: int


class Sample(NamedTuple):
    """What a thread ran at an instant. `kernel`: frames in the kernel, innermost first."""

    at_ns: int
    place: Place
    kernel: tuple[str, ...]


@dataclass
class Timeline:
    """One thread. `waits` are in order and do not overlap; `alive`: from its first to its last known instant."""

    pid: int
    tid: int
    comm: str
    waits: list[Wait] = field(default_factory=list)
    short: list[ShortWaits] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    alive: tuple[int, int] = (0, 0)
    new: bool = False
    """Whether it started within the window: a thread of the target that the first reading lacks."""

    @cached_property
    def _starts(self) -> list[int]:
        return [wait.start_ns for wait in self.waits]

    @cached_property
    def _instants(self) -> list[int]:
        return [sample.at_ns for sample in self.samples]

    def waits_within(self, start: int, end: int) -> Iterator[Wait]:
        """Yield the waits that overlap [start, end)."""
        at = max(bisect_right(self._starts, start) - 1, 0)
        for wait in self.waits[at:]:
            if wait.start_ns >= end:
                return
            if wait.end_ns > start:
                yield wait

    @property
    def last_place(self) -> Place:
        """Where the thread was last seen in Python, in a wait or running."""
        wait = next((one for one in self.waits[: -_LATEST - 1 : -1] if one.place.python), None)
        sample = next((one for one in self.samples[: -_LATEST - 1 : -1] if one.place.python), None)
        if sample is not None and (wait is None or sample.at_ns > wait.end_ns):
            return sample.place
        return wait.place if wait is not None else NOWHERE

    def number_of(self, wait: Wait) -> int | None:
        """Return the position of `wait` among `waits`; None for another one."""
        number = bisect_left(self._starts, wait.start_ns)
        return number if number < len(self.waits) and self.waits[number] is wait else None

    def samples_within(self, start: int, end: int) -> Sequence[Sample]:
        """Return the samples in [start, end)."""
        return self.samples[bisect_left(self._instants, start) : bisect_left(self._instants, end)]

    def line_near(self, at: int) -> str:
        """Return the line of the program in the sample nearest to `at`; empty if none is near."""
        number = bisect_left(self._instants, at)
        near = self.samples[max(number - 1, 0) : number + 1]
        best = min(near, key=lambda sample: abs(sample.at_ns - at), default=None)
        return best.place.line if best is not None and abs(best.at_ns - at) <= _NEAR_NS else ""

    def next_wait(self, at: int) -> Wait | None:
        """Return the first wait that begins at `at` or later."""
        number = bisect_left(self._starts, at)
        return self.waits[number] if number < len(self.waits) else None

    @property
    def waited_ns(self) -> int:
        """Time off the CPU, short waits included."""
        return sum(w.end_ns - w.start_ns for w in self.waits) + sum(s.total_ns for s in self.short)

    @property
    def running_ns(self) -> int:
        """Time on a CPU."""
        return max(0, self.alive[1] - self.alive[0] - self.waited_ns)


def timelines(recording: Recording) -> dict[int, Timeline]:
    """Return the timeline of every thread in `recording`, by tid."""
    stacks = {
        number: tuple(frames)
        for number, frames in recording.table("switches.stacks").select("stack", "frames").iter_rows()
    }
    files: dict[int, tuple[str, str]] = {
        number: (path, fstype)
        for number, path, fstype in recording.table("switches.files").select("file", "path", "fstype").iter_rows()
    }
    reader = _Reader(stacks, files)
    found: dict[int, Timeline] = {}
    segments = recording.table("switches.segments").sort("start_ns").head(_MOST_WAITS)
    kept: dict[tuple[Any, ...], list[int]] = {}
    for row in segments.iter_rows(named=True):
        wait = reader.wait(row)
        line = found.setdefault(row["tid"], Timeline(row["pid"], row["tid"], row["comm"]))
        line.comm = row["comm"]  # the latest: a child has its parent's name until it executes a program
        if line.waits and wait.start_ns < line.waits[-1].end_ns:
            continue  # waits of a thread cannot overlap
        line.waits.append(wait)
        known = kept.setdefault(_key(row), [0, 0])
        known[0] += 1
        known[1] += wait.end_ns - wait.start_ns
    for row in recording.table("switches.totals").iter_rows(named=True):
        line = found.setdefault(row["tid"], Timeline(row["pid"], row["tid"], row["comm"]))
        count, total = kept.get(_key(row), (0, 0))
        if row["total_ns"] > total and row["count"] != count:
            line.short.append(
                ShortWaits(reader.wait(row), max(row["count"] - count, 1), row["total_ns"] - total, row["max_ns"])
            )
    _add_samples(recording, found)
    if recording.has("proc"):  # a thread that never waited has no switch
        for pid, tid, comm in recording.table("proc.threads").select("pid", "tid", "comm").iter_rows():
            found.setdefault(tid, Timeline(pid, tid, comm))
    _set_alive(recording, found)
    return found


def complete_until(recording: Recording) -> int:
    """Return up to when `timelines` has every recorded wait, ns."""
    starts = recording.table("switches.segments")["start_ns"]
    return recording.manifest.window_ns if len(starts) <= _MOST_WAITS else int(starts.sort()[_MOST_WAITS])


def complete_descriptors(recording: Recording, found: Mapping[int, Timeline]) -> None:
    """Fill in what polls and selects wait for whose descriptors were not read, from the snapshots of ``objects``: those
    that began before the window."""
    if not recording.has("objects"):
        return
    seen = recording.table("objects.threads").filter(pl.col("object") != "")
    for row in seen.select("at_ns", "tid", "syscall", "object", "fd").iter_rows(named=True):
        line = found.get(row["tid"])
        for number, wait in enumerate(line.waits if line is not None else ()):
            same = wait.fd == FD_UNREAD and wait.start_ns <= row["at_ns"] <= wait.end_ns
            if line is not None and same and wait.syscall == row["syscall"]:
                path = row["object"] if row["object"].startswith("/") else ""
                line.waits[number] = wait._replace(path=path, object="" if path else row["object"], fd=row["fd"])


def add_still_threads(recording: Recording, found: dict[int, Timeline]) -> None:
    """Add threads without recorded switches that waited in the same place in both snapshots of the collector
    ``objects``.

    They hold what recorded threads wait for, and did not run between the snapshots as far as these show.
    """
    if not recording.has("objects"):
        return
    stacks = {
        number: tuple(frames)
        for number, frames in recording.table("objects.stacks").select("stack", "frames").iter_rows()
    }
    window = recording.manifest.window_ns
    looks: dict[int, list[dict[str, Any]]] = {}
    for row in recording.table("objects.threads").sort("at_ns").iter_rows(named=True):
        looks.setdefault(row["tid"], []).append(row)
    for tid, rows in looks.items():
        row, known = rows[-1], found.get(tid)
        if row["state"] == "R" or (known is not None and (known.waits or known.samples)):
            continue
        if any(row[name] != rows[0][name] for name in ("state", "wchan", "syscall", "object", "lock")):
            continue
        path = row["object"] if row["object"].startswith("/") else ""
        wait = Wait(
            *(0, window, window),
            state=held_state(row) or row["state"],
            syscall=row["syscall"],
            path=path,
            fstype="",
            object="" if path else row["object"],
            lock=max(row["lock"], 0),
            asked_ns=-1,
            kernel=stacks.get(row["kstack"]) or ((row["wchan"],) if row["wchan"] else ()),
            place=place_of_texts(stacks.get(row["pystack"], ())),
            **NO_WAKER,
            open=True,
            seeded=True,
        )
        found[tid] = Timeline(row["pid"], tid, row["comm"], waits=[wait], alive=(0, window))


def add_ended_processes(recording: Recording, found: dict[int, Timeline]) -> None:
    """Add the processes that had ended before the window, and of whose end their parents took no note."""
    table = recording.find("proc.processes")
    if table is None:
        return
    window = recording.manifest.window_ns
    looks: dict[int, list[tuple[str, str, int]]] = {}
    for pid, comm, state, code in table.sort("at_ns").select("pid", "comm", "state", "exit_code").iter_rows():
        looks.setdefault(pid, []).append((comm, state, code))
    for pid, rows in looks.items():
        if any(state != ENDED for _, state, _ in rows):
            continue
        comm, _, code = rows[-1]
        signal = code & 0x7F
        how = "" if code <= 0 else f"signal {signal}" if signal else f"exit code {code >> 8}"
        wait = Wait(
            *(0, window, window),
            state=ENDED,
            syscall="",
            path="",
            fstype="",
            object=how,
            lock=0,
            asked_ns=-1,
            kernel=(),
            place=NOWHERE,
            **NO_WAKER,
            open=True,
            seeded=True,
        )
        found[pid] = Timeline(pid, pid, comm, waits=[wait], alive=(0, window))


NO_WAKER: dict[str, Any] = {
    **{"context": "", "waker_pid": 0, "waker_tid": 0, "waker_comm": "", "waker_syscall": ""},
    **{"ran_pid": -1, "ran_comm": ""},
}
"""Members of a `Wait` of which it is not known who ended it."""


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("tid", "state", "syscall", "file", "kstack", "ustack"))


class _Reader:
    """Converts rows to waits; resolves each stack once."""

    def __init__(self, stacks: Mapping[int, tuple[str, ...]], files: Mapping[int, tuple[str, str]]) -> None:
        self._stacks = stacks
        self._files = files
        self._places: dict[int, Place] = {-1: NOWHERE}

    def wait(self, row: Mapping[str, Any]) -> Wait:
        """Return the wait of a row of segments; of a row of totals, one without times."""
        ustack = row["ustack"]
        if ustack not in self._places:
            self._places[ustack] = place_of_texts(self._stacks.get(ustack, ()))
        path, fstype = self._files.get(row["file"], ("", ""))
        start, end = row.get("start_ns", 0), row.get("end_ns", 0)
        runnable = row.get("runnable_ns", 0)
        if runnable < 0:  # not recorded: derive it if the waker was recorded or the thread was preempted
            woken = row["woken_ns"]
            runnable = end - start if row["state"] == "R" else end - woken if 0 < woken <= end else 0
        return Wait(
            start_ns=start,
            awake_ns=max(start, end - runnable),
            end_ns=end,
            state=row["state"],
            syscall=row["syscall"],
            path=path,
            fstype=fstype,
            object=row.get("object", ""),
            lock=row.get("lock", 0),
            asked_ns=row.get("asked_ns", -1),
            kernel=self._stacks.get(row["kstack"], ()),
            place=self._places[ustack],
            context=row.get("context", ""),
            waker_pid=row.get("waker_pid", 0),
            waker_tid=row.get("waker_tid", 0),
            waker_comm=row.get("waker_comm", ""),
            waker_syscall=row.get("waker_syscall", ""),
            ran_pid=row.get("ran_pid", -1),
            ran_comm=row.get("ran_comm", ""),
            open=row.get("open", False),
            seeded=row.get("seeded", False),
            fd=row.get("fd", -1),
        )


def _add_samples(recording: Recording, found: dict[int, Timeline]) -> None:
    """Add the CPU samples, if they were recorded, in order."""
    if not recording.has("samples"):
        return
    samples = recording.table("samples.samples").filter((pl.col("at_ns") != NO_TIME) & (pl.col("stack") != NO_STACK))
    if samples.is_empty():
        return
    threads = {row["thread"]: row for row in recording.table("samples.threads").iter_rows(named=True)}
    stacks = _SampledStacks(recording)
    for at, thread, stack in samples.sort("at_ns").select("at_ns", "thread", "stack").iter_rows():
        who = threads.get(thread)
        if who is None or who["tid"] < 0:
            continue
        line = found.setdefault(who["tid"], Timeline(who["pid"], who["tid"], who["comm"]))
        line.samples.append(Sample(at, *stacks.of(stack)))


class _SampledStacks:
    """Resolves each sampled stack once."""

    def __init__(self, recording: Recording) -> None:
        stacks, frames = recording.table("samples.stacks"), recording.table("samples.frames")
        self._parents: list[int] = stacks["parent"].to_list()
        self._frame_of: list[int] = stacks["frame"].to_list()
        self._frames = list(frames.select("name", "file", "line", "kind").iter_rows())
        self._known: dict[int, tuple[Place, tuple[str, ...]]] = {}

    def of(self, stack: int) -> tuple[Place, tuple[str, ...]]:
        """Return the place in user mode, and the kernel's frames, innermost first."""
        if stack not in self._known:
            frames = []
            node = stack
            while node >= 0:
                frames.append(self._frames[self._frame_of[node]])
                node = self._parents[node]
            kernel = tuple(name for name, _, _, kind in frames if kind == "kernel")
            self._known[stack] = (place_of_calls(frames), kernel)
        return self._known[stack]


def _set_alive(recording: Recording, found: Mapping[int, Timeline]) -> None:
    """Set when each thread existed; it existed before the window if it was waiting or counted at its start."""
    window = recording.manifest.window_ns
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    if recording.has("proc"):
        for tid, begin, end in (
            recording.table("proc.threads")
            .group_by("tid")
            .agg(pl.col("at_ns").min().alias("begin"), pl.col("at_ns").max().alias("end"))
            .iter_rows()
        ):
            first[tid], last[tid] = begin, end
    readings = sorted(set(first.values()) | set(last.values()))
    earliest, latest = (readings[0], readings[-1]) if readings else (0, window)
    for tid, line in found.items():
        events = [(w.start_ns, w.end_ns) for w in (line.waits[:1] + line.waits[-1:])]
        events += [(s.at_ns, s.at_ns) for s in (line.samples[:1] + line.samples[-1:])]
        known = tid in first
        # without events: a thread of no or one reading hardly lived, a thread of all of them ran all along
        begin = min((start for start, _ in events), default=first.get(tid, 0))
        end = max((stop for _, stop in events), default=last.get(tid, 0))
        from_start = bool(line.waits and line.waits[0].seeded) or (known and first[tid] <= earliest)
        to_end = bool(line.waits and line.waits[-1].open) or (known and last[tid] >= latest)
        if not known and not readings:
            from_start = to_end = True
        line.alive = (0 if from_start else begin, window if to_end else end)
        line.new = known and not from_start
