"""offcputime: where threads wait, by kernel and user stack, state, and the system call and file they wait in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl
from pydantic import Field

from whystall.tools.collect.options import SwitchOptions
from whystall.tools.contract.findings import Finding, Interval, Polarity, Subject
from whystall.tools.contract.params import LiveParams, MinMs
from whystall.tools.contract.registry import ArtifactContent, Judgement, Tool
from whystall.tools.contract.result import Model
from whystall.tools.contract.text import path_pattern, path_series
from whystall.tools.host.common.findings import any_thread, finding, severity, window
from whystall.tools.host.common.lock_groups import groups_of
from whystall.tools.host.common.objects import objects_of
from whystall.tools.host.common.stack_frames import kernel_path, python_line
from whystall.tools.host.common.thread_states import thread_states_of
from whystall.tools.host.common.timelines import timelines
from whystall.tools.host.common.wait_syscalls import FILE_LOCKS, IDLE_SYSCALLS, LOCK_SYSCALLS, blocked_in_operation
from whystall.tools.host.common.wakers import contended_ns, wakers_of
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording
from whystall.tools.stacks.waits import Places, wait_stack

_ABNORMAL_PCT = 2.0
# A contended lock matters from this share of a thread's time on.
_LOCK_PCT = 5.0
_PREEMPTED_PCT = 5.0
_FINDINGS = 40


class Params(LiveParams):
    """Parameters of offcputime."""

    min_ms: MinMs = 1.0
    waker: bool = Field(default=False, description="also record who woke the thread")


class Row(Model):
    """Waits of one thread in one place. State D: uninterruptible, S: sleeping, R: preempted; "" unknown. `count`,
    `max_ms`: None if the engine reports only sums."""

    pid: int
    tid: int
    comm: str
    state: str
    syscall: str
    path: str
    kernel_stack: list[str]
    user_stack: list[str]
    count: int | None
    total_ms: float
    max_ms: float | None
    window_pct: float


class Open(Model):
    """A thread still waiting when the window ended; `whole_window`: it never ran."""

    pid: int
    tid: int
    comm: str
    state: str
    syscall: str
    path: str
    kernel_stack: list[str]
    waiting_ms: float
    whole_window: bool


class Waker(Model):
    """Waits of a thread in one system call that a waker ended. `waker_blocked_ms`: time in which the waker was itself
    blocked in an operation, so that the chain continues behind it."""

    tid: int
    comm: str
    syscall: str
    waker_pid: int
    waker_tid: int
    waker_comm: str
    count: int
    total_ms: float
    waker_blocked_ms: float


class Data(Model):
    """By total time, largest first."""

    rows: list[Row] = Field(default_factory=list)
    open: list[Open] = Field(default_factory=list)
    wakers: list[Waker] = Field(default_factory=list)


def _needs(params: Params) -> list[Need]:
    return [Need("switches", SwitchOptions(int(params.min_ms * 1e6), wakers=params.waker, python=True))]


def judge(recording: Recording, params: Params) -> Judgement[Data]:
    """Judge the blocked time in `recording`."""
    window_ns = max(recording.manifest.window_ns, 1)
    places = Places(recording)
    totals = recording.table("switches.totals").sort("total_ns", descending=True)
    segments = recording.table("switches.segments")
    waiting = _open(segments.filter(pl.col("open")), places, window_ns)
    rows = [_row(r, places, window_ns) for r in totals.iter_rows(named=True)]
    wakers = [Waker(**vars(w)) for w in wakers_of(segments)]
    findings = _findings(rows, waiting, wakers, segments, recording)
    unnamed = sum(1 for frames in places.stacks.values() if any(f.startswith("[") for f in frames))
    return Judgement(
        findings=findings,
        data=Data(rows=rows[: params.top], open=waiting[: params.top], wakers=wakers[: params.top]),
        seen=int(totals["count"].abs().sum()) + len(waiting),  # an unknown count (-1) is at least one
        totals={"rows": len(rows), "open": len(waiting), "wakers": len(wakers)},
        artifacts=[_folded(rows)] if rows else [],
        not_seen=[("user_symbols", str(unnamed))] if unnamed else [],
    )


def _row(r: dict[str, Any], places: Places, window_ns: int) -> Row:
    return Row(
        pid=r["pid"],
        **places.fields(r, places.path(r["file"])),
        user_stack=places.stack(r["ustack"]),
        count=r["count"] if r["count"] >= 0 else None,
        total_ms=r["total_ns"] / 1e6,
        max_ms=r["max_ns"] / 1e6 if r["max_ns"] >= 0 else None,
        window_pct=100 * r["total_ns"] / window_ns,
    )


def _open(segments: pl.DataFrame, places: Places, window_ns: int) -> list[Open]:
    found = [
        Open(
            pid=r["pid"],
            **places.fields(r, places.path(r["file"])),
            waiting_ms=(r["end_ns"] - r["start_ns"]) / 1e6,
            whole_window=r["seeded"] and r["end_ns"] - r["start_ns"] >= 0.99 * window_ns,
        )
        for r in segments.iter_rows(named=True)
    ]
    return sorted(
        found,
        key=lambda o: (
            not blocked_in_operation(o.state, o.syscall, bool(o.path)),
            o.syscall in IDLE_SYSCALLS,
            -o.waiting_ms,
        ),
    )


Place = tuple[int, int, str, str, str, str]


def _findings(
    rows: list[Row], waiting: list[Open], wakers: list[Waker], segments: pl.DataFrame, recording: Recording
) -> list[Finding]:
    """Return one finding per thread and place (state, system call, file series), longest first, then normal ones."""
    window_ns = max(recording.manifest.window_ns, 1)
    places: dict[Place, list[Row]] = {}
    for row in rows:
        series = path_pattern(row.path) if row.path else ""
        places.setdefault((row.pid, row.tid, row.comm, row.state, row.syscall, series), []).append(row)
    still = {(o.tid, o.state, o.syscall, path_pattern(o.path) if o.path else "") for o in waiting}
    spans = _spans(segments)
    by_waker: dict[tuple[int, str], Waker] = {}
    for waker in wakers:
        by_waker.setdefault((waker.tid, waker.syscall), waker)
    contended, undecided = _contended(recording)
    found: list[Finding] = []
    for place, group in sorted(places.items(), key=lambda item: -sum(r.total_ms for r in item[1])):
        if sum(r.window_pct for r in group) < 1.0 and len(found) >= 10:
            break
        _, tid, _, state, syscall, series = place
        span = spans.get((tid, syscall), (0, window_ns))
        waits_on = (tid, state, syscall, series) in still
        for lock, part in _by_lock(group, contended).items():
            found.append(_finding(place, part, span, waits_on, by_waker.get((tid, syscall)), lock))
    # A large pool of idle threads must not hide the one that is blocked.
    found.sort(key=lambda f: f.polarity is Polarity.NORMAL)
    return found[:_FINDINGS] + [f for f in _normal(found, recording) if f.kind != "offcpu.lock_wait" or not undecided]


_EVERYWHERE = "*"


def _by_lock(group: list[Row], contended: Mapping[tuple[int, str, str], Mapping[str, int]]) -> dict[str, list[Row]]:
    """Return the rows of one place by what they wait for: ``contended`` (a lock), ``interpreter``, or empty. Waits at
    one line of Python are classified by what most of their time was."""
    if group[0].syscall in FILE_LOCKS:
        return {"contended": group}
    lines: dict[str, list[Row]] = {}
    for row in group:
        everywhere = (row.tid, row.syscall, _EVERYWHERE) in contended
        lines.setdefault(_EVERYWHERE if everywhere else python_line(row.user_stack), []).append(row)
    found: dict[str, list[Row]] = {}
    for line, rows in lines.items():
        locks, lock = contended.get((rows[0].tid, rows[0].syscall, line), {}), ""
        if sum(locks.values()) / 1e6 >= sum(row.total_ms for row in rows) / 2:
            lock = "contended" if locks.get("lock", 0) >= locks.get("interpreter", 0) else "interpreter"
        found.setdefault(lock, []).extend(rows)
    return found


def _contended(recording: Recording) -> tuple[dict[tuple[int, str, str], dict[str, int]], bool]:
    """Return the time per (thread, system call, innermost line of Python) spent waiting for contended locks, by
    ``lock`` or ``interpreter``, and whether other waits may be for locks too: those called from a line of the program,
    which may use a lock or a queue. The line is `_EVERYWHERE` where locks cannot be told apart."""
    segments = recording.table("switches.segments")
    if not recording.has("objects"):
        return {(*key, _EVERYWHERE): {"lock": took} for key, took in contended_ns(segments).items()}, False
    found: dict[tuple[int, str, str], dict[str, int]] = {}
    groups = groups_of(timelines(recording), objects_of(recording), thread_states_of(recording))
    for group in groups:
        if group.what in ("lock", "interpreter"):
            for tid, waiter in group.waiters.items():
                for (syscall, line), took in waiter.by_call.items():
                    kinds = found.setdefault((tid, syscall, line), {})
                    kinds[group.what] = kinds.get(group.what, 0) + took
    return found, any(group.what == "unknown" and group.evidence == "program_line" for group in groups)


def _finding(
    place: Place, group: list[Row], span: tuple[int, int], still: bool, waker: Waker | None, lock: str
) -> Finding:
    pid, tid, comm, state, syscall, series = place
    share = min(sum(r.window_pct for r in group), 100.0)
    kind, bad = _classify(state, syscall, bool(series), share, bool(lock))
    attributes = {"state": state} if state else {}
    if kind != "offcpu.preempted":
        attributes |= {"syscall": syscall, "open": "yes" if still else "no"}
        if where := kernel_path(group[0].kernel_stack):
            attributes["kernel_path"] = where
        if group[0].user_stack:
            attributes["user_path"] = " < ".join(group[0].user_stack[:4])
        if line := _line_most_waited(group):
            attributes["code"] = line
        if waker is not None:
            of = f" of {waker.waker_pid}" if waker.waker_pid != waker.waker_tid else ""
            attributes["waker"] = f"{waker.waker_comm} ({waker.waker_tid}{of})"
    if kind == "offcpu.lock_wait" and lock:
        attributes["lock"] = lock
    counts = [r.count for r in group if r.count is not None]
    longest = [r.max_ms for r in group if r.max_ms is not None]
    metrics = {
        "total_ms": sum(r.total_ms for r in group),
        "window_pct": share,
        "count": sum(counts) if len(counts) == len(group) else None,
        "max_ms": max(longest) if len(longest) == len(group) else None,
    }
    subject = Subject(type="thread", pid=pid, tid=tid, comm=comm, path=path_series({r.path for r in group}) or None)
    interval = Interval(start_ns=span[0], end_ns=span[1])
    return finding(kind, subject, interval, metrics, severity(share) if bad else None, attributes)


def _line_most_waited(group: list[Row]) -> str:
    """Return the line of Python with most waiting time; empty if it was in none."""
    waited: dict[str, float] = {}
    for row in group:
        line = python_line(row.user_stack)
        waited[line] = waited.get(line, 0.0) + row.total_ms
    return max(waited, key=lambda line: waited[line])


def _classify(state: str, syscall: str, on_file: bool, share: float, lock: bool) -> tuple[str, bool]:
    """Return the kind of a wait and whether it is abnormal.

    Waiting for input, work or time is not abnormal by itself. A futex serves work as often as locks, and counts as a
    lock only if it is known to be one.
    """
    if state == "R":
        return "offcpu.preempted", share >= _PREEMPTED_PCT
    if syscall in LOCK_SYSCALLS:
        return "offcpu.lock_wait", lock and share >= _LOCK_PCT
    waits_for_work = syscall in IDLE_SYSCALLS or not blocked_in_operation(state, syscall, on_file)
    return "offcpu.blocked", share >= _ABNORMAL_PCT and not waits_for_work


def _spans(segments: pl.DataFrame) -> dict[tuple[int, str], tuple[int, int]]:
    spans = segments.group_by("tid", "syscall").agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    return {(r["tid"], r["syscall"]): (r["start_ns"], r["end_ns"]) for r in spans.iter_rows(named=True)}


def _normal(found: list[Finding], recording: Recording) -> list[Finding]:
    """Return normal findings for the kinds of wait that take no abnormal share of any thread of the whole target."""
    target = recording.manifest.target
    if target.everything or not recording.manifest.saw_everything("switches"):
        return []
    bad = {f.kind for f in found if f.polarity is Polarity.ABNORMAL}
    return [
        finding(
            kind,
            any_thread(target),
            window(recording.manifest.window_ns),
            {
                "count": sum(f.metrics.get("count", 1) for f in found if f.kind == kind),
                "window_pct": max((f.metrics["window_pct"] for f in found if f.kind == kind), default=0.0),
            },
        )
        for kind in ("offcpu.blocked", "offcpu.lock_wait", "offcpu.preempted")
        if kind not in bad
    ]


def _folded(rows: list[Row]) -> ArtifactContent:
    """Return folded stacks, outermost frame first, weights in microseconds: ``comm;user;...;kernel;... N``."""
    lines: dict[str, int] = {}
    for row in rows:
        stack = wait_stack(row.user_stack, row.syscall, row.path, row.kernel_stack)
        frames = [row.comm, *(frame.text for frame in stack)]
        key = ";".join(f.replace(";", ":") for f in frames)
        lines[key] = lines.get(key, 0) + int(row.total_ms * 1000)
    text = "".join(f"{key} {weight}\n" for key, weight in sorted(lines.items()))
    return ArtifactContent("offcpu.folded", "Off-CPU time by stack, microseconds", "text/plain", text)


TOOL = Tool(
    name="offcputime",
    title="Blocked time",
    description=(
        "Time threads wait off CPU, by kernel and user stack, state, and the system call and file they wait in; "
        "threads blocked for the whole window included; who woke them on request."
    ),
    params=Params,
    data=Data,
    needs=_needs,
    judge=judge,
    kinds=frozenset({"offcpu.blocked", "offcpu.lock_wait", "offcpu.preempted"}),
    cost=4.0,
)
