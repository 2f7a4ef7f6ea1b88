"""Encode the scheduler's events as Perfetto's `FtraceEvent` messages, in bundles per CPU.

Field numbers: Perfetto's public protos/perfetto/trace/ftrace/*.proto.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import polars as pl

from whystall.tools.files.protobuf import message, number, text, varint
from whystall.tools.timeline.drawing.names import Names
from whystall.tools.timeline.lanes import build as lanes
from whystall.tools.timeline.sched import SchedTrace
from whystall.tools.timeline.writers.ftrace_lines import marker

BUNDLE_EVENTS = 4_000
_FLAGS = {"task": 0, "hardirq": 0x08, "softirq": 0x10, "nmi": 0x40}
"""`common_flags` of a trace entry: TRACE_FLAG_* of the kernel's include/linux/trace_events.h."""
_STATES = {"R": 0, "R+": 0x100, "S": 1, "D": 2, "T": 4, "t": 8, "X": 0x10, "x": 0x10, "Z": 0x20, "P": 0x40, "I": 0x80}
"""`prev_state` as kernels since 4.14 encode it in the event."""
_UNKNOWN_STATE = 0x4000
"""Above every known state, so that it is read as unknown."""
_WAKE_FIELD = {"waking": 20, "wakeup": 17, "new": 114}
_U32 = (1 << 32) - 1
NO_THREAD = (1 << 31) - 1
"""A thread number no kernel assigns (the largest is 4194304), named ``unknown`` in Perfetto."""
Encode = Callable[..., bytes]


class Bodies:
    """All of an event but its instant, encoded once for all equal events."""

    def __init__(self) -> None:
        self.known: list[bytes] = []

    def add(self, frame: pl.DataFrame, columns: list[str], encode: Encode) -> pl.DataFrame:
        """Return cpu, at_ns, body of the events in `frame`; `encode` takes the values of `columns`."""
        alike = frame.select(columns).unique(maintain_order=True).with_row_index("body", offset=len(self.known))
        self.known += [encode(*row) for row in alike.select(columns).iter_rows()]
        rows = frame.join(alike, on=columns, how="left", maintain_order="left", nulls_equal=True)
        return rows.select("cpu", "at_ns", pl.col("body").cast(pl.Int64))


def collect(trace: SchedTrace, inserted: pl.DataFrame, names: Names, bodies: Bodies) -> pl.DataFrame:
    """Return cpu, at_ns, body of all events and of the `inserted` switches, by CPU and instant, switches last."""
    frames = [*_tasks(trace, names, bodies), _migrations(trace, names, bodies), *_wakeups(trace, names, bodies)]
    frames += [_interrupts(trace, bodies), _syscalls(trace, bodies), _power(trace, bodies), _markers(trace, bodies)]
    frames += [_switches(trace.table("switches"), names, bodies), _switches(inserted, names, bodies)]
    return pl.concat(frames).sort("cpu", "at_ns", maintain_order=True)


def bundles(events: pl.DataFrame, known: list[bytes], losses: dict[int, list[int]], clock: int) -> Iterator[bytes]:
    """Yield `FtraceEventBundle` messages. `losses`: per CPU the instants after a hole: there a bundle starts that marks
    the loss. `clock`: an `FtraceClock`."""
    for (cpu,), rows in events.group_by("cpu", maintain_order=True):
        number_of_cpu = int(str(cpu))
        at = rows["at_ns"]
        cuts = {int(at.search_sorted(instant)) for instant in losses.get(number_of_cpu, ())}
        starts = sorted({*range(0, len(at), BUNDLE_EVENTS), *(cut for cut in cuts if cut < len(at))})
        for start, end in zip(starts, [*starts[1:], len(at)], strict=True):
            part = rows.slice(start, end - start)
            content = number(1, number_of_cpu) + (number(3, 1) if start in cuts else b"")
            content += number(5, clock) if clock else b""
            yield content + b"".join(_stamped(part["at_ns"].to_list(), part["body"].to_list(), known))


def _stamped(instants: list[int], of: list[int], known: list[bytes]) -> Iterator[bytes]:
    """Return the `FtraceEvent` fields of a bundle: an instant before each body."""
    for at, index in zip(instants, of, strict=True):
        body = known[index]
        stamp = varint(at)
        size = 1 + len(stamp) + len(body)
        yield (b"\x12" + bytes((size,)) if size < 128 else b"\x12" + varint(size)) + b"\x08" + stamp + body


def _body(tid: int, field: int, content: bytes, context: str = "") -> bytes:
    flags = number(5, _FLAGS[context]) if context in _FLAGS else b""
    return (number(2, tid) if tid >= 0 else b"") + flags + message(field, content)


def missing_switches(trace: SchedTrace) -> pl.DataFrame:
    """Return the missing switches, where `lanes` assumes them, out of an unknown state: without them Perfetto would
    extend the earlier thread to the next recorded switch. Where no thread is known, `NO_THREAD` runs."""
    on_cpu = lanes.cpu_slices(trace)
    on_cpu = on_cpu.with_columns(
        pl.when(pl.col("tid") < 0).then(NO_THREAD).otherwise("tid").cast(pl.Int32).alias("tid")
    )
    inserted = (pl.col("cpu").shift(-1) == pl.col("cpu")) & (pl.col("end_state") == "?")
    rows = on_cpu.with_columns(next_tid=pl.col("tid").shift(-1), next_prio=pl.col("prio").shift(-1)).filter(inserted)
    return rows.select(
        "cpu", "next_tid", "next_prio", at_ns="end_ns", prev_tid="tid", prev_prio="prio", prev_state=pl.lit("?")
    )


def _switches(switches: pl.DataFrame, names: Names, bodies: Bodies) -> pl.DataFrame:
    rows = names.comm(names.comm(switches, "prev_tid", "at_ns", "prev"), "next_tid", "at_ns", "next")
    rows = rows.with_columns(
        pl.when(pl.col(tid) == NO_THREAD).then(pl.lit("unknown")).otherwise(comm).alias(comm)
        for tid, comm in (("prev_tid", "prev"), ("next_tid", "next"))
    )

    def encode(*values: Any) -> bytes:
        prev, prev_tid, prev_prio, state, following, next_tid, next_prio = values
        content = text(1, prev) + number(2, prev_tid) + number(3, prev_prio)
        content += number(4, _STATES.get(state, _UNKNOWN_STATE))
        return _body(prev_tid, 4, content + text(5, following) + number(6, next_tid) + number(7, next_prio))

    columns = ["prev", "prev_tid", "prev_prio", "prev_state", "next", "next_tid", "next_prio"]
    return bodies.add(rows, columns, encode)


def _wakeups(trace: SchedTrace, names: Names, bodies: Bodies) -> Iterable[pl.DataFrame]:
    rows = names.comm(trace.table("wakeups"), "tid", "at_ns", "comm")

    def encode(kind: str, waker: int, context: str, tid: int, prio: int, target: int, comm: str) -> bytes:
        content = text(1, comm) + number(2, tid) + number(3, prio) + number(4, 1) + number(5, target)
        return _body(waker, _WAKE_FIELD[kind], content, context)

    rows = rows.filter(pl.col("kind").is_in(list(_WAKE_FIELD)))
    yield bodies.add(rows, ["kind", "waker_tid", "context", "tid", "prio", "target_cpu", "comm"], encode)


def _migrations(trace: SchedTrace, names: Names, bodies: Bodies) -> pl.DataFrame:
    rows = names.comm(trace.table("migrations"), "tid", "at_ns", "comm")

    def encode(tid: int, origin: int, target: int, comm: str) -> bytes:
        return _body(-1, 491, text(1, comm) + number(2, tid) + number(4, origin) + number(5, target))

    return bodies.add(rows, ["tid", "from_cpu", "to_cpu", "comm"], encode)


def _interrupts(trace: SchedTrace, bodies: Bodies) -> pl.DataFrame:
    def encode(tid: int, soft: bool, entry: bool, vector: int, name: str) -> bytes:
        if soft:
            return _body(tid, 24 if entry else 25, number(1, vector))
        content = number(1, vector) + (text(2, name) if entry else number(2, 1))
        return _body(tid, 36 if entry else 37, content)

    return bodies.add(trace.table("interrupts"), ["tid", "soft", "entry", "vector", "name"], encode)


def _syscalls(trace: SchedTrace, bodies: Bodies) -> pl.DataFrame:
    """Return those whose number is known: Perfetto names them by it."""

    def encode(tid: int, entry: bool, nr: int, arg0: int, arg1: int, arg2: int, result: int) -> bytes:
        if not entry:
            return _body(tid, 330, number(1, nr) + number(2, result))
        return _body(tid, 329, number(1, nr) + b"".join(number(2, arg) for arg in (arg0, arg1, arg2)))

    rows = trace.table("syscalls").filter(pl.col("nr") >= 0)
    return bodies.add(rows, ["tid", "entry", "nr", "arg0", "arg1", "arg2", "result"], encode)


def _power(trace: SchedTrace, bodies: Bodies) -> pl.DataFrame:
    def encode(cpu: int, kind: str, value: int) -> bytes:
        return _body(0, 13 if kind == "idle" else 11, number(1, value & _U32) + number(2, cpu))

    rows = trace.table("power").filter(pl.col("kind").is_in(["idle", "frequency"]))
    return bodies.add(rows, ["cpu", "kind", "value"], encode)


def _markers(trace: SchedTrace, bodies: Bodies) -> pl.DataFrame:
    """Return `PrintFtraceEvent`, whose text Perfetto parses itself."""

    def encode(tid: int, words: str) -> bytes:
        return _body(tid, 5, text(2, words + "\n"))

    return bodies.add(trace.table("markers").with_columns(words=marker()), ["tid", "words"], encode)


def _tasks(trace: SchedTrace, names: Names, bodies: Bodies) -> Iterable[pl.DataFrame]:
    rows = trace.table("tasks").with_columns(before_ns=pl.col("at_ns") - 1)
    rows = names.comm(names.comm(rows, "tid", "before_ns", "comm"), "other_tid", "at_ns", "other")

    def encode(kind: str, tid: int, other: int, label: str, comm: str, other_comm: str) -> bytes:
        if kind == "fork":
            content = text(1, comm) + number(2, tid) + text(3, other_comm) + number(4, other)
            return _body(tid, 239, content)
        if kind == "exec":
            return _body(tid, 237, text(1, label) + number(2, tid) + number(3, tid))
        if kind == "rename":
            return _body(-1, 236, number(1, tid) + text(2, comm) + text(3, label))
        return _body(tid, 238, text(1, comm) + number(2, tid))

    yield bodies.add(rows, ["kind", "tid", "other_tid", "text", "comm", "other"], encode)
