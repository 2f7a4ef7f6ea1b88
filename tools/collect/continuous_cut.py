"""Cut a recording out of the slices of a continuous one. Tools judge it like any other."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone

from whystall.bpf import layout as lay
from whystall.bpf.samples import Samples
from whystall.tools.collect.continuous_objects import look_at_objects, objects_capture
from whystall.tools.collect.continuous_proc import ProcLooks
from whystall.tools.collect.ebpf_calls import SwitchCollector
from whystall.tools.collect.ebpf_collector import capture_of
from whystall.tools.collect.ebpf_engine import EbpfEngine, session_result
from whystall.tools.collect.ebpf_symbols import Processes
from whystall.tools.collect.mounted import tables
from whystall.tools.collect.options import ProcOptions, SampleOptions, SwitchOptions
from whystall.tools.collect.proc_window import descendants, proc_capture
from whystall.tools.collect.procfs_engine import ProcfsEngine
from whystall.tools.collect.python_notes import python_notes
from whystall.tools.collect.samples_decode import sample_tables
from whystall.tools.collect.slice_calls import calls_capture
from whystall.tools.collect.slice_capture import Cutting, cut_window
from whystall.tools.collect.slice_log import Entry
from whystall.tools.collect.slice_parts import CODES, OBJECTS, PROC, RECORDS, of_this_version, slices_of
from whystall.tools.collect.slice_scan import split
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.node.containers import Containers
from whystall.tools.recording.assemble import assemble
from whystall.tools.recording.assignment import Assignment
from whystall.tools.recording.collector import Capture, Options
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target, alive, comm_of
from whystall.tools.stacks.recorded import CALLS as ACCELERATOR

_WHY = "cut out of a continuous recording"
_MARGIN_NS = 1_000_000_000  # snapshots of objects so close to the window count
_RECENT_NS = 60_000_000_000


def recording_of(entries: Sequence[Entry], start_ns: int, end_ns: int, pids: frozenset[int] | None = None) -> Recording:
    """Return the recording of a window (CLOCK_MONOTONIC) from the `entries` of a log, of all targets or of `pids`.

    The window is cut to what is kept. Raises `ToolError` (no_overlap) when that is nothing, or nothing of `pids`.
    """
    entries = of_this_version(entries)
    entries = [*entries, *_looks_now(entries, end_ns, pids)]
    own = descendants(entries, pids) if pids is not None else None
    cutting = cut_window(slices_of(entries), _codes(entries), start_ns, end_ns, own)
    if cutting is None:
        raise ToolError(ErrorCode.NO_OVERLAP, "nothing of that time is kept", "ask for a later time")
    if pids is not None and not pids & cutting.kinds.keys():
        which = ", ".join(map(str, sorted(pids)[:5]))
        raise ToolError(
            ErrorCode.NO_OVERLAP, f"process {which} was not recorded then", "`whystall doctor` shows what is watched"
        )
    raw = cutting.capture
    target = _target(cutting, pids)
    window_ns = raw.window_end - raw.window_start
    containers = Containers()
    containers.locate(target.pids)
    captures, options = _captures(cutting, target, entries, own)
    assigned = [(Assignment(EbpfEngine(), 0, options, dict.fromkeys(options, _WHY)), captures)]
    span = raw.window_start, raw.window_end
    read = {"proc": proc_capture(entries, *span, own), "objects": objects_capture(entries, *span, _MARGIN_NS)}
    looked: dict[str, Capture] = {name: capture for name, capture in read.items() if capture is not None}
    asked: dict[str, Options] = {"proc": ProcOptions(), "objects": Options()}
    assigned.append(
        (Assignment(ProcfsEngine(), 1, {name: asked[name] for name in looked}, dict.fromkeys(looked, _WHY)), looked)
    )
    made = assemble(
        assigned,
        target=target,
        started=datetime.now(timezone.utc) - timedelta(microseconds=(time.monotonic_ns() - raw.window_start) / 1000),
        start_ns=raw.window_start,
        window_ns=window_ns,
        requested_ns=max(end_ns - start_ns, window_ns),
        target_exited=not any(alive(pid) for pid in target.pids),
        left_out={},
        containers=containers,
    )
    made.manifest.observer = int(cutting.head.get("observer", 0))
    return made


def _looks_now(entries: Sequence[Entry], end_ns: int, pids: frozenset[int] | None) -> Iterator[Entry]:
    """Yield a look at /proc now, if the window has ended recently, and at objects, if just now and nobody else did."""
    now = time.monotonic_ns()
    if not 0 <= now - end_ns < _RECENT_NS:
        return
    last = next((one for one in reversed(slices_of(entries)) if one.head), None)
    kinds = last.head.get("pids", {}) if last is not None else {}
    targets = [int(pid) for pid, kind in kinds.items() if kind == lay.TRACED_TARGET]
    yield Entry(PROC, now, now, ProcLooks().look(targets, always=True))
    if now - end_ns < _MARGIN_NS and not any(
        one.kind == OBJECTS and one.end_ns >= end_ns - _MARGIN_NS for one in entries
    ):
        yield Entry(OBJECTS, now, now, look_at_objects(pids or targets))


def _codes(entries: Sequence[Entry]) -> Iterator[bytes]:
    """Yield the records of code objects in all `entries`."""
    for entry in entries:
        if entry.kind == RECORDS:
            data = entry.data
        elif entry.kind == CODES:
            data = zlib.decompress(entry.data)
        else:
            continue
        yield from (record for record in split(data) if record[0] == lay.RECORD_CODE)


def _target(cutting: Cutting, pids: frozenset[int] | None) -> Target:
    found = pids or frozenset(pid for pid, kind in cutting.kinds.items() if kind == lay.TRACED_TARGET)
    known = cutting.head.get("target", {})
    pid = known.get("pid") if known.get("pid") in found else next(iter(found)) if len(found) == 1 else None
    name = comm_of(pid if pid is not None else min(found, default=0)) or known.get("comm")
    whole = pids is None
    return Target(
        everything=False,
        pid=pid,
        comm=name or "?",
        cgroup=known.get("cgroup") if whole and pid is None else None,
        pids=sorted(found),
        follow=True,
    )


def _captures(
    cutting: Cutting, target: Target, entries: Sequence[Entry], own: frozenset[int] | None
) -> tuple[dict[str, Capture], dict[str, Options]]:
    raw = cutting.capture
    switches = SwitchOptions(cutting.min_ns, wakers=True, python=True, follow_wakers=True)
    samples = SampleOptions(cutting.sample_ns, python=True)
    processes = Processes()
    try:
        result = session_result(raw, processes, tables(target.pids))
        of_switches = SwitchCollector({"switches": switches}).capture(result)
        found = sample_tables(raw.of(Samples), raw.threads, result.calls, cutting.sample_ns)
        of_calls = calls_capture(entries, raw, result.calls, own)
    finally:
        processes.close()
    of_samples = capture_of(raw, "samples", found, raw.seen["samples"], raw.seen["ticks"] > 0, "samples")
    of_samples.events = frozenset({"samples"})
    of_samples.not_seen += python_notes(raw, switches=False)
    captures = {"switches": of_switches, "samples": of_samples}
    options: dict[str, Options] = {"switches": switches, "samples": samples}
    if of_calls is not None:
        captures[ACCELERATOR], options[ACCELERATOR] = of_calls, Options()
    if cutting.missing_ns:
        for capture in captures.values():
            capture.not_seen.append(("cut_short", f"{cutting.missing_ns / 1e6:.0f} ms"))
    return captures, options
