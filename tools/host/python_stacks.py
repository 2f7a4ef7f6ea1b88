"""python_stacks: list what all Python threads of a target do at one instant, and for whom they wait."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

from pydantic import Field

from whystall.tools.contract.findings import Finding, Severity, Subject
from whystall.tools.contract.params import LiveParams
from whystall.tools.contract.registry import ArtifactContent, Judgement, Tool
from whystall.tools.contract.result import Model
from whystall.tools.host.common.deadlocks import deadlock_findings
from whystall.tools.host.common.findings import finding, window
from whystall.tools.host.common.thread_states import ThreadState, ThreadStates, merged, thread_states_of
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording

_STOPPED = ("stopped", "traced", "frozen")
_LISTED = 6
_LINES = 20_000


class Params(LiveParams):
    """Parameters of python_stacks."""

    duration: Annotated[float, Field(ge=0.1, le=600, description="seconds between the two readings")] = 0.5
    native: Annotated[bool, Field(description="also threads without a Python stack")] = False


class Row(Model):
    """Threads that do the same at the same place. `doing`: ``running``, or what they wait for. `whom`: the holder of
    what they wait for, with its line. `lasting`: they waited for the same at the snapshot before. `stack`: outermost
    last."""

    threads: int
    processes: int
    pid: int
    tid: int
    comm: str
    doing: str
    detail: str
    object: str
    whom: str
    line: str
    holds_interpreter_lock: bool
    lasting: bool
    tids: list[int]
    stack: list[str]


class ProcessRow(Model):
    """A process. `interpreter_lock`: the thread that holds it, with its line; empty: nobody, or unknown."""

    pid: int
    comm: str
    python: str
    threads: int
    python_threads: int
    interpreter_lock: str


class Data(Model):
    """Running threads first, then by number of threads."""

    rows: list[Row] = Field(default_factory=list)
    processes: list[ProcessRow] = Field(default_factory=list)


def judge(recording: Recording, params: Params) -> Judgement[Data]:
    """Return the threads at the end of `recording`."""
    known = thread_states_of(recording)
    threads = [t for t in known.threads.values() if t.frames or params.native]
    groups = merged(threads)
    rows = [_row(group, known) for group in groups]
    pids = list(dict.fromkeys(t.pid for t in known.threads.values()))
    processes = [_process(pid, known) for pid in pids]
    findings = deadlock_findings(known, recording) + _stopped(known, recording)
    dump = "\n".join(_dump(known, pids))
    return Judgement(
        findings=findings,
        data=Data(rows=rows[: params.top], processes=processes[: params.top]),
        seen=len(known.threads),
        totals={"rows": len(rows), "processes": len(processes)},
        artifacts=[ArtifactContent("python-stacks.txt", "Stacks of all threads", "text/plain", dump + "\n")],
    )


def _row(group: Sequence[ThreadState], known: ThreadStates) -> Row:
    first = group[0]
    return Row(
        threads=len(group),
        processes=len({t.pid for t in group}),
        pid=first.pid,
        tid=first.tid,
        comm=first.comm,
        doing=first.kind.code,
        detail=first.kind.detail,
        object=known.objects.name(first.object),
        whom=known.whom(first),
        line=first.place.line,
        holds_interpreter_lock=any(t.holds_interpreter_lock for t in group),
        lasting=all(t.lasting for t in group),
        tids=[t.tid for t in group[:_LISTED]],
        stack=list(first.frames),
    )


def _process(pid: int, known: ThreadStates) -> ProcessRow:
    threads = known.of_process(pid)
    holder = next((t for t in threads if t.holds_interpreter_lock), None)
    text = "" if holder is None else f"{holder.name} at {holder.place.line}" if holder.place.line else holder.name
    return ProcessRow(
        pid=pid,
        comm=known.comms.get(pid, ""),
        python=known.versions.get(pid, ""),
        threads=len(threads),
        python_threads=sum(1 for t in threads if t.frames),
        interpreter_lock=text,
    )


def _stopped(known: ThreadStates, recording: Recording) -> list[Finding]:
    """Return a finding per process whose threads are stopped, traced, or in a frozen cgroup."""
    groups: dict[tuple[int, str], list[ThreadState]] = {}
    for thread in known.threads.values():
        if thread.kind.code in _STOPPED:
            groups.setdefault((thread.pid, thread.kind.code), []).append(thread)
    found = []
    for (pid, code), threads in sorted(groups.items()):
        subject = Subject(type="process", pid=pid, comm=known.comms.get(pid, threads[0].comm))
        metrics = {"threads": len(threads)}
        interval = window(recording.manifest.window_ns)
        found.append(finding("process.stopped", subject, interval, metrics, Severity.CRITICAL, {"wait": code}))
    return found[:20]


def _dump(known: ThreadStates, pids: Sequence[int]) -> Iterator[str]:
    """Yield the lines of a dump: processes, and their threads with stacks, innermost frame first, equal ones merged."""
    lines = 0
    for pid in pids:
        row = _process(pid, known)
        held = f", interpreter lock held by {row.interpreter_lock}" if row.interpreter_lock else ""
        version = f"Python {row.python}" if row.python else "no Python stacks"
        yield f"Process {pid}: {row.comm}, {version}, {row.threads} threads{held}"
        for group in merged(known.of_process(pid)):
            if lines > _LINES:
                yield "..."
                return
            for line in _group(group, known):
                lines += 1
                yield line
        yield ""


def _group(group: Sequence[ThreadState], known: ThreadStates) -> Iterator[str]:
    first = group[0]
    numbers = ", ".join(str(t.tid) for t in group[:_LISTED]) + (", ..." if len(group) > _LISTED else "")
    count = f"{len(group)} threads ({numbers})" if len(group) > 1 else f"Thread {numbers}"
    doing = first.kind.code if first.kind.code == "running" else f"waiting: {first.kind.code}"
    whom = known.whom(first)
    of = known.objects.name(first.object)
    parts = [doing, first.kind.detail, of, f"held by {whom}" if whom else ""]
    if first.holds_interpreter_lock:
        parts.append("holds the interpreter lock")
    yield f"{count} {first.comm}: {', '.join(part for part in parts if part)}"
    yield from (f"    {frame}" for frame in first.frames or first.kernel)


TOOL = Tool(
    name="python_stacks",
    title="Python stacks",
    description=(
        "What every Python thread of the target does at one instant, without stopping it: stack, state, what it "
        "waits for and who holds it, and who holds the interpreter lock; equal stacks merged. Deadlocks and stopped "
        "processes."
    ),
    params=Params,
    data=Data,
    needs=lambda params: [Need("objects")],
    judge=judge,
    kinds=frozenset({"lock.deadlock", "process.stopped"}),
    cost=0.5,
)
