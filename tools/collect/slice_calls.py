"""Calls of accelerators' libraries in the slices of a continuous recording, as a profile of a window.

Totals of whole slices: of a slice that is partly outside of the window, they count in proportion.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from whystall.bpf import layout as lay
from whystall.bpf.capture import Capture as BpfCapture
from whystall.bpf.python_code import UNKNOWN, PythonResult
from whystall.tools.collect.ebpf_collector import capture_of
from whystall.tools.collect.ebpf_symbols import SampleCalls
from whystall.tools.collect.frames import Call
from whystall.tools.collect.slice_log import Entry
from whystall.tools.collect.slice_parts import CALLS, calls_of, map_items
from whystall.tools.contract.text import clean
from whystall.tools.recording.collector import Capture
from whystall.tools.stacks.build import Builder
from whystall.tools.stacks.names import host_call_kind
from whystall.tools.stacks.recorded import CALLS as COLLECTOR
from whystall.tools.stacks.recorded import NUMBER, TIME

_KEY = lay.unpacker(lay.AcceleratorKey).size


def calls_capture(
    entries: Sequence[Entry], raw: BpfCapture, frames: SampleCalls, own: frozenset[int] | None
) -> Capture | None:
    """Return the capture of the collector ``accelerator`` in the window of `raw`, of the processes `own`; None: all.
    None if no call was recorded in it."""
    sums: dict[tuple[int, int, int, int], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for entry in entries:
        inside = min(entry.end_ns, raw.window_end) - max(entry.start_ns, raw.window_start)
        if entry.kind != CALLS or inside <= 0:
            continue
        share = inside / max(entry.end_ns - entry.start_ns, 1)
        items = map_items(*calls_of(entry.data), _KEY)
        for (stack, pid, tid, function, _), (count, took, _) in lay.decode(
            items, lay.AcceleratorKey, lay.AcceleratorTotal
        ):
            if own is None or pid in own:
                known = sums[stack, pid, tid, function]
                known[0] += count * share
                known[1] += took * share
    if not sums:
        return None
    builder = Builder()
    number, time = builder.event(NUMBER, "calls", 1.0), builder.event(TIME, "ns")
    for (pystack, pid, tid, function), (count, took) in sums.items():
        calls = frames.user(pid, 0, pystack) or [_frame(raw, function)]
        stack = builder.stack(builder.frame(*call) for call in calls)
        thread = raw.threads.get(tid)
        row = builder.thread(pid, tid, clean(thread.comm) if thread is not None else "")
        builder.sample(stack, number, float(round(count)), thread=row)
        builder.sample(stack, time, float(round(took)), thread=row)
    total = round(sum(count for count, _ in sums.values()))
    return capture_of(raw, COLLECTOR, dict(builder.profile("ebpf").tables), total, proven=total > 0, kept="samples")


def _frame(raw: BpfCapture, function: int) -> Call:
    """Return the frame of a function whose stack was lost."""
    code = raw.of(PythonResult).codes.get((0, function), UNKNOWN)
    return Call(clean(code.name), "", 0, host_call_kind(code.name))
