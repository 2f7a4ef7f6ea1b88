"""Build the findings of a thread's critical path."""

from __future__ import annotations

from collections.abc import Sequence

from whystall.tools.contract.findings import Finding, Interval, Subject
from whystall.tools.contract.text import path_series
from whystall.tools.host.common.findings import finding, severity, window
from whystall.tools.host.common.path_codes import RUNNING
from whystall.tools.host.common.timelines import Timeline
from whystall.tools.host.common.wait_kinds import runs_collectives
from whystall.tools.host.critical_path.looks import PAUSES
from whystall.tools.host.critical_path.pauses import Lag, Pause
from whystall.tools.host.critical_path.rows import ABSENT, KEPT_OFF, Row
from whystall.tools.host.critical_path.walk import MUTUAL, NOT_FOLLOWED, Step, label
from whystall.tools.host.critical_path.world import World

_ROWS = 24
_LEAST_PCT = 0.5
_ABNORMAL_PCT = 2.0
_WAKER_PCT = 3.0
# Threads of a chain that get a finding of their own, and kinds of what the process at its end did.
_STEPS, _ENDS = 4, 3
_PAUSES = 4
_STACK = 8
# Waits that are a thread's normal state: it has no work.
_NORMAL = frozenset({"events", ABSENT})
# Modes of running that are abnormal from this share of the window on, percent.
_MODES = {
    **{"system": 10.0, "spin": 10.0, "interrupt": 5.0, "garbage_collection": 5.0},
    **{"fault": 5.0, "swap_in": 5.0, "copy": 5.0},
}
# A thread that spends more than this in the bytecode of one function of the program has a function that is too slow;
# training and inference spend their time in native code, or in many functions. Percent of the window.
_HOT_PCT = 60.0
_SLACK_PCT = 0.5
_IN_TURN = 0.8
# Exchanging data for less than this share of the window is what a distributed job does, percent.
_EXCHANGE_PCT = 50.0
# A row is reported as spent for processes that came and went if they account for this share of it.
_MOSTLY = 0.5
_LAG_PCT = 2.0
# One thread stands for all that ended a row's waits if it ended this share of them.
_MAIN = 0.9
# A row is reported as not ended if open waits are this share of it; less is a wait that the window cut off.
_OPEN = 0.5


def path_findings(world: World, line: Timeline, rows: Sequence[Row]) -> list[Finding]:
    """Return a finding for each row of thread `line`, and for each thread on the main chain of its waits."""
    found: list[Finding] = []
    subject = Subject(type="thread", pid=line.pid, tid=line.tid, comm=line.comm)
    for row in rows[:_ROWS]:
        share = 100.0 * row.total_ns / world.window_ns
        if share < _LEAST_PCT or row.code == ABSENT:
            continue
        found.append(_row_finding(world, subject, row, share))
        found += _waker_findings(world, line, row)
    return found


def _row_finding(world: World, subject: Subject, row: Row, share: float) -> Finding:
    running = row.code == RUNNING
    bad = _running_is_bad(row, share) if running else not _is_normal(world, row, share) and share >= _ABNORMAL_PCT
    at_end = world.objects.threads.get(subject.tid or 0)
    # a file that is still being opened has no descriptor; its path is in the call's arguments
    opened = at_end["object"] if at_end is not None and row.code == "file" and row.open_ns else ""
    attributes = {
        "code": row.inner,
        "function": row.line,
        "stack": " > ".join(f.name for f in row.place.functions[-_STACK:]),
        "role": row.role,
        "object": world.objects.name(row.object) if row.object.startswith("socket:[") else row.object or opened,
        "detail": row.detail,
        "by": main_actor(row),
        "cpus": row.cpus,
    }
    if running:
        attributes["mode"] = row.mode
    else:
        attributes |= {"wait": row.code, "open": "yes" if row.open_ns >= _OPEN * row.total_ns else "no"}
        attributes |= {"between": row.between, "between_object": row.between_object}
        attributes["killed"] = "yes" if row.killed_ns >= _MOSTLY * row.total_ns else ""
        attributes["standstill"] = "yes" if row.standstill else ""
    metrics: dict[str, float | None] = {
        "window_pct": min(share, 100.0),
        "total_ms": row.total_ns / 1e6,
        "count": None if running else row.count,  # of what runs only samples are counted
        "max_ms": row.longest_ns / 1e6 if row.took else None,
        "p50_ms": row.typical_ns / 1e6 if row.took else None,
        "asked_ms": row.requested_ns / 1e6 if row.requested_ns is not None else None,
    }
    if running:
        known = row.interpreted_ns is not None
        metrics["interpreted_pct"] = 100.0 * (row.interpreted_ns or 0) / world.window_ns if known else None
        metrics["growth_ratio"] = row.growth
    if row.between:
        metrics["between_ms"] = row.between_ns / 1e6
    if row.code == "events" and world.serves(subject.pid or 0):
        metrics["requests_in_flight"] = world.objects.requests_in_flight(subject.pid or 0)
    root = row.root()
    if root is not None:
        step, took = root
        attributes |= {
            "chain": chain_text(world, row.chain()),
            "root_by": root_label(world, row),
            "root_code": step.line,
        }
        attributes |= {"root_wait": step.code, "root_object": world.objects.name(step.object)}
        attributes["root_detail"] = step.detail if step.code == "cpu" else ""
        same = row.code == step.code == "collective" and step.line == row.line
        attributes["root_same"] = "yes" if same else ""
        job, process = world.ranks.job(subject.pid or 0), world.pid_of(step.tid)
        attributes["root_outside"] = "yes" if process > 0 and process not in job else ""
        attributes["root_in_turn"] = "yes" if row.code == "collective" and _waits_in_turn(world, row, process) else ""
        # two senders may also wait for each other, each since the other one does not read
        linked = row.code == "socket" or (row.code == "socket_full" and step.code != "socket_full")
        mutual = step.detail == MUTUAL or (linked and _awaits(world, step, subject.pid or 0))
        attributes["root_mutual"] = "yes" if mutual else ""
        attributes["root_mode"] = step.mode if step.code == RUNNING else ""
        metrics["root_pct"] = 100.0 * took / max(row.total_ns, 1)
        metrics["root_by_pct"] = 100.0 * row.root_owner_ns() / max(row.total_ns, 1)
        brief = sum(took for chain, took in row.chains.items() if chain and world.is_brief(chain[-1].tid))
        attributes["brief"] = "yes" if brief >= _MOSTLY * row.total_ns else ""
    path = row.object or opened
    if path.startswith("/"):
        subject = subject.model_copy(update={"path": path_series({path}) or None})
    interval = Interval(start_ns=max(row.first_ns, 0), end_ns=row.last_ns) if row.last_ns else window(world.window_ns)
    return finding(
        "path.running" if running else "path.wait",
        subject,
        interval,
        metrics,
        severity(share) if bad else None,
        {name: text for name, text in attributes.items() if text},
    )


def _awaits(world: World, step: Step, pid: int) -> bool:
    """Return whether `step` is a wait for data from process `pid`, or for room to send to it, over a connection between
    both."""
    peer = world.objects.peer(step.object) if step.code in ("socket", "socket_full", "events") else None
    if peer is None or peer["pid"] != pid:
        return False
    # over a second connection it may send what the other one does not read
    return step.code != "socket_full" or world.objects.sole_connection(world.pid_of(step.tid), pid)


def _waits_in_turn(world: World, row: Row, process: int) -> bool:
    """Return whether the rank for which a row waits also waits for others about as long: ranks whose steps vary wait
    for each other in turn, and none of them is slow."""
    rank = world.ranks.rank_of(process)
    line = world.lines.get(rank) if rank is not None else None
    if line is None:
        return False
    waits = (wait for wait in line.waits if world.kind(line, wait).code == "collective")
    return sum(wait.awake_ns - wait.start_ns for wait in waits) >= _IN_TURN * row.total_ns


def _is_normal(world: World, row: Row, share: float) -> bool:
    """Return whether a wait is a thread's normal state: it has no work, sleeps until it looks for work again, or waits
    for data that threads of the ranks exchange meanwhile, for a part of the window."""
    if (row.code in _NORMAL and not row.standstill) or (row.code in PAUSES and row.between):
        return True
    return share < _EXCHANGE_PCT and _exchanges(world, row)


def _exchanges(world: World, row: Row) -> bool:
    """Return whether most of a wait for other ranks is spent in threads that exchange the data: no rank is late, and
    these threads have a CPU."""
    ends = [(step, took) for step, took in row.last_steps().items() if runs_collectives(world.comm(step.tid))]
    runs, lacks = (sum(took for step, took in ends if step.code == code) for code in (RUNNING, "cpu"))
    return row.code == "collective" and runs >= lacks and runs + lacks >= _MOSTLY * row.total_ns


def _running_is_bad(row: Row, share: float) -> bool:
    if row.mode in _MODES:
        return share >= _MODES[row.mode]
    return row.interpreted_ns is not None and share * row.interpreted_ns >= _HOT_PCT * row.total_ns


def _waker_findings(world: World, line: Timeline, row: Row) -> list[Finding]:
    """Return what the threads on the main chain of a row did, if they were observed; the one at the end comes first."""
    ends = row.ends()[:_ENDS]
    if not ends:
        return []
    steps = [*ends, *((step, row.passes(step)) for step in row.chain()[:-1][::-1])]
    found: list[Finding] = []
    for step, took in steps[: _STEPS + len(ends) - 1]:
        share = 100.0 * took / world.window_ns
        other = world.lines.get(step.tid)
        if share < _WAKER_PCT or other is None or step.code in (NOT_FOLLOWED, "unknown", "events"):
            continue
        if step.code == "cpu" and step.detail not in KEPT_OFF:
            continue
        # the two ends of a wait confirm each other only if an object links them
        via = "" if _is_presumed(world, line, row, other) else row.line
        attributes = {"code": step.line, "waiter": f"{line.comm} ({line.tid})", "via": via, "detail": step.detail}
        if step.code == RUNNING:
            attributes["mode"] = step.mode
        else:
            attributes |= {"wait": step.code, "object": world.objects.name(step.object)}
            # of a wait for a CPU `by` would be who had it
            attributes["by"] = "" if step.code == "cpu" else _awaited_label(world, row, step)
        path = step.object if step.code != RUNNING and step.object.startswith("/") else None
        made = finding(
            "path.waker",
            Subject(type="thread", pid=other.pid, tid=other.tid, comm=other.comm, path=path),
            window(world.window_ns),
            {"window_pct": min(share, 100.0), "total_ms": took / 1e6, "count": row.count},
            severity(share),
            {name: text for name, text in attributes.items() if text},
        )
        if not any(made.subject == one.subject and made.attributes == one.attributes for one in found):
            found.append(made)
    return found


def _awaited_label(world: World, row: Row, step: Step) -> str:
    """Return the thread that `step` of a chain waits for most, with the number of others; empty for none."""
    found = row.awaited(step)
    if not found:
        return ""
    (tid, took), others = found.most_common(1)[0], len(found) - 1
    text = thread_label(world, tid)
    return text if not others or took >= _MAIN * found.total() else f"{text} +{others}"


def _is_presumed(world: World, line: Timeline, row: Row, other: Timeline) -> bool:
    """Return whether most of the row timed out, so that nobody ended it, or has not ended and its chain reaches the
    process of `other` by a presumed step."""
    if row.timed_ns >= _MOSTLY * row.total_ns:
        return True
    if row.open_ns < _OPEN * row.total_ns:
        return False
    waiting = {line.tid, *(step.tid for step in row.chain())}
    return any(pid == other.pid and tid in waiting for tid, pid in world.presumed)


def pause_findings(line: Timeline, pauses: Sequence[Pause], window_ns: int) -> list[Finding]:
    """Return a finding for each of the longest pauses."""
    found = []
    for pause in pauses[:_PAUSES]:
        share = 100.0 * pause.total_ns / window_ns
        parts = pause.parts.total() or 1
        running = sum(took for (code, _, _), took in pause.parts.items() if code == RUNNING)
        main, took = pause.parts.most_common(1)[0]
        code, mode, text = main
        found.append(
            finding(
                "path.pause",
                Subject(type="thread", pid=line.pid, tid=line.tid, comm=line.comm),
                Interval(start_ns=pause.episodes[0][0], end_ns=max(end for _, end in pause.episodes)),
                {
                    "window_pct": share,
                    "total_ms": pause.total_ns / 1e6,
                    "count": len(pause.episodes),
                    "p50_ms": pause.typical_ns / 1e6,
                    "max_ms": max(pause.lengths) / 1e6,
                    "period_s": pause.period_ns / 1e9,
                    "running_pct": 100.0 * running / parts,
                    "waiting_pct": 100.0 * (parts - running) / parts,
                    "main_pct": 100.0 * took / parts,
                },
                severity(share),
                {
                    name: value
                    for name, value in {
                        "code": text,
                        "function": pause.name,
                        "main": mode if code == RUNNING else "",
                        "main_wait": code if code != RUNNING else "",
                    }.items()
                    if value
                },
            )
        )
    return found


def lag_finding(line: Timeline, lag: Lag, window_ns: int) -> Finding:
    """Return the finding about an event loop."""
    lengths = sorted(lag.lengths)
    late = 100.0 * lag.late_ns / window_ns
    bad = late >= _LAG_PCT
    return finding(
        "path.loop_lag",
        Subject(type="thread", pid=line.pid, tid=line.tid, comm=line.comm),
        Interval(start_ns=lag.longest[0], end_ns=lag.longest[1]),
        {
            "window_pct": late,
            "max_ms": lengths[-1] / 1e6,
            "p50_ms": lag.typical_ns / 1e6,
            "p99_ms": lengths[min(len(lengths) - 1, int(len(lengths) * 0.99))] / 1e6,
            "count": len(lengths),
        },
        severity(late) if bad else None,
        {name: text for name, text in {"code": lag.line, "main_wait": lag.code}.items() if text},
    )


def thread_label(world: World, tid: int) -> str:
    """Return a thread as text: ``python3 (812)``; of another process with its pid, ``worker (813 of 812)``."""
    line = world.lines.get(tid)
    if line is None:
        return f"{world.comm(tid)} ({tid})".lstrip() if tid else ""
    return label(line)


def root_label(world: World, row: Row) -> str:
    """Return the thread at the end of a row's chains as text, with the number of further processes it stands for."""
    found = row.root()
    others = row.alike(found[0]) if found is not None else 0
    label = thread_label(world, found[0].tid) if found is not None else ""
    return f"{label} +{others}" if others and label else label


def main_actor(row: Row) -> str:
    """Return who ended most of a row's waits, or had the CPU for most of them."""
    if not row.by:
        return ""
    (number, comm), took = row.by.most_common(1)[0]
    others = len(row.by) - 1
    text = f"{comm} ({number})".lstrip()
    return text if not others or took >= _MAIN * row.by.total() else f"{text} +{others}"


def chain_text(world: World, chain: Sequence[Step]) -> str:
    """Return a chain as text: ``worker (812) pipe at get (x.py:1) < decoder (815) running at``.

    Steps of one thread in a row, and repeated ones, are shown once.
    """
    texts: list[str] = []
    for step in chain:
        text = _step_text(world, step)
        if not texts or texts[-1] != text:
            texts.append(text)
    if len(texts) > _STACK:
        texts = [*texts[: _STACK // 2], "...", *texts[-_STACK // 2 :]]
    return " < ".join(texts)


def _step_text(world: World, step: Step) -> str:
    if step.code == NOT_FOLLOWED:
        return "..."
    does = step.mode if step.code == RUNNING and step.mode != "user" else step.code
    parts = [thread_label(world, step.tid), does, step.detail, step.line and f"at {step.line}"]
    if step.object and step.code != RUNNING:
        parts.append(f"of {world.objects.name(step.object)}")
    return " ".join(part for part in parts if part)
