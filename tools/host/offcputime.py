"""offcputime: where threads wait, by kernel and user stack, state, and the system call and file they wait in."""

from __future__ import annotations

from typing import Any

import polars as pl
from pydantic import Field

from whystall.tools.collect.options import SwitchOptions
from whystall.tools.contract.findings import Finding, Interval, Polarity, Severity, Subject
from whystall.tools.contract.params import LiveParams
from whystall.tools.contract.registry import ArtifactContent, Judgement, Tool
from whystall.tools.contract.result import Model
from whystall.tools.contract.text import path_pattern, path_series
from whystall.tools.host.common.file_operations import ON_FILES
from whystall.tools.host.common.severity import severity
from whystall.tools.host.common.stack_frames import kernel_path, python_line
from whystall.tools.host.common.wait_syscalls import FILE_LOCKS, IDLE_SYSCALLS, LOCK_SYSCALLS
from whystall.tools.host.common.wakers import contended_ns, wakers_of
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording
from whystall.tools.stacks.waits import wait_stack

_ABNORMAL_PCT = 2.0
# A lock hurts only where it takes a visible share of a thread's time.
_LOCK_PCT = 5.0
_PREEMPTED_PCT = 5.0
_FINDINGS = 40


class Params(LiveParams):
    """Parameters of offcputime."""

    min_ms: float = Field(default=1.0, ge=0.01, le=600_000, description="list segments longer than, ms")
    waker: bool = Field(default=False, description="also record who woke the thread")


class Row(Model):
    """Waits of one thread in one place. State D: uninterruptible, S: sleeping, R: preempted; empty: not told.

    `count` and `max_ms` are None where the engine tells the sum only.
    """

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
    """A thread still waiting when the window ended; `whole_window`: it did not run at all."""

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
    """Who ended waits of a thread in one system call, and how much waiting that was. `waker_blocked_ms`: the part in
    which the waker was itself held up in an operation, so that the wait goes on behind it.
    """

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
    """Blocked time of `recording`."""
    window_ns = max(recording.manifest.window_ns, 1)
    paths = {r["file"]: r["path"] for r in recording.table("switches.files").iter_rows(named=True)}
    stacks = {r["stack"]: r["frames"] for r in recording.table("switches.stacks").iter_rows(named=True)}
    totals = recording.table("switches.totals").sort("total_ns", descending=True)
    segments = recording.table("switches.segments")
    waiting = _open(segments.filter(pl.col("open")), paths, stacks, window_ns)
    rows = [_row(r, paths, stacks, window_ns) for r in totals.iter_rows(named=True)]
    wakers = [Waker(**vars(w)) for w in wakers_of(segments)]
    findings = _findings(rows, waiting, wakers, segments, recording)
    unnamed = sum(1 for r in stacks.values() if any(f.startswith("[") for f in r))
    return Judgement(
        findings=findings,
        data=Data(rows=rows[: params.top], open=waiting[: params.top], wakers=wakers[: params.top]),
        seen=int(totals["count"].abs().sum()) + len(waiting),  # a sum of unknown count is one at least
        totals={"rows": len(rows), "open": len(waiting), "wakers": len(wakers)},
        artifacts=[_folded(rows)] if rows else [],
        not_seen=[("user_symbols", str(unnamed))] if unnamed else [],
    )


def _row(r: dict[str, Any], paths: dict[int, str], stacks: dict[int, list[str]], window_ns: int) -> Row:
    return Row(
        pid=r["pid"],
        tid=r["tid"],
        comm=r["comm"],
        state=r["state"],
        syscall=r["syscall"],
        path=paths.get(r["file"], ""),
        kernel_stack=stacks.get(r["kstack"], []),
        user_stack=stacks.get(r["ustack"], []),
        count=r["count"] if r["count"] >= 0 else None,
        total_ms=r["total_ns"] / 1e6,
        max_ms=r["max_ns"] / 1e6 if r["max_ns"] >= 0 else None,
        window_pct=100 * r["total_ns"] / window_ns,
    )


def _open(segments: pl.DataFrame, paths: dict[int, str], stacks: dict[int, list[str]], window_ns: int) -> list[Open]:
    found = [
        Open(
            pid=r["pid"],
            tid=r["tid"],
            comm=r["comm"],
            state=r["state"],
            syscall=r["syscall"],
            path=paths.get(r["file"], ""),
            kernel_stack=stacks.get(r["kstack"], []),
            waiting_ms=(r["end_ns"] - r["start_ns"]) / 1e6,
            whole_window=r["seeded"] and r["end_ns"] - r["start_ns"] >= 0.99 * window_ns,
        )
        for r in segments.iter_rows(named=True)
    ]
    return sorted(
        found,
        key=lambda o: (not _held_up(o.state, o.syscall, bool(o.path)), o.syscall in IDLE_SYSCALLS, -o.waiting_ms),
    )


Place = tuple[int, int, str, str, str, str]


def _findings(
    rows: list[Row], waiting: list[Open], wakers: list[Waker], segments: pl.DataFrame, recording: Recording
) -> list[Finding]:
    """One finding per thread and place (state, system call, file series), the largest first; then what was normal."""
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
    contended = contended_ns(segments)
    found: list[Finding] = []
    for place, group in sorted(places.items(), key=lambda item: -sum(r.total_ms for r in item[1])):
        if sum(r.window_pct for r in group) < 1.0 and len(found) >= 10:
            break
        _, tid, _, state, syscall, series = place
        span = spans.get((tid, syscall), (0, window_ns))
        # the waits of one system call on several locks: one name for what most of its time was
        lock = syscall in FILE_LOCKS or contended.get((tid, syscall), 0) / 1e6 >= sum(r.total_ms for r in group) / 2
        waits_on = (tid, state, syscall, series) in still
        found.append(_finding(place, group, span, waits_on, by_waker.get((tid, syscall)), lock))
    # an idle pool of a hundred threads must not hide the one that is held up
    found.sort(key=lambda f: f.polarity is Polarity.NORMAL)
    return found[:_FINDINGS] + _normal(found, recording)


def _finding(
    place: Place, group: list[Row], span: tuple[int, int], still: bool, waker: Waker | None, lock: bool
) -> Finding:
    pid, tid, comm, state, syscall, series = place
    share = min(sum(r.window_pct for r in group), 100.0)
    kind, bad = _classify(state, syscall, bool(series), share, lock)
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
            attributes["waker"] = f"{waker.waker_comm} ({waker.waker_tid})"
    if kind == "offcpu.lock_wait" and lock:
        attributes["lock"] = "contended"
    return Finding(
        kind=kind,
        subject=Subject(
            type="thread",
            pid=pid,
            tid=tid,
            comm=comm,
            path=path_series({r.path for r in group}) or None,
        ),
        interval=Interval(start_ns=span[0], end_ns=span[1]),
        metrics=_metrics(group, share),
        attributes=attributes,
        severity=severity(share) if bad else Severity.INFO,
        polarity=Polarity.ABNORMAL if bad else Polarity.NORMAL,
    )


def _metrics(group: list[Row], share: float) -> dict[str, float]:
    metrics: dict[str, float] = {"total_ms": sum(r.total_ms for r in group), "window_pct": share}
    counts = [r.count for r in group if r.count is not None]
    longest = [r.max_ms for r in group if r.max_ms is not None]
    if len(counts) == len(group):
        metrics["count"] = sum(counts)
    if len(longest) == len(group):
        metrics["max_ms"] = max(longest)
    return metrics


def _line_most_waited(group: list[Row]) -> str:
    """The line of Python in which most of the time was waited; empty when it was in none."""
    waited: dict[str, float] = {}
    for row in group:
        line = python_line(row.user_stack)
        waited[line] = waited.get(line, 0.0) + row.total_ms
    return max(waited, key=lambda line: waited[line])


def _classify(state: str, syscall: str, on_file: bool, share: float, lock: bool) -> tuple[str, bool]:
    """Kind of a wait and whether it is abnormal. Waiting for input, work or time is not; only the victim can say that
    it hurts. A futex waits for work as often as for a lock: it counts as a lock only if it is known to be one.
    """
    if state == "R":
        return "offcpu.preempted", share >= _PREEMPTED_PCT
    if syscall in LOCK_SYSCALLS:
        return "offcpu.lock_wait", lock and share >= _LOCK_PCT
    waits_for_work = syscall in IDLE_SYSCALLS or not _held_up(state, syscall, on_file)
    return "offcpu.blocked", share >= _ABNORMAL_PCT and not waits_for_work


def _held_up(state: str, syscall: str, on_file: bool) -> bool:
    """Waiting for an operation to be done (a disk, a file server), not for work or time."""
    return state == "D" or (state != "R" and (on_file or syscall in ON_FILES))


def _spans(segments: pl.DataFrame) -> dict[tuple[int, str], tuple[int, int]]:
    spans = segments.group_by("tid", "syscall").agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    return {(r["tid"], r["syscall"]): (r["start_ns"], r["end_ns"]) for r in spans.iter_rows(named=True)}


def _normal(found: list[Finding], recording: Recording) -> list[Finding]:
    """Kinds of wait that were looked for in the whole target and take no abnormal share of any thread."""
    target = recording.manifest.target
    if target.everything or not recording.manifest.saw_everything("switches"):
        return []
    bad = {f.kind for f in found if f.polarity is Polarity.ABNORMAL}
    return [
        Finding(
            kind=kind,
            subject=Subject(type="thread", pid=target.sole_pid, comm=target.comm, cgroup=target.cgroup),
            interval=Interval(start_ns=0, end_ns=recording.manifest.window_ns),
            metrics={
                "count": sum(f.metrics.get("count", 1) for f in found if f.kind == kind),
                "window_pct": max((f.metrics["window_pct"] for f in found if f.kind == kind), default=0.0),
            },
            polarity=Polarity.NORMAL,
        )
        for kind in ("offcpu.blocked", "offcpu.lock_wait", "offcpu.preempted")
        if kind not in bad
    ]


def _folded(rows: list[Row]) -> ArtifactContent:
    """Folded stacks, outermost frame first, weights in microseconds: ``comm;user;...;kernel;... N``."""
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
        "threads blocked "
        "for the whole window included; who woke them on request. Folded stacks as an artifact."
    ),
    params=Params,
    data=Data,
    needs=_needs,
    judge=judge,
    kinds=frozenset({"offcpu.blocked", "offcpu.lock_wait", "offcpu.preempted"}),
    cost=4.0,
)
