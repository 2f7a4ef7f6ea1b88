"""Return what every thread did at the end of a window, and for whom it waited, from the last snapshot of ``objects``.
Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from whystall.tools.host.common.held import HELD_STATES, held_state
from whystall.tools.host.common.objects import OWNED, Objects, objects_of
from whystall.tools.host.common.path_codes import RUNNING
from whystall.tools.host.common.places import Place, place_of_texts
from whystall.tools.host.common.snapshots import first_snapshot, last_snapshot
from whystall.tools.host.common.timelines import Wait
from whystall.tools.host.common.wait_kinds import Kind, wait_kind
from whystall.tools.recording.store import Recording

_OPEN_NS = 100_000_000
# Kind of lock whose owner is derived.
_DERIVED = "python"


@dataclass(frozen=True)
class ThreadState:
    """One thread at the end of the window. `kind.code`: a wait (`path_codes.WAITS`) or ``running``. `owner_tid`: of the
    thread that holds what it waits for, read from the lock or the interpreter; `peers`: processes that hold the other
    end of its pipe or socket, or the file lock. `lasting`: it waited for the same at the snapshot before."""

    pid: int
    tid: int
    comm: str
    kind: Kind
    object: str
    lock: int
    lock_kind: str
    owner_tid: int | None
    peers: tuple[int, ...]
    lasting: bool
    mostly: bool
    """Whether it waited for that for most of the window."""
    holds_interpreter_lock: bool
    place: Place
    frames: tuple[str, ...]
    kernel: tuple[str, ...]

    @property
    def name(self) -> str:
        """The thread as text: ``comm (tid)``."""
        return f"{self.comm} ({self.tid})"


@dataclass(frozen=True)
class Cycle:
    """Threads that cannot go on: each waits for a lock that the next one holds. `ownerless`: one thread, whose lock is
    owned by a thread that has ended, or that exists only in the parent of a fork."""

    threads: tuple[ThreadState, ...]
    ownerless: bool = False


@dataclass
class ThreadStates:
    """All threads of the last snapshot, by tid, and the holders of interpreter locks by pid."""

    threads: dict[int, ThreadState] = field(default_factory=dict)
    holders: dict[int, int] = field(default_factory=dict)
    versions: dict[int, str] = field(default_factory=dict)
    comms: dict[int, str] = field(default_factory=dict)
    lock_kinds: dict[tuple[int, int], str] = field(default_factory=dict)
    """Kinds of locks, by process and futex word, as read from memory in either snapshot."""
    objects: Objects = field(default_factory=Objects)
    complete: bool = True
    """No thread was left out."""

    def of_process(self, pid: int) -> list[ThreadState]:
        """Return the threads of a process, its main thread first."""
        return sorted((t for t in self.threads.values() if t.pid == pid), key=lambda t: (t.tid != t.pid, t.tid))

    def whom(self, thread: ThreadState) -> str:
        """Return for whom a thread waits, with the line where that thread or process is: ``worker (812) at decode
        (data.py:17)``."""
        if thread.owner_tid is not None:
            owner = self.threads.get(thread.owner_tid)
            if owner is None:
                return f"({thread.owner_tid})"
            return f"{owner.name} at {owner.place.line}" if owner.place.line else owner.name
        return ", ".join(self._process(pid) for pid in thread.peers[:3])

    def _process(self, pid: int) -> str:
        """Return a process as text, with its line if only one thread has one."""
        name = f"{self.comms.get(pid, '')} ({pid})".strip()
        line = self.sole_line(pid)
        return f"{name} at {line}" if line else name

    def sole_line(self, pid: int) -> str:
        """Return the line of the program where a process is, if exactly one of its threads has one; else empty."""
        lines = [t.place.line for t in self.of_process(pid) if t.place.line]
        return lines[0] if len(lines) == 1 else ""

    def cycles(self) -> list[Cycle]:
        """Return the cycles of threads that wait for each other's locks, and threads whose lock's owner no longer
        exists.

        Owners are read one after the other: only waits that have lasted count. Those of Python's locks are derived from
        what threads execute, and a waiter may get the lock before its frames are read: only waits that fill most of the
        window count.
        """
        stuck = {
            t.tid: t
            for t in self.threads.values()
            if t.lock_kind in OWNED and t.lasting and (t.lock_kind != _DERIVED or t.mostly)
        }
        found: list[Cycle] = []
        done: set[int] = set()
        for tid, thread in stuck.items():
            way: list[int] = []
            at: int | None = tid
            while at is not None and at in stuck and at not in way and at not in done:
                way.append(at)
                at = stuck[at].owner_tid
            if at is not None and at in way:
                found.append(Cycle(tuple(stuck[t] for t in way[way.index(at) :])))
            done.update(way)
            gone = self.complete and thread.owner_tid is not None and thread.owner_tid not in self.threads
            if gone or thread.lock_kind == "abandoned":
                found.append(Cycle((thread,), ownerless=True))
        return found


def thread_states_of(recording: Recording) -> ThreadStates:
    """Return what the threads of `recording` did at its end."""
    objects = objects_of(recording)
    stacks: dict[int, tuple[str, ...]] = {
        number: tuple(frames)
        for number, frames in recording.table("objects.stacks").select("stack", "frames").iter_rows()
    }
    left_out = {spot.code for spot in recording.manifest.collectors["objects"].not_seen}
    found = ThreadStates(objects=objects, complete="objects_cut" not in left_out)
    for table in ("ends", "sockets", "threads"):
        known = last_snapshot(recording, table).filter(pl.col("pid") > 0)
        if table == "threads":
            known = known.filter(pl.col("pid") == pl.col("tid"))
        found.comms |= dict(known.select("pid", "comm").iter_rows())
    for row in last_snapshot(recording, "interpreters").iter_rows(named=True):
        found.versions[row["pid"]] = row["version"]
        if row["holder_tid"] > 0:
            found.holders[row["pid"]] = row["holder_tid"]
    every = recording.table("objects.threads").filter((pl.col("lock") > 0) & (pl.col("lock_kind") != ""))
    found.lock_kinds = {(pid, lock): kind for pid, lock, kind in every.select("pid", "lock", "lock_kind").iter_rows()}
    lasting, mostly = (
        _lasting(recording, _OPEN_NS),
        _lasting(recording, recording.manifest.window_ns // 2, unbroken=True),
    )
    rows = list(last_snapshot(recording, "threads").iter_rows(named=True))
    waiting = {row["pid"] for row in rows if row["lock_kind"] == "gil"}
    for row in rows:
        found.threads[row["tid"]] = _instant(row, stacks, found, lasting, mostly, waiting)
    return found


def _instant(
    row: Mapping[str, Any],
    stacks: Mapping[int, tuple[str, ...]],
    known: ThreadStates,
    lasting: frozenset[tuple[int, int, str]],
    mostly: frozenset[tuple[int, int, str]],
    contended: Iterable[int],
) -> ThreadState:
    frames, kernel = stacks.get(row["pystack"], ()), stacks.get(row["kstack"], ())
    place = place_of_texts(frames)
    kind = _kind(row, kernel, place, known.objects)
    holder = known.holders.get(row["pid"])
    owner = row["owner_tid"] if row["owner_tid"] > 0 else None
    if kind.code == "interpreter_lock":
        owner = holder if holder != row["tid"] else None
    return ThreadState(
        pid=row["pid"],
        tid=row["tid"],
        comm=row["comm"],
        kind=kind,
        object=row["object"],
        lock=row["lock"] if row["lock"] > 0 else 0,
        lock_kind=row["lock_kind"],
        owner_tid=owner,
        peers=_peers(row, kind, known.objects) if owner is None else (),
        lasting=(row["tid"], row["lock"], row["syscall"]) in lasting,
        mostly=(row["tid"], row["lock"], row["syscall"]) in mostly,
        holds_interpreter_lock=row["holds_gil"] or (holder == row["tid"] and row["pid"] in contended),
        place=place,
        frames=frames,
        kernel=kernel,
    )


def _kind(row: Mapping[str, Any], kernel: tuple[str, ...], place: Place, objects: Objects) -> Kind:
    state = row["state"].strip()
    if held := held_state(row):
        return Kind(HELD_STATES[held])
    if state == "R":
        return Kind(RUNNING)
    if row["lock_kind"] == "join":
        return Kind("join")
    path = row["object"] if row["object"].startswith("/") else ""
    wait = Wait(
        start_ns=0,
        awake_ns=0,
        end_ns=0,
        state=state,
        syscall=row["syscall"],
        path=path,
        fstype="",
        object="" if path else row["object"],
        lock=row["lock"],
        asked_ns=-1,
        kernel=kernel or ((row["wchan"],) if row["wchan"] else ()),
        place=place,
        context="",
        waker_pid=0,
        waker_tid=0,
        waker_comm="",
        waker_syscall="",
        ran_pid=-1,
        ran_comm="",
        open=True,
        seeded=True,
    )
    owned = {row["lock"]} if row["lock_kind"] in OWNED else set()
    if owned:
        return Kind("lock")
    return wait_kind(wait, objects.gil_words.get(row["pid"], set()))


def _peers(row: Mapping[str, Any], kind: Kind, objects: Objects) -> tuple[int, ...]:
    """Return the processes that hold the other end of what a thread waits for."""
    pid = row["pid"]
    if kind.code == "file_lock":
        holder = objects.lock_holder(pid)
        return (holder,) if holder is not None and holder > 0 else ()
    if kind.code == "pipe":
        return tuple(dict.fromkeys(objects.writers(row["object"], pid)))
    if kind.code == "pipe_full":
        return tuple(dict.fromkeys(objects.readers(row["object"], pid)))
    peer = objects.peer(row["object"])
    return (peer["pid"],) if peer is not None and kind.code not in ("events",) else ()


def _lasting(recording: Recording, least_ns: int, *, unbroken: bool = False) -> frozenset[tuple[int, int, str]]:
    """Return (tid, lock, system call) of waits in both snapshots, or of at least `least_ns` in `switches`.

    `unbroken`: threads of which `switches` has waits that ended do not count as waiting from one snapshot to the other.
    """
    before = first_snapshot(recording, "threads").select("tid", "lock", "syscall").iter_rows()
    found = {(tid, lock, call) for tid, lock, call in before}
    if recording.has("switches"):
        segments = recording.table("switches.segments")
        if unbroken:
            ended = set(segments.filter(~pl.col("open") & (pl.col("state") != "R"))["tid"].to_list())
            found = {one for one in found if one[0] not in ended}
        still = segments.filter(pl.col("open") & (pl.col("end_ns") - pl.col("start_ns") >= least_ns))
        found |= set(still.select("tid", "lock", "syscall").iter_rows())
    return frozenset(found)


def merged(threads: Sequence[ThreadState]) -> list[list[ThreadState]]:
    """Group threads that do the same at the same place, running ones first, then by size."""
    groups: dict[tuple[object, ...], list[ThreadState]] = {}
    for t in threads:
        key = (t.comm, t.kind, t.frames or t.kernel, t.lock_kind, t.holds_interpreter_lock, t.owner_tid)
        groups.setdefault(key, []).append(t)
    return sorted(groups.values(), key=lambda g: (not g[0].frames, g[0].kind.code != RUNNING, -len(g), g[0].tid))
