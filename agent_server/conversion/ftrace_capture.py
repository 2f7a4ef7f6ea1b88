"""``ftrace record``: capture events into a file, and summarise the capture."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
from pydantic import BaseModel, ConfigDict

from whystall.tools.collect.engines import ENGINES
from whystall.tools.collect.ftrace.nspid import NamespacePids
from whystall.tools.collect.ftrace.options import Progress, Recorded, RecordOptions
from whystall.tools.collect.ftrace.recorder import check, record
from whystall.tools.collect.options import FtraceOptions
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.params import TargetParams
from whystall.tools.contract.result import BlindSpot
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import resolve
from whystall.tools.recording.window import observe
from whystall.tools.timeline.recorded import trace_of
from whystall.tools.timeline.sched import SchedTrace
from whystall.tools.timeline.writers import ftrace as ftrace_write

MAPPING = "pid_mapping.json"
_MOST_S = 600.0


class Loss(BaseModel):
    """Lost events of one CPU: overwritten by newer ones, or dropped."""

    model_config = ConfigDict(extra="forbid")

    cpu: int
    overrun: int
    dropped: int


class CaptureSummary(BaseModel):
    """A finished capture. `events` -1: not counted. `losses`: of CPUs that lost any. `stopped_by`: ``duration``,
    ``asked``, ``disk_guard`` or ``target_exited``. `stop_s` excludes `write_s`; None: not measured.
    """

    model_config = ConfigDict(extra="forbid")

    files: list[str]
    bytes: int
    span_s: float
    events: int
    lost: int
    losses: list[Loss]
    stopped_by: str
    engine: str
    why: str
    clock: str
    cpus: list[int]
    stop_s: float | None
    write_s: float
    pid_mapping: str | None
    not_seen: list[BlindSpot]


def capture(
    options: RecordOptions,
    output: Path,
    *,
    stop: Callable[[], bool],
    namespaces: bool = False,
    overwrite: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> CaptureSummary:
    """Record into `output` until the time is over or `stop` returns True.

    `namespaces`: also write the PIDs of containers' threads inside their namespaces to ``pid_mapping.json`` beside it.
    Raises `ToolError`: bad_argument if `output` exists and may not be overwritten; what `record` raises.
    """
    mapping = output.with_name(MAPPING) if namespaces else None
    _check_free(output, mapping, overwrite)
    namespace_pids = NamespacePids()

    def report(step: Progress) -> None:
        if namespaces:
            namespace_pids.update()
        if progress is not None:
            progress(step)

    if namespaces:
        namespace_pids.update()
    done = record(options, output, stop=stop, progress=report)
    if mapping is not None:
        namespace_pids.update()
        _write(mapping, namespace_pids.text())
    return _summary(done, mapping)


async def capture_with_bpf(
    options: RecordOptions,
    output: Path,
    *,
    stop: Callable[[], bool],
    overwrite: bool = False,
    progress: Callable[[float, float, str], None] | None = None,
) -> CaptureSummary:
    """Capture through BPF and write ftrace's text, for at most 600 s: events are kept in memory until the end.

    Raises `ToolError`: bad_argument for options that BPF does not offer; what a window raises.
    """
    check(options)
    for name, wrong in (
        ("another clock than mono", options.clock != "mono"),
        ("a ring, a stream or rotation", options.mode != "auto" or options.rotate_bytes > 0),
        ("PIDs of containers", options.in_namespace),
        ("more than one PID", len(options.pids) > 1),
    ):
        if wrong:
            raise ToolError(ErrorCode.BAD_ARGUMENT, f"the engine ebpf does not offer {name}", "use --engine tracefs")
    target = resolve(TargetParams(pid=next(iter(options.pids), None), children=options.children))
    _check_free(output, None, overwrite)
    _try_place(output)
    cpus = sum(1 << cpu for cpu in options.cpus)
    asked = FtraceOptions(frozenset(options.groups), cpus, not target.everything, options.buffer_kb)
    seconds = min(options.duration_s, _MOST_S) if options.duration_s > 0 else _MOST_S
    recording = await observe(
        [Need("ftrace", asked)], target, seconds, ENGINES, choice="ebpf", progress=progress, stop=stop
    )
    began = time.monotonic()
    trace = trace_of(recording, absolute=True)
    ftrace_write.write(trace, output)
    return _summary_of(recording, trace, output, time.monotonic() - began, "asked" if stop() else "duration")


def _check_free(output: Path, mapping: Path | None, overwrite: bool) -> None:
    for path in (output, mapping):
        if path is not None and not overwrite and path.is_file() and path.stat().st_size:
            raise ToolError(ErrorCode.BAD_ARGUMENT, f"{path} exists", "name a new file, or give --overwrite")


def _try_place(output: Path) -> None:
    """Raise `ToolError` (io_error), before the window, if `output` cannot be written."""
    made = not output.exists()
    try:
        output.open("ab").close()
        if made:
            output.unlink()
    except OSError as error:
        message = f"cannot write {output}: {error.strerror}"
        raise ToolError(ErrorCode.IO_ERROR, message, "name a file you can write") from None


def _summary_of(recording: Recording, trace: SchedTrace, output: Path, write_s: float, ended: str) -> CaptureSummary:
    manifest = recording.manifest
    entry = manifest.collectors["ftrace"]
    lost = trace.table("holes").filter(pl.col("why") == "lost").group_by("cpu").agg(pl.col("lost").sum())
    return CaptureSummary(
        files=[str(output)],
        bytes=output.stat().st_size,
        span_s=manifest.window_ns / 1e9,
        events=entry.kept,
        lost=entry.lost,
        losses=[Loss(cpu=cpu, overrun=0, dropped=count) for cpu, count in sorted(lost.iter_rows())],
        stopped_by="target_exited" if manifest.target_exited else ended,
        engine=entry.engine,
        why=entry.why,
        clock=trace.clock,
        cpus=list(trace.cpus),
        stop_s=None,
        write_s=write_s,
        pid_mapping=None,
        not_seen=entry.not_seen,
    )


def _summary(done: Recorded, mapping: Path | None) -> CaptureSummary:
    return CaptureSummary(
        files=[str(path) for path in done.files],
        bytes=done.bytes,
        span_s=(done.end_ns - done.start_ns) / 1e9,
        events=done.events,
        lost=done.lost,
        losses=[Loss(**vars(loss)) for loss in done.losses if loss.overrun or loss.dropped],
        stopped_by=done.stopped_by,
        engine=done.engine,
        why=done.why,
        clock=done.clock,
        cpus=list(done.cpus),
        stop_s=done.stop_s,
        write_s=done.write_s,
        pid_mapping=str(mapping) if mapping is not None else None,
        not_seen=[BlindSpot(code=code, detail=detail) for code, detail in done.notes],
    )


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        code = ErrorCode.DISK_FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else ErrorCode.IO_ERROR
        remedy = "the capture itself is written; free space and record again where containers' PIDs are needed"
        raise ToolError(code, f"cannot write {path}: {error.strerror}", remedy) from None
