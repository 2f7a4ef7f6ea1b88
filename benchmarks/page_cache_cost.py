"""Measure the cost of tracing the page cache.

One process reads, writes and maps a file all the time, with different tracers. The peer records the same events through
tracefs, as trace-cmd and perf record do, without counting a reader. (cachestat of BCC and of libbpf-tools needs kprobes
and counts calls instead of pages; it does not run here.)
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from benchmarks import ours
from benchmarks.common import Condition, Metrics, Report, Row, Samples, Workload, interleave, no_tracer
from whystall.bpf.collectors.page_cache import PageCache
from whystall.bpf.session import Session, SessionConfig
from whystall.tools.collect.ftrace.tracefs import Tracefs, find
from whystall.tools.contract.errors import ToolError

_MIB = 64
# command: repetitions, description of one, pages per repetition
_COMMANDS = {
    "warm": (40_000, "cached 4 KiB pread", 1),
    "big": (512, "cached 1 MiB pread", 256),
    "cold": (512, "128 KiB pread, cold", 32),
    "write": (16_384, "4 KiB pwrite that dirties a clean page", 1),
    "fault": (16_384, "page touched in a new mapping", 1),
    "getppid": (100_000, "getppid", 0),
}
_EVENTS = (
    "filemap/mm_filemap_get_pages",
    "filemap/mm_filemap_map_pages",
    "filemap/mm_filemap_fault",
    "filemap/mm_filemap_add_to_page_cache",
    "filemap/mm_filemap_delete_from_page_cache",
    "writeback/writeback_dirty_folio",
)


@contextmanager
def _ours(target: int | None) -> Iterator[list[int]]:
    """Run the collector alone in this process."""
    targets = None if target is None else frozenset({target})
    with Session(SessionConfig(targets=targets), [PageCache()]):
        yield []


@contextmanager
def _recording(tracefs: Tracefs) -> Iterator[list[int]]:
    """Record the same events in an overwriting ring buffer of tracefs."""
    instance = tracefs.root / "instances" / f"whystall-bench-{os.getpid()}"
    instance.mkdir()
    try:
        for event in _EVENTS:
            if tracefs.has_event(event):
                (instance / "events" / event / "enable").write_text("1")
        yield []
    finally:
        instance.rmdir()


def _peer(conditions: dict[str, Condition], report: Report, undo: ExitStack) -> None:
    try:
        tracefs = find()
    except ToolError as error:
        report.notes.append(f"no peer: {error}")
        return
    undo.callback(tracefs.close)
    conditions["tracefs"] = lambda: _recording(tracefs)


def _measure(workload: Workload) -> Metrics:
    return {name: workload.run(f"{name} {times}")[0] for name, (times, *_) in _COMMANDS.items()}


def _rows(samples: Samples) -> list[Row]:
    rows = []
    for name, (_, what, pages) in _COMMANDS.items():
        base = samples.spread("none", name)
        rows.append(Row(f"{what}, without a tracer", "", base.text("ns")))
        for condition, scope in (("target", "this process"), ("host", "the whole host")):
            added = samples.added(condition, name, "none")
            ratio = samples.ratio(condition, name, "none")
            text = added.text("ns", sign=True)
            if pages > 1:
                text += f", per page {added.median / pages:+.1f}"
            peer, times = "", ""
            if "tracefs" in samples.by_condition and pages:
                other = samples.added("tracefs", name, "none")
                peer = f"tracefs: {other.text('ns', sign=True)}"
                times = f"{added.median / other.median:.2f}" if other.low > 0 else ""
            rows.append(Row(f"{what}, page_cache on {scope}", f"{text}, x{ratio.median:.2f}", peer, times))
    return rows


def _by_program(workload: Workload, condition: Condition) -> list[str]:
    notes = []
    for name, (times, what, _) in _COMMANDS.items():
        used = ours.run_times(condition, partial(workload.run, f"{name} {times}"), times // 40)
        notes.append(f"{what}: ns per run by the kernel's count: {used}")
    return notes


def run(rounds: int) -> Report:
    """Measure; nothing stays attached, whatever happens."""
    report = Report("Cost of tracing the page cache")
    with (
        tempfile.TemporaryDirectory(prefix="whystall-bench-") as place,
        ExitStack() as undo,
        Workload("page_reads.c", str(Path(place, "file")), str(_MIB)) as workload,
    ):
        conditions: dict[str, Condition] = {
            "none": no_tracer,
            "target": lambda: _ours(workload.pid),
            "host": lambda: _ours(None),
        }
        _peer(conditions, report, undo)
        samples = interleave(conditions, rounds, lambda _who, _tracers: _measure(workload))
        report.rows += _rows(samples)
        report.notes += _by_program(workload, conditions["host"])
    report.notes.append(f"a file of {_MIB} MiB; a process outside of the target costs the same")
    report.notes += samples.notes()
    return report
