"""lock_wait: which threads wait for which lock, who holds it, and at which line."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from whystall.tools.collect.options import SAMPLE_NS, SampleOptions, SwitchOptions
from whystall.tools.contract.params import LiveParams, MinMs
from whystall.tools.contract.registry import Judgement, Tool
from whystall.tools.contract.result import Model
from whystall.tools.host.common.deadlocks import deadlock_findings
from whystall.tools.host.common.lock_groups import Evidence, Group, What, groups_of, main_activity
from whystall.tools.host.common.missing_frames import complete_places
from whystall.tools.host.common.objects import objects_of
from whystall.tools.host.common.thread_states import ThreadStates, thread_states_of
from whystall.tools.host.common.timelines import Timeline, timelines
from whystall.tools.host.lock_wait.findings import Held, findings_of
from whystall.tools.host.lock_wait.interpreter import Share, shares
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording

_WAITERS = 5


class Params(LiveParams):
    """Parameters of lock_wait."""

    min_ms: MinMs = 0.1


class WaiterRow(Model):
    """The waits of one thread. `open_ms`: duration of a wait that has not ended."""

    tid: int
    comm: str
    code: str
    count: int
    total_ms: float
    max_ms: float
    open_ms: float | None


class Row(Model):
    """Waits on one object. `kind`: lock, queue (a thread hands over work), barrier, join, interpreter, file, or
    unknown; `evidence`: memory (the owner was read), function (that waits), passes (waiters end each other's waits),
    program_line, call, none. `holder`: the thread that ended most of the waiting, or that has the lock; `holder_doing`,
    `holder_code`: what it did while others waited, and where; `holder_pct`: share of the waiting that it accounts
    for."""

    kind: What
    evidence: Evidence
    pid: int
    object: str
    threads: int
    count: int
    total_ms: float
    max_ms: float
    window_pct: float
    holder: str
    holder_doing: str
    holder_code: str
    holder_pct: float | None
    waiters: list[WaiterRow] = Field(default_factory=list)


class InterpreterRow(Model):
    """A thread's share of a process's interpreter lock, in percent of the window. `held_pct`: while others waited for
    it; `samples_pct`: the same by CPU samples."""

    pid: int
    tid: int
    comm: str
    held_pct: float
    samples_pct: float | None
    waited_pct: float
    code: str


class Data(Model):
    """Longest waiting first."""

    rows: list[Row] = Field(default_factory=list)
    interpreters: list[InterpreterRow] = Field(default_factory=list)


def _needs(params: Params) -> list[Need]:
    options = SwitchOptions(int(params.min_ms * 1e6), wakers=True, python=True)
    samples = SampleOptions(python=True)
    return [Need("switches", options), Need("objects", optional=True), Need("samples", samples, optional=True)]


def judge(recording: Recording, params: Params) -> Judgement[Data]:
    """Judge the waits for locks in `recording`."""
    window_ns = max(recording.manifest.window_ns, 1)
    lines, objects = timelines(recording), objects_of(recording)
    complete_places(lines.values())
    known = thread_states_of(recording) if recording.has("objects") else None
    groups = groups_of(lines, objects, known)
    sample_ns = _sample_ns(recording)
    held = {id(g): _held(g, lines, known, sample_ns) for g in groups}
    parts = {id(g): shares(g, lines, window_ns, sample_ns) for g in groups if g.what == "interpreter"}
    rows = [_row(g, held[id(g)], window_ns) for g in groups]
    interpreters = [_interpreter(share) for own in parts.values() for share in own]
    findings = deadlock_findings(known, recording) if known is not None else []
    findings += findings_of(recording, groups, held, parts)
    return Judgement(
        findings=findings,
        data=Data(rows=rows[: params.top], interpreters=interpreters[: params.top]),
        seen=sum(w.count for g in groups for w in g.waiters.values()),
        totals={"rows": len(rows), "interpreters": len(interpreters)},
        not_seen=[] if known is not None else [("less_told", "objects")],
    )


def _sample_ns(recording: Recording) -> float:
    """Return the time between two samples of a CPU."""
    if not recording.has("samples") or recording.table("samples.events").is_empty():
        return SAMPLE_NS
    period = float(recording.table("samples.events")["period"][0])
    return period if period > 0 else SAMPLE_NS


def _held(group: Group, lines: Mapping[int, Timeline], known: ThreadStates | None, sample_ns: float) -> Held:
    """Return the holder of a lock: the owner read from memory if a thread still waits, else who ended most waiting of
    the thread that waits longest. The interpreter lock changes hands too often for its last owner to matter."""
    ended_by = group.ended_by(group.longest) or group.ended_by()
    owner = None if group.what == "interpreter" and ended_by else _owner(group, known)
    tid = owner if owner is not None else ended_by.most_common(1)[0][0] if ended_by else None
    if tid is None:
        return _file_holder(group, known) if group.what == "file" and known is not None else Held()
    waited = group.longest.total_ns if group.ended_by(group.longest) else group.total_ns
    pct = 100 * ended_by[tid] / max(waited, 1) if ended_by[tid] else None
    line = lines.get(tid)
    if line is not None and ended_by[tid]:
        spans = [(p.start_ns, p.end_ns) for p in group.ended if p.tid == tid]
        did = main_activity(line, spans, {group.word}, sample_ns)
        doing, code = (did.doing, did.code) if did is not None else ("", "")
        return Held(tid, f"{line.comm} ({tid})", doing, code, pct, owner)
    thread = known.threads.get(tid) if known is not None else None
    if thread is None:
        return Held(tid, f"({tid})", pct=pct, owner=owner)
    return Held(tid, thread.name, thread.kind.code, thread.place.line, pct, owner)


def _owner(group: Group, known: ThreadStates | None) -> int | None:
    """Return the thread that has the lock for which a thread of the group waits at the end."""
    if known is None or group.what in ("queue", "barrier"):
        return None
    for tid in group.waiters:
        thread = known.threads.get(tid)
        if thread is None or thread.owner_tid is None:
            continue
        if thread.lock == group.word or (group.what, thread.kind.code) == ("interpreter", "interpreter_lock"):
            return thread.owner_tid
    return None


def _file_holder(group: Group, known: ThreadStates) -> Held:
    for waiter in group.waiters.values():
        pid = known.objects.lock_holder(waiter.line.pid)
        if pid is not None and pid > 0:
            threads = known.of_process(pid)
            lines = [t for t in threads if t.place.line]
            name = f"{known.comms.get(pid, '')} ({pid})".strip()
            one = lines[0] if len(lines) == 1 else None
            return Held(pid, name, one.kind.code if one else "", one.place.line if one else "", None, pid)
    return Held()


def _row(group: Group, held: Held, window_ns: int) -> Row:
    most = sorted(group.waiters.values(), key=lambda w: -w.total_ns)
    return Row(
        kind=group.what,
        evidence=group.evidence,
        pid=most[0].line.pid,
        object=group.path or f"0x{group.word:x}",
        threads=len(most),
        count=sum(w.count for w in most),
        total_ms=group.total_ns / 1e6,
        max_ms=max(w.max_ns for w in most) / 1e6,
        window_pct=min(100.0, 100 * most[0].total_ns / window_ns),
        holder=held.name,
        holder_doing=held.doing,
        holder_code=held.code,
        holder_pct=held.pct,
        waiters=[
            WaiterRow(
                tid=w.line.tid,
                comm=w.line.comm,
                code=w.code,
                count=w.count,
                total_ms=w.total_ns / 1e6,
                max_ms=w.max_ns / 1e6,
                open_ms=w.open_ns / 1e6 if w.open_ns else None,
            )
            for w in most[:_WAITERS]
        ],
    )


def _interpreter(share: Share) -> InterpreterRow:
    return InterpreterRow(
        pid=share.line.pid,
        tid=share.line.tid,
        comm=share.line.comm,
        held_pct=share.held_pct,
        samples_pct=share.samples_pct,
        waited_pct=share.waited_pct,
        code=share.code,
    )


TOOL = Tool(
    name="lock_wait",
    title="Lock waits",
    description=(
        "Which threads wait for which lock, how long, and who holds it at which line: mutexes, Python's locks, file "
        "locks; the interpreter lock with each thread's share; deadlocks."
    ),
    params=Params,
    data=Data,
    needs=_needs,
    judge=judge,
    kinds=frozenset({"lock.wait", "lock.held", "lock.interpreter", "lock.deadlock", "lock.file"}),
    cost=4.0,
)
