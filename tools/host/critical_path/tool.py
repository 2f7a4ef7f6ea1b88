"""critical_path: account for a thread's time, followed through the threads that it waited for."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from whystall.tools.collect.options import PATH_WAIT_NS, SampleOptions, SwitchOptions
from whystall.tools.contract.findings import Finding
from whystall.tools.contract.params import LiveParams
from whystall.tools.contract.registry import Judgement, Tool
from whystall.tools.contract.result import BlindSpot, Model
from whystall.tools.history.path_data import PathDifference
from whystall.tools.host.common.failed_calls import FailureRow, failed_calls
from whystall.tools.host.common.file_devices import FileDevices
from whystall.tools.host.common.path_codes import RUNNING
from whystall.tools.host.common.timelines import Timeline
from whystall.tools.host.critical_path.across import Across, across_of
from whystall.tools.host.critical_path.awaited_cpus import (
    bounds_of,
    explain_chain_ends,
    quota_findings,
)
from whystall.tools.host.critical_path.choose import Choice, choose_thread
from whystall.tools.host.critical_path.cpu_waits import explain_cpu_waits, real_time_hogs
from whystall.tools.host.critical_path.cpu_weights import weight_findings
from whystall.tools.host.critical_path.findings import (
    chain_text,
    lag_finding,
    main_actor,
    path_findings,
    pause_findings,
    root_label,
)
from whystall.tools.host.critical_path.folded import folded_path
from whystall.tools.host.critical_path.kills import explain_kills
from whystall.tools.host.critical_path.looks import PAUSES, calls_of, explain_looks, reads_each_time
from whystall.tools.host.critical_path.pauses import Lag, Pause, loop_lag, pauses_of, sample_period_ns
from whystall.tools.host.critical_path.read_locks import explain_read_locks
from whystall.tools.host.critical_path.real_time import real_time_findings
from whystall.tools.host.critical_path.retries import explain_busy_retries, explain_retries
from whystall.tools.host.critical_path.rows import Row, rows_of
from whystall.tools.host.critical_path.stacks import path_stacks
from whystall.tools.host.critical_path.standstill import explain_standstill
from whystall.tools.host.critical_path.unseen import unseen_processes
from whystall.tools.host.critical_path.walk import NOT_FOLLOWED
from whystall.tools.host.critical_path.world import World
from whystall.tools.host.critical_path.worlds import world_of
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording

REST = "rest"
# Report blind spots from this share of the window on, percent.
_NOTED_PCT = 2.0


class Params(LiveParams):
    """Parameters of critical_path."""

    tid: Annotated[int | None, Field(ge=1, le=4194304, description="thread id")] = None
    stands_still: Annotated[
        bool,
        Field(description="of a hang: also threads that stay in one wait"),
    ] = False
    peers: Annotated[
        str,
        Field(
            pattern=r"^(\d{1,7}(,\d{1,7}){0,31})?$",
            description="processes that it waits for, to record from the start: 812,813",
        ),
    ] = ""
    connections: Annotated[
        bool, Field(description="also what it did over time, and its connections: to follow waits across hosts")
    ] = False
    before: Annotated[
        str | None,
        Field(min_length=1, max_length=4096, description="earlier recording"),
    ] = None


class PathRow(Model):
    """A part of the thread's time. `what`: a wait (`path_codes.WAITS`), ``running``, ``absent``, or ``rest`` for all
    shorter rows; `mode`, `detail` as described there. `line`: in the program; `inner`: the innermost line of Python.
    `by`: who ended the waits, or had the CPU. `root_*`: what the thread at the end of `chain` did in `root_pct` of this
    time (`root_by_pct`: whatever its process did), `root_mode`: how it ran, `root_detail`: why it had no CPU. `open_s`:
    how long a wait that has not ended has lasted, at the end of the window. `cpus`: the only ones that the thread may
    use, where that matters. `between`, `between_object`: what little the thread does between its sleeps
    (`path_codes.ASKS` and so on), in `between_ms`. `growth`: of a function, by what factor its calls took longer in the
    last third of the window than in the first. `standstill`: ``yes`` if all threads of the job wait for each other."""

    what: str
    mode: str = ""
    detail: str = ""
    line: str = ""
    inner: str = ""
    role: str = ""
    object: str = ""
    window_pct: float
    total_ms: float
    count: int
    p50_ms: float | None = None
    max_ms: float | None = None
    by: str = ""
    chain: str = ""
    root: str = ""
    root_what: str = ""
    root_line: str = ""
    root_pct: float | None = None
    root_by_pct: float | None = None
    root_detail: str = ""
    root_mode: str = ""
    cpus: str = ""
    between: str = ""
    between_object: str = ""
    between_ms: float | None = None
    growth: float | None = None
    open_s: float | None = None
    standstill: str = ""


class PauseRow(Model):
    """A function of the program that the thread enters repeatedly, for a short time each."""

    function: str
    line: str
    count: int
    p50_ms: float
    max_ms: float
    period_s: float
    window_pct: float
    parts: list[str]


class LoopRow(Model):
    """The event loop: times between two waits for events. `line`: of the longest."""

    count: int
    p50_ms: float
    max_ms: float
    line: str
    mostly: str
    requests_in_flight: int | None


class ThreadRow(Model):
    """The thread accounted for, or the next best choice."""

    pid: int
    tid: int
    comm: str


class Data(Model):
    """The account of one thread; the rows sum to the window. `chosen_by`: why this one; `runner_up`: the next best.
    `unseen`: the processes outside of the target for which it waits for long, and that were not recorded meanwhile.
    `across`: on request, what is needed to follow its waits to other hosts. `compared`: with an earlier recording; None
    if there is none, or if it cannot be compared."""

    thread: ThreadRow | None = None
    chosen_by: str = ""
    runner_up: ThreadRow | None = None
    rows: list[PathRow] = Field(default_factory=list)
    pauses: list[PauseRow] = Field(default_factory=list)
    loop: LoopRow | None = None
    threads: int = 0
    unseen: list[int] = Field(default_factory=list)
    across: Across | None = None
    compared: PathDifference | None = None


def _needs(params: Params) -> list[Need]:
    peers = frozenset(int(pid) for pid in params.peers.split(",") if pid)
    switches = SwitchOptions(PATH_WAIT_NS, wakers=True, python=True, follow_wakers=True, peers=peers)
    return [
        Need("switches", switches, essential=("follow_wakers",)),
        Need("samples", SampleOptions(python=True), optional=True),
        Need("objects", optional=True),
        Need("proc", optional=True),
    ]


def judge(recording: Recording, params: Params) -> Judgement[Data]:
    """Account for the time of the chosen thread of `recording`."""
    world = world_of(recording)
    bounds = bounds_of(recording)
    choice = _choice(world, params, recording.manifest.target.pid)
    if choice is None:
        return Judgement(findings=[], data=Data(), seen=0)
    line = choice.line
    rows = explain_cpu_waits(recording, world, line, rows_of(world, line))
    explain_chain_ends(recording, world, rows, bounds)
    failures = _failures(recording, line, rows)
    explain_retries(world, rows, line.tid, failures, _comms(recording))
    explain_busy_retries(rows, line.tid, failures, calls_of(recording, line.tid))
    explain_looks(recording, world, line, rows)
    explain_kills(recording, world, rows)
    explain_read_locks(world, line, rows)
    explain_standstill(world, rows, hangs=params.stands_still)
    pauses = pauses_of(world, line, sample_period_ns(recording))
    lag = loop_lag(world, line)
    devices = FileDevices(recording)
    findings: list[Finding] = [devices.placed(one) for one in path_findings(world, line, rows)]
    findings += quota_findings(world, line, rows, bounds)
    findings += pause_findings(line, pauses, world.window_ns)
    findings += weight_findings(recording, world, line, rows)
    kept = line if any(row.detail == "real_time" for row in rows) else _kept_by_real_time(world, rows)
    if kept is not None:
        findings += real_time_findings(real_time_hogs(recording, kept), world.window_ns)
    if lag is not None:
        findings.append(lag_finding(line, lag, world.window_ns))
    compared, spots, changes = _compared(recording, line.tid, params.top)
    findings += changes
    return Judgement(
        findings=findings,
        data=Data(
            thread=_thread(line),
            chosen_by=choice.reason,
            runner_up=_thread(choice.runner_up) if choice.runner_up is not None else None,
            rows=_path_rows(world, rows, max(params.top, 10)),
            pauses=[_pause_row(pause, world.window_ns) for pause in pauses[: params.top]],
            loop=_loop_row(world, line, lag) if lag is not None else None,
            threads=len(world.lines),
            unseen=unseen_processes(world, line, rows, _followed(recording)),
            across=across_of(world, line) if params.connections else None,
            compared=compared,
        ),
        seen=sum(len(one.waits) + len(one.samples) for one in world.lines.values()),
        totals={"rows": len(rows), "pauses": len(pauses)},
        artifacts=[folded_path(path_stacks(world, line, rows))],
        not_seen=[*_not_seen(recording, world, line, rows), *((spot.code, spot.detail) for spot in spots)],
        basis=(world, line, rows),
    )


def _compared(recording: Recording, tid: int, top: int) -> tuple[PathDifference | None, list[BlindSpot], list[Finding]]:
    """Return by how much the path differs from that of the earlier recording, what is not known, and what changed."""
    if recording.before is None:
        return None, [], []
    from whystall.tools.history.path_changes import findings_of_path
    from whystall.tools.host.critical_path.step_accounts import path_difference

    found, spots = path_difference(recording.before, recording, top, tid)
    return found, spots, findings_of_path(found, 0, recording.manifest.window_ns) if found is not None else []


def _kept_by_real_time(world: World, rows: list[Row]) -> Timeline | None:
    """Return a thread at the end of a chain that real-time threads keep from its CPUs."""
    roots = (root[0] for row in rows if (root := row.root()) is not None)
    return next((world.lines[one.tid] for one in roots if one.code == "cpu" and one.detail == "real_time"), None)


def _failures(recording: Recording, line: Timeline, rows: list[Row]) -> list[FailureRow]:
    """Return the failing calls; without names that do not exist, if the thread reads something else each time."""
    rounds = sum(row.count for row in rows if row.code in PAUSES)
    reads = rounds > 0 and reads_each_time(recording, line.tid, rounds)
    return [one for one in failed_calls(recording) if not (reads and one.tid == line.tid and one.error == "ENOENT")]


def _comms(recording: Recording) -> dict[int, str]:
    return dict(recording.table("proc.processes").select("pid", "comm").iter_rows()) if recording.has("proc") else {}


def _followed(recording: Recording) -> frozenset[int]:
    """Return the processes outside of the target that were recorded for a part of the window."""
    table = recording.find("switches.followed")
    return frozenset(table["pid"].to_list()) if table is not None else frozenset()


def _choice(world: World, params: Params, root: int | None) -> Choice | None:
    tid = params.tid
    if tid is None:
        return choose_thread(world, root, stands_still=params.stands_still)
    line = world.lines.get(tid)
    return Choice(line, "requested", None) if line is not None else None


def _not_seen(recording: Recording, world: World, line: Timeline, rows: list[Row]) -> list[tuple[str, str]]:
    window = world.window_ns
    found = []
    unknown = sum(row.total_ns for row in rows if row.code == "unknown")
    cut = sum(took for row in rows for chain, took in row.chains.items() if chain[-1].code == NOT_FOLLOWED)
    unseen = sum(
        took for row in rows for chain, took in row.chains.items() if chain[-1].code == "unknown" and chain[-1].tid > 0
    )
    nowhere = sum(row.total_ns for row in rows if row.code == RUNNING and not row.line)
    if 100.0 * (unknown + cut) / window >= _NOTED_PCT:
        found.append(("path_cut", f"{100.0 * (unknown + cut) / window:.0f} %"))
    if 100.0 * unseen / window >= _NOTED_PCT:
        found.append(("wakers_not_observed", f"{100.0 * unseen / window:.0f} %"))
    if 100.0 * nowhere / window >= _NOTED_PCT:
        found.append(("running_line_unknown", f"{100.0 * nowhere / window:.0f} %"))
    driver = sum(row.total_ns for row in rows if row.code == RUNNING and row.place.in_driver)
    if 100.0 * driver / window >= _NOTED_PCT:
        found.append(("device_calls_unnamed", f"{100.0 * driver / window:.0f} %"))
    if not world.objects.recorded:
        found.append(("objects_not_read", ""))
    return found


def _thread(line: Timeline) -> ThreadRow:
    return ThreadRow(pid=line.pid, tid=line.tid, comm=line.comm)


def _path_rows(world: World, rows: list[Row], most: int) -> list[PathRow]:
    """Return the longest rows, and a last one for the rest."""
    left = rows[most:]
    total_ns = sum(row.total_ns for row in left)
    pct, count = 100.0 * total_ns / world.window_ns, sum(row.count for row in left)
    rest = [PathRow(what=REST, window_pct=pct, total_ms=total_ns / 1e6, count=count)] if left else []
    return [_path_row(world, row) for row in rows[:most]] + rest


def _path_row(world: World, row: Row) -> PathRow:
    root = row.root()
    return PathRow(
        what=row.code,
        mode=row.mode,
        detail=row.detail,
        line=row.line,
        inner=row.inner,
        role=row.role,
        object=world.objects.name(row.object),
        window_pct=100.0 * row.total_ns / world.window_ns,
        total_ms=row.total_ns / 1e6,
        count=row.count,
        p50_ms=row.typical_ns / 1e6 if row.took else None,
        max_ms=row.longest_ns / 1e6 if row.took else None,
        by=main_actor(row),
        chain=chain_text(world, row.chain()),
        root=root_label(world, row),
        root_what=root[0].code if root else "",
        root_line=root[0].line if root else "",
        root_pct=100.0 * root[1] / max(row.total_ns, 1) if root else None,
        root_by_pct=100.0 * row.root_owner_ns() / max(row.total_ns, 1) if root else None,
        root_detail=root[0].detail if root and root[0].code == "cpu" else "",
        root_mode=root[0].mode if root and root[0].code == RUNNING else "",
        cpus=row.cpus,
        between=row.between,
        between_object=row.between_object,
        between_ms=row.between_ns / 1e6 if row.between else None,
        growth=row.growth,
        open_s=row.open_ns / 1e9 if row.open_ns else None,
        standstill="yes" if row.standstill else "",
    )


def _pause_row(pause: Pause, window_ns: int) -> PauseRow:
    total = pause.parts.total() or 1
    return PauseRow(
        function=pause.name,
        line=pause.parts.most_common(1)[0][0][2],
        count=len(pause.episodes),
        p50_ms=pause.typical_ns / 1e6,
        max_ms=max(pause.lengths) / 1e6,
        period_s=pause.period_ns / 1e9,
        window_pct=100.0 * pause.total_ns / window_ns,
        parts=[
            f"{100.0 * took / total:.0f} % {code} {detail} at {text}".replace("  ", " ")
            for (code, detail, text), took in pause.parts.most_common(4)
        ],
    )


def _loop_row(world: World, line: Timeline, lag: Lag) -> LoopRow:
    return LoopRow(
        count=len(lag.lengths),
        p50_ms=lag.typical_ns / 1e6,
        max_ms=max(lag.lengths) / 1e6,
        line=lag.line,
        mostly=lag.code,
        requests_in_flight=world.objects.requests_in_flight(line.pid),
    )


TOOL = Tool(
    name="critical_path",
    title="Critical path",
    description=(
        "Where all time of the thread that makes progress went: the lines it ran, and what it waited for (lock, "
        "queue, socket, child, file, CPU ...), followed through threads and processes to what they did meanwhile. "
        "Recurring pauses, lag of an event loop."
    ),
    params=Params,
    data=Data,
    needs=_needs,
    judge=judge,
    kinds=frozenset(
        {
            *("path.running", "path.wait", "path.waker", "path.pause", "path.loop_lag"),
            *("sched.real_time", "cpu.outweighed", "cgroup.cpu_throttled", "step.change"),
        }
    ),
    cost=2.0,
)
