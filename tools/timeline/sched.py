"""The scheduling trace: what ran where, wakeups, interrupts - from any tracer, in columns.

Instants end in ``_ns``: integer nanoseconds of the trace's clock (`SchedTrace.clock`), or since the start of the
recording once stored in one. No cell is null: an unknown instant is 0, another unknown number -1, an unknown text
empty. A thread is its `tid` (0: the idle thread of the CPU); names are a separate table, since threads rename
themselves and ids are reused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

_I, _N, _S, _B = pl.Int64, pl.Int32, pl.String, pl.Boolean

TABLES: dict[str, pl.Schema] = {
    # One context switch. `prev_state`: R S D T t X Z P I as the kernel prints them, "?" when unknown; `preempted`: it
    # was still runnable (R, R+). `prev_arrived_ns`: since when `prev` had this CPU by the scheduler's own account.
    "switches": pl.Schema(
        {
            "at_ns": _I,
            "cpu": _N,
            "prev_tid": _N,
            "prev_prio": _N,
            "prev_state": _S,
            "preempted": _B,
            "prev_arrived_ns": _I,
            "next_tid": _N,
            "next_prio": _N,
        }
    ),
    # `kind`: waking (in the waker's context), wakeup (queued on target_cpu), new. `context`: of the waker, one of task,
    # softirq, hardirq, nmi, or empty if unknown; `waker_tid` is the waker only in `task`.
    "wakeups": pl.Schema(
        {
            "at_ns": _I,
            "cpu": _N,
            "kind": _S,
            "waker_tid": _N,
            "context": _S,
            "tid": _N,
            "prio": _N,
            "target_cpu": _N,
        }
    ),
    "migrations": pl.Schema({"at_ns": _I, "cpu": _N, "tid": _N, "from_cpu": _N, "to_cpu": _N}),
    # Entry or exit of an interrupt (`vector`: its number) or softirq (`vector`: 0 HI .. 9 RCU), within thread `tid`.
    "interrupts": pl.Schema({"at_ns": _I, "cpu": _N, "tid": _N, "soft": _B, "entry": _B, "vector": _N, "name": _S}),
    # `nr` -1 when only the name is known, and the other way round. Arguments as signed 64-bit; `result` of an exit.
    "syscalls": pl.Schema(
        {
            "at_ns": _I,
            "cpu": _N,
            "tid": _N,
            "entry": _B,
            "nr": _N,
            "name": _S,
            "arg0": _I,
            "arg1": _I,
            "arg2": _I,
            "result": _I,
        }
    ),
    # `kind`: fork (`tid` made `other_tid`), exec, rename (`text`: the new name), exit.
    "tasks": pl.Schema({"at_ns": _I, "cpu": _N, "kind": _S, "tid": _N, "other_tid": _N, "text": _S}),
    # `kind`: idle (value: the state entered, -1 on leaving), frequency (kHz). `cpu`: the CPU it is about.
    "power": pl.Schema({"at_ns": _I, "cpu": _N, "kind": _S, "value": _I}),
    # `phase`: insert, issue, complete.
    "block": pl.Schema(
        {
            "at_ns": _I,
            "cpu": _N,
            "tid": _N,
            "phase": _S,
            "device": _S,
            "operation": _S,
            "sector": _I,
            "bytes": _I,
        }
    ),
    # What programs wrote into the trace (``trace_marker``, atrace). `kind`: begin and end of a section of the thread,
    # counter (its `value`), async_begin and async_end (`value`: the cookie that pairs them), instant. `pid`: as the
    # program gave it.
    "markers": pl.Schema({"at_ns": _I, "cpu": _N, "tid": _N, "kind": _S, "pid": _N, "name": _S, "value": _I}),
    # Where events are missing: `cpu` -1 means all. `lost` events, -1 when not counted. `why`: lost (reported by the
    # tracer), unseen (the events contradict each other: a switch is missing), rotated, stopped.
    "holes": pl.Schema({"start_ns": _I, "end_ns": _I, "cpu": _N, "lost": _I, "why": _S}),
    # A thread's name from `at_ns` on; `pid` the thread group, -1 when unknown.
    "names": pl.Schema({"at_ns": _I, "tid": _N, "pid": _N, "comm": _S}),
    # The host's clocks at instants of the capture, absolute (see `whystall.tools.timeline.clocks`).
    "clocks": pl.Schema({"mono": _I, "mono_raw": _I, "boot": _I, "real": _I, "error_ns": _I}),
}
"""The tables of a trace, and of the collector ``ftrace`` in a recording."""


@dataclass(frozen=True)
class Odd:
    """Lines that could not be read: their number, and the first few, escaped."""

    count: int = 0
    examples: tuple[str, ...] = ()


@dataclass(frozen=True)
class SchedTrace:
    """A whole trace. Every table of `TABLES` is there, sorted by its instant (ties in the order of the trace).

    `clock`: the tracer's name of its clock (``mono``, ``mono_raw``, ``local``, ``boot`` ...), empty when unknown.
    `cpus`: the traced ones. `start_ns`, `end_ns`: the span covered. `others`: number of events by name, of those
    without a table. `notes`: (blind spot code, detail) for what the trace cannot show.
    """

    tables: Mapping[str, pl.DataFrame]
    start_ns: int
    end_ns: int
    cpus: tuple[int, ...]
    clock: str = ""
    others: Mapping[str, int] = field(default_factory=dict)
    odd: Odd = Odd()
    notes: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for name, schema in TABLES.items():
            if self.tables[name].schema != schema:
                raise ValueError(f"table {name} does not have its columns")

    def table(self, name: str) -> pl.DataFrame:
        """Return the table called `name`, one of `TABLES`."""
        return self.tables[name]


def empty_tables() -> dict[str, pl.DataFrame]:
    """Return every table, without rows."""
    return {name: schema.to_frame() for name, schema in TABLES.items()}
