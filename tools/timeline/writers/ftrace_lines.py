"""The tables of a trace as lines of ftrace's text."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from whystall.tools.timeline.drawing.names import Names, joined
from whystall.tools.timeline.sched import SchedTrace

LINES = pl.Schema({"at_ns": pl.Int64, "rank": pl.Int32, "line": pl.String})
"""`rank`: the order at one instant."""
_LETTERS = {"begin": "B", "end": "E", "counter": "C", "async_begin": "S", "async_end": "F", "instant": "I"}
Tables = Mapping[str, pl.DataFrame]
_U64 = (1 << 64) - 1
# TRACE_FLAG_*: irqs off, need resched, context, preempt depth, migration disabled
_FLAGS = {"hardirq": "d.h..", "softirq": "..s..", "nmi": "d.z..", "task": "....."}
_EVENTS = {"waking": "sched_waking", "wakeup": "sched_wakeup", "new": "sched_wakeup_new"}


def lines(tables: Tables, names: Names, groups: bool) -> list[pl.DataFrame]:
    """Return `LINES` of all events. `groups`: with the column of thread groups."""
    events = (_tasks, _migrations, _wakeups, _syscalls, _block, _interrupts, _power, _markers, _switches)
    return [_finished(build(tables, names), names, rank, groups) for rank, build in enumerate(events, 1)]


def loss_lines(trace: SchedTrace, unseen_as_lost: bool) -> pl.DataFrame:
    """Return `LINES` for lost events: before the first event after each hole of a CPU."""
    holes = trace.table("holes")
    if not unseen_as_lost:
        holes = holes.filter(pl.col("why") != "unseen")
    every = (
        holes.filter(pl.col("cpu") < 0)
        .drop("cpu")
        .join(pl.DataFrame({"cpu": list(trace.cpus)}, schema={"cpu": pl.Int32}), how="cross")
    )
    holes = pl.concat([holes.filter(pl.col("cpu") >= 0), every.select(holes.columns)])
    counted = pl.when(pl.col("lost") >= 0).then(joined("CPU:% [LOST % EVENTS]", _n("cpu"), _n("lost")))
    plain = joined("CPU:% [LOST EVENTS]", _n("cpu"))
    began = joined("##### CPU % buffer started ####", _n("cpu"))
    # nothing was kept before: the kernel uses other words then
    first = (pl.col("why") == "rotated") & (pl.col("start_ns") <= trace.start_ns)
    line = pl.when(first).then(began).otherwise(pl.coalesce(counted, plain))
    return holes.sort("end_ns").select(at_ns="end_ns", rank=pl.lit(0, pl.Int32), line=line)


def _finished(events: pl.DataFrame, names: Names, rank: int, groups: bool) -> pl.DataFrame:
    """Add heads to events (at_ns, cpu, running, flags, event). `running` is 0 where the thread is unknown."""
    events = names.comm(
        events.with_columns(pl.max_horizontal("running", pl.lit(0, pl.Int32)).alias("running")),
        "running",
        "at_ns",
        "comm",
    )
    comm = pl.when(pl.col("running") == 0).then(pl.lit("<idle>")).otherwise("comm")
    parts = [
        comm.str.pad_start(16), pl.lit("-"), _n("running").str.pad_end(7),
        pl.lit(" ["), _n("cpu").str.zfill(3), pl.lit("] "),
        pl.col("flags"), pl.lit(" "), (pl.col("at_ns") // 1_000_000_000).cast(pl.String).str.pad_start(5), pl.lit("."),
        (pl.col("at_ns") % 1_000_000_000).cast(pl.String).str.zfill(9), pl.lit(": "), pl.col("event"),
    ]  # fmt: skip
    if groups:
        events = names.processes(events, "running", "pid")
        group = pl.when(pl.col("pid") >= 0).then(_n("pid").str.pad_start(7)).otherwise(pl.lit("-------"))
        parts[3:3] = [joined(" (%)", group)]
    return events.select("at_ns", rank=pl.lit(rank, pl.Int32), line=pl.concat_str(parts))


def _n(column: str) -> pl.Expr:
    return pl.col(column).cast(pl.String)


def _flags(context: str = "task") -> pl.Expr:
    return pl.lit(_FLAGS[context])


def _called(frame: pl.DataFrame, names: Names, tid: str, comm: str) -> pl.DataFrame:
    """Return `frame` with the name of a thread; the idle one has its CPU's."""
    rows = names.comm(frame, tid, "at_ns", comm)
    idle = joined("swapper/%", _n("cpu"))
    return rows.with_columns(pl.when(pl.col(tid) == 0).then(idle).otherwise(pl.col(comm)).alias(comm))


def _switches(tables: Tables, names: Names) -> pl.DataFrame:
    rows = _called(_called(tables["switches"], names, "prev_tid", "prev"), names, "next_tid", "next")
    event = joined(
        "sched_switch: prev_comm=% prev_pid=% prev_prio=% prev_state=% ==> next_comm=% next_pid=% next_prio=%",
        "prev", _n("prev_tid"), _n("prev_prio"), "prev_state", "next", _n("next_tid"), _n("next_prio"),
    )  # fmt: skip
    return rows.select("at_ns", "cpu", running="prev_tid", flags=pl.lit("d...."), event=event)


def _wakeups(tables: Tables, names: Names) -> pl.DataFrame:
    rows = _called(tables["wakeups"], names, "tid", "comm")
    target = pl.when(pl.col("target_cpu") >= 0).then(joined(" target_cpu=%", _n("target_cpu").str.zfill(3)))
    event = joined(
        "%: comm=% pid=% prio=%%", pl.col("kind").replace(_EVENTS), "comm", _n("tid"), _n("prio"),
        target.otherwise(pl.lit("")),
    )  # fmt: skip
    # a line without flags has no context
    flags = pl.col("context").replace_strict(_FLAGS, default="")
    return rows.select("at_ns", "cpu", running="waker_tid", flags=flags, event=event)


def _migrations(tables: Tables, names: Names) -> pl.DataFrame:
    rows = _called(tables["migrations"], names, "tid", "comm")
    event = joined(
        "sched_migrate_task: comm=% pid=% prio=-1 orig_cpu=% dest_cpu=%",
        "comm",
        _n("tid"),
        _n("from_cpu"),
        _n("to_cpu"),
    )
    return rows.select("at_ns", "cpu", running="running", flags=_flags(), event=event)


def _interrupts(tables: Tables, names: Names) -> pl.DataFrame:
    vector, soft = _n("vector"), pl.col("soft")
    entry = joined("irq_handler_entry: irq=% name=%", vector, "name")
    hard = pl.when("entry").then(entry).otherwise(joined("irq_handler_exit: irq=% ret=handled", vector))
    edge = pl.when("entry").then(pl.lit("entry")).otherwise(pl.lit("exit"))
    event = pl.when(soft).then(joined("softirq_%: vec=% [action=%]", edge, vector, "name")).otherwise(hard)
    flags = pl.when(soft).then(_flags("softirq")).otherwise(_flags("hardirq"))
    return tables["interrupts"].select("at_ns", "cpu", running="tid", flags=flags, event=event)


def _syscalls(tables: Tables, names: Names) -> pl.DataFrame:
    rows = tables["syscalls"]
    digits = {
        name: pl.Series([f"{value & _U64:x}" for value in rows[name]], dtype=pl.String)
        for name in ("arg0", "arg1", "arg2", "result")
    }
    rows = rows.with_columns(code=_n("result"), **digits)
    by_number, entry = pl.col("nr") >= 0, pl.col("entry")
    event = (
        pl.when(by_number & entry)
        .then(joined("sys_enter: NR % (%, %, %, 0, 0, 0)", _n("nr"), "arg0", "arg1", "arg2"))
        .when(by_number)
        .then(joined("sys_exit: NR % = %", _n("nr"), "code"))
        .when(entry)
        .then(joined("sys_%(arg0: %, arg1: %, arg2: %)", "name", "arg0", "arg1", "arg2"))
        .otherwise(joined("sys_% -> 0x%", "name", "result"))
    )
    return rows.select("at_ns", "cpu", running="tid", flags=_flags(), event=event)


def _tasks(tables: Tables, names: Names) -> pl.DataFrame:
    rows = tables["tasks"].with_columns(before_ns=pl.col("at_ns") - 1)
    rows = names.comm(names.comm(rows, "tid", "before_ns", "comm"), "other_tid", "at_ns", "other")
    kind, tid = pl.col("kind"), _n("tid")
    event = (
        pl.when(kind == "fork")
        .then(
            joined("sched_process_fork: comm=% pid=% child_comm=% child_pid=%", "comm", tid, "other", _n("other_tid"))
        )
        .when(kind == "exec")
        .then(joined("sched_process_exec: filename=% pid=% old_pid=%", "text", tid, tid))
        .when(kind == "rename")
        .then(joined("task_rename: pid=% oldcomm=% newcomm=% oom_score_adj=0", tid, "comm", "text"))
        .otherwise(joined("sched_process_exit: comm=% pid=% prio=-1", "comm", tid))
    )
    return rows.select("at_ns", "cpu", running="tid", flags=_flags(), event=event)


def _power(tables: Tables, names: Names) -> pl.DataFrame:
    value = pl.when(pl.col("value") < 0).then(pl.lit(0xFFFFFFFF)).otherwise("value").cast(pl.String)
    event = joined("cpu_%: state=% cpu_id=%", "kind", value, _n("cpu"))
    return tables["power"].select("at_ns", "cpu", running=pl.lit(0, pl.Int32), flags=_flags(), event=event)


def _block(tables: Tables, names: Names) -> pl.DataFrame:
    rows = names.comm(tables["block"], "tid", "at_ns", "comm")
    sectors = (pl.col("bytes") // 512).cast(pl.String)
    sector = pl.when(pl.col("sector") < 0).then(pl.lit(str(_U64))).otherwise(_n("sector"))
    operation = pl.when(pl.col("operation") == "").then(pl.lit("N")).otherwise("operation")
    done = joined("block_rq_complete: % % () % + % [0]", "device", operation, sector, sectors)
    asked = joined("block_rq_%: % % % () % + % [%]", "phase", "device", operation, _n("bytes"), sector, sectors, "comm")
    event = pl.when(pl.col("phase") == "complete").then(done).otherwise(asked)
    return rows.select("at_ns", "cpu", running="tid", flags=_flags(), event=event)


def marker() -> pl.Expr:
    """Return a row of the table ``markers`` as the program wrote it."""
    pid = pl.when(pl.col("pid") >= 0).then(_n("pid")).otherwise(pl.lit(""))
    letter = pl.col("kind").replace_strict(_LETTERS, return_dtype=pl.String)
    valued = pl.col("kind").is_in(["counter", "async_begin", "async_end"])
    value = pl.when(valued).then(joined("|%", _n("value"))).otherwise(pl.lit(""))
    return (
        pl.when(pl.col("kind") == "end")
        .then(joined("E|%", pid))
        .otherwise(joined("%|%|%%", letter, pid, "name", value))
    )


def _markers(tables: Tables, names: Names) -> pl.DataFrame:
    event = joined("tracing_mark_write: %", marker())
    return tables["markers"].select("at_ns", "cpu", running="tid", flags=_flags(), event=event)
