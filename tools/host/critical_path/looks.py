"""Tell a thread that only looks for work between its sleeps from one that works and sleeps. Pure.

Both spend most of their time in the same sleep. What differs is what they do in between: a thread that has no work asks
a peer, or looks at a file or a directory, gets next to nothing, and sleeps again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import polars as pl

from whystall.tools.host.common.path_codes import ASKS, LOOKS, NOTHING, RETRY, STILL
from whystall.tools.host.common.timelines import Timeline
from whystall.tools.host.critical_path.rows import Row
from whystall.tools.host.critical_path.world import World
from whystall.tools.recording.store import Recording

PAUSES = frozenset({"sleep", "timeout", "poll"})
# What a peer waits for that has nothing to do: a request, time, or something that it could hand out.
_IDLE = frozenset({"events", "timeout", "queue"})
_ANSWERS = frozenset({"socket", "pipe"})
_ON_PEERS = frozenset({"socket", "socket_full", "connect", "dns", "events"})
_ON_FILES = frozenset({"file", "file_lock"})
_ON_CPU = frozenset({"cpu", "quota"})
# With fewer sleeps, what lies between them was hardly seen.
_LEAST_SLEEPS = 3
# Shares of its time: it sleeps; at most, it runs or lacks a CPU; at most, it waits for anything else than answers.
_SLEEPS, _RUNS, _OTHER = 0.8, 0.03, 0.02
# CPU time between two sleeps: a look (a request and its parsing), and a look at memory or the clock only, ns.
_LOOK_NS, _GLANCE_NS = 20_000_000, 1_000_000
# An empty answer is a status line with headers, or less; an empty directory or table fits into a page. Bytes.
_ANSWER_BYTES, _PAGE_BYTES, _REQUEST_BYTES = 1024, 4096, 4096
# A call that occurs in at least this share of the rounds belongs to each.
_EACH = 0.5
_RECEIVES = ("recvfrom", "recvmsg", "recvmmsg", "accept", "accept4")
_SENDS = ("sendto", "sendmsg", "sendmmsg")
_READS = ("read", "readv", "pread64", "preadv", "preadv2", "getdents", "getdents64")
_WRITES = ("write", "writev", "pwrite64", "pwritev", "pwritev2", "sendfile")
_STORES = ("fsync", "fdatasync", "rename", "renameat", "renameat2")
_LOOKUPS = ("stat", "lstat", "fstat", "newfstatat", "statx", "access", "faccessat", "faccessat2", "inotify_init1")

# Modules of libraries that look whether a lock file still exists: somebody has the lock, so that it is no idle state.
_LOCK_FILES = frozenset({"torch/utils/file_baton.py"})


@dataclass(frozen=True)
class Calls:
    """Numbers of calls of one thread, and of the bytes that they moved, by system call."""

    count: Counter[str]
    size: Counter[str]

    def each(self, names: tuple[str, ...], rounds: int) -> bool:
        """Return whether one of the calls `names` belongs to each round."""
        return sum(self.count[name] for name in names) >= _EACH * rounds

    def bytes_of(self, names: tuple[str, ...]) -> int:
        """Return the bytes that the calls `names` moved."""
        return sum(self.size[name] for name in names)


def explain_looks(recording: Recording, world: World, line: Timeline, rows: list[Row]) -> None:
    """Fill in what little `line` does between its waits, if it only looks for work: see `_between_sleeps`,
    `_between_answers`."""
    calls = calls_of(recording, line.tid)
    _between_sleeps(recording, world, line, rows, calls)
    _between_answers(world, line, rows, calls)


def _between_sleeps(recording: Recording, world: World, line: Timeline, rows: list[Row], calls: Calls | None) -> None:
    """Fill in `between`, `between_object` and `between_ns` of the rows of sleeps of `line`, if it only looks for work
    between them: it sleeps for most of its time, and in between runs little, sends and receives next to
    nothing, and no call of it fails.

    Nothing is filled in without the system calls of the thread: which of them it makes, and how much they move, is the
    evidence.
    """
    sleeps = [row for row in rows if row.code in PAUSES]
    rounds = sum(row.count for row in sleeps)
    if calls is None or rounds < _LEAST_SLEEPS or any(row.detail.startswith(RETRY) for row in sleeps):
        return
    if not _rests(line, rows, rounds, PAUSES) or any(_on_lock_file(row) for row in sleeps):
        return
    what = _what(calls, rows, rounds)
    if what is None:
        return
    named = {ASKS: _peer(world, line, rows), LOOKS: _file(recording, line.pid, rounds)}.get(what, "")
    gap = _gap_ns(world, line, PAUSES | {"queue"})
    for row in sleeps:
        row.between, row.between_object, row.between_ns = what, named, gap


def _on_lock_file(row: Row) -> bool:
    return any(module in _LOCK_FILES for _, module in row.place.library)


def reads_each_time(recording: Recording, tid: int, rounds: int) -> bool:
    """Return whether thread `tid` gets data in each of `rounds` rounds: a name that does not exist is then one of
    several that it tries, such as the journal of a database, and no failure."""
    calls = calls_of(recording, tid)
    return calls is not None and calls.each(_READS + _RECEIVES, rounds) and calls.bytes_of(_READS + _RECEIVES) >= rounds


def calls_of(recording: Recording, tid: int) -> Calls | None:
    """Return the system calls of thread `tid`; None if none were recorded."""
    table = recording.find("syscalls.totals")
    own = table.filter(pl.col("tid") == tid) if table is not None else None
    if own is None or own.is_empty():
        return None
    count: Counter[str] = Counter()
    size: Counter[str] = Counter()
    for name, number, moved in own.select("syscall", "count", "bytes").iter_rows():
        count[name] += number
        size[name] += max(moved, 0)
    return Calls(count, size)


def _between_answers(world: World, line: Timeline, rows: list[Row], calls: Calls | None) -> None:
    """Fill in the same of waits for one peer, of a thread that does next to nothing else: it takes what a queue has for
    it, and each request for more waits there (BLPOP, a long poll), or the peer sends by itself.

    Either it stays in one wait all along, or its answers are next to nothing, and the peer, which is on this host, has
    nothing to do meanwhile.
    """
    waits = [row for row in rows if row.code in _ANSWERS]
    rounds = sum(row.count for row in waits)
    if not waits or not _rests(line, rows, rounds, _ANSWERS):
        return
    still = rounds == 1 and waits[0].open_ns > 0
    if not still:
        if any(row.code == "pipe" for row in waits):
            return  # a pipe has one direction: nothing is asked for over it
        roots = {root[0].code for row in waits if (root := row.root()) is not None} - {"unknown"}
        if calls is None or not roots or not roots <= _IDLE:
            return
        little = calls.bytes_of(_RECEIVES + _READS) <= _ANSWER_BYTES * rounds
        if not little or calls.bytes_of(_SENDS + _WRITES) > _REQUEST_BYTES * rounds or calls.each(_STORES, rounds):
            return
    for row in waits:
        row.between, row.between_object = (STILL, "") if still else (ASKS, _peer(world, line, rows))
        row.between_ns = _gap_ns(world, line, _ANSWERS | {"events"})


def _rests(line: Timeline, rows: list[Row], rounds: int, waits: Collection[str]) -> bool:
    """Return whether the thread is in `waits` for most of its time, and hardly runs."""
    lived = max(line.alive[1] - line.alive[0], 1)
    slept = sum(row.total_ns for row in rows if row.code in waits)
    waited = {row.code for row in rows} - {*waits} - _ON_PEERS - _ON_FILES - _ON_CPU - {"running", "absent"}
    other = sum(row.total_ns for row in rows if row.code in waited)
    busy = line.running_ns + sum(row.total_ns for row in rows if row.code in _ON_CPU)
    return (
        slept >= _SLEEPS * lived
        and busy <= _RUNS * lived
        and line.running_ns <= _LOOK_NS * rounds
        and other <= _OTHER * lived
    )


def _what(calls: Calls, rows: list[Row], rounds: int) -> str | None:
    """Return what the thread does between its sleeps; None if that is more than a look."""
    waits = sum(row.count for row in rows if row.code in _ON_PEERS)
    asks = waits >= _EACH * rounds or calls.each(_RECEIVES, rounds)
    received, read = calls.bytes_of(_RECEIVES), calls.bytes_of(_READS)
    # a line of a log is little, too
    if calls.bytes_of(_SENDS + _WRITES) > _REQUEST_BYTES * rounds or calls.each(_STORES, rounds):
        return None
    if asks:
        return ASKS if received + read <= _ANSWER_BYTES * rounds else None
    if calls.each(_READS + _LOOKUPS, rounds):
        return LOOKS if read <= _PAGE_BYTES * rounds else None
    if calls.each(_WRITES, rounds):
        return None  # it has made a step, of which it writes
    running = sum(row.total_ns for row in rows if row.code == "running")
    return NOTHING if running <= _GLANCE_NS * rounds else None


def _peer(world: World, line: Timeline, rows: list[Row]) -> str:
    """Return the peer that the thread waits for most often, else one to which its process is connected."""
    waits = Counter({row.object: row.count for row in rows if row.code in _ON_PEERS and row.object})
    if waits:
        return world.objects.name(waits.most_common(1)[0][0])
    own = (s["inode"] for s in world.objects.sockets.values() if s["pid"] == line.pid and s["state"] == "established")
    return next((world.objects.name(f"socket:[{inode}]") for inode in own), "")


def _file(recording: Recording, pid: int, rounds: int) -> str:
    """Return the file or directory on which the process makes most calls, at least one in each round."""
    table, files = recording.find("syscalls.latency"), recording.find("syscalls.files")
    if table is None or files is None:
        return ""
    counts = table.filter(pl.col("pid") == pid).group_by("file").agg(pl.col("count").sum()).sort("count", "file")
    if counts.is_empty() or counts["count"][-1] < _EACH * rounds:
        return ""
    paths: dict[int, str] = dict(files.select("file", "path").iter_rows())
    return paths.get(counts["file"][-1], "")


def _gap_ns(world: World, line: Timeline, codes: Collection[str]) -> int:
    """Return the median time from the end of a wait of kind `codes` to the start of the next one."""
    waits = [wait for wait in line.waits if world.kind(line, wait).code in codes]
    gaps = [max(after.start_ns - before.end_ns, 0) for before, after in pairwise(waits)]
    return int(median(gaps)) if gaps else 0
