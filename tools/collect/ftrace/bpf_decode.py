"""Convert the records of a BPF trace to the tables of `whystall.tools.timeline.sched`, column by column."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

import polars as pl

from whystall.bpf import syscalls
from whystall.bpf.layout import BLOCK_OPS, TRACE_FLAGS, TRACE_TYPES
from whystall.bpf.trace import RECORD_BYTES, Loss
from whystall.tools.contract.text import clean
from whystall.tools.timeline.sched import TABLES, empty_tables

_NUMBER = {name: number for number, name in enumerate(TRACE_TYPES, 1)}
_FLAG = {name: 1 << bit for bit, name in enumerate(TRACE_FLAGS)}
_CONTEXTS = {_FLAG[name]: name for name in ("task", "softirq", "hardirq", "nmi")}
SOFTIRQS = ("HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU")
"""Names of the softirqs by number (include/linux/interrupt.h)."""
_LETTERS = "RSDTtXZPI"
_PIECE = 1 << 24  # bytes of records
_NAMES = TABLES["names"]
_REPORTED, _IDLE, _UNINTERRUPTIBLE_TOO = 0x7F, 0x402, 0x9000


class Named(NamedTuple):
    """A thread's name at an instant; `pid`: its process."""

    at_ns: int
    tid: int
    pid: int
    comm: str


def state_letter(state: int, preempted: bool) -> str:
    """Return the letter of a thread's state as the kernel prints it (`__task_state_index`, include/linux/sched.h): by
    the highest of the reported bits. Waiting for a lock of PREEMPT_RT, or frozen, counts as D.
    """
    if preempted:
        return "R"
    if state & _IDLE == _IDLE:
        return "I"
    reported = state & _REPORTED | (2 if state & _UNINTERRUPTIBLE_TOO else 0)
    return _LETTERS[reported.bit_length()]


def tables(
    chunks: Iterable[bytes],
    losses: Iterable[Loss],
    known: Collection[Named],
    disk: Callable[[int], str],
    cpus: Collection[int] | None = None,
) -> dict[str, pl.DataFrame]:
    """Return every table of a trace except ``clocks``, sorted by time; holes only as far as the tracer knows them.

    `chunks`, `losses`: of `whystall.bpf.trace.Trace`; `known`: names of threads at its start and end; `disk` names a
    device number; `cpus`: only tasks that began or ended there (their records come from all CPUs).
    """
    pieces = [_piece(_events(piece), disk, cpus) for piece in _gathered(chunks)]
    out = {name: pl.concat([schema.to_frame(), *(piece[name] for piece in pieces)]) for name, schema in TABLES.items()}
    out["names"] = _names(pl.concat([_named_threads(known), *(piece["new_names"] for piece in pieces)]))
    rest = [(loss.start, loss.end, loss.cpu, loss.events, "lost") for loss in losses]
    out["holes"] = pl.concat([out["holes"], pl.DataFrame(rest, schema=TABLES["holes"], orient="row")])
    return {name: frame.sort(_instant(frame), maintain_order=True) for name, frame in out.items()}


def _gathered(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Join chunks to pieces of about `_PIECE`: larger ones need more memory, smaller ones more time."""
    waiting: list[bytes] = []
    for chunk in chunks:
        waiting.append(chunk)
        if sum(map(len, waiting)) >= _PIECE:
            yield b"".join(waiting)
            waiting.clear()
    if waiting:
        yield b"".join(waiting)


def _instant(frame: pl.DataFrame) -> str:
    return next(name for name in ("at_ns", "start_ns", "mono") if name in frame.columns)


def _piece(events: pl.DataFrame, disk: Callable[[int], str], cpus: Collection[int] | None) -> dict[str, pl.DataFrame]:
    """Return the rows of every table from some records, and the names in them."""
    found = {
        "switches": _switches(_of(events, "switch")),
        "wakeups": _wakeups(_of(events, "waking", "wakeup", "new")),
        "migrations": _of(events, "migrate").select("at_ns", "cpu", tid="other", from_cpu="value", to_cpu=pl.col("a")),
        "interrupts": _interrupts(_of(events, "irq_entry", "irq_exit", "softirq_entry", "softirq_exit")),
        "syscalls": _syscalls(_of(events, "sys_enter", "sys_exit")),
        "tasks": _tasks(_of(events, "fork", "exec", "exit", "rename"), cpus),
        "power": _of(events, "idle", "frequency").select(
            "at_ns", cpu="value", kind=_named(pl.col("type"), ("idle", "frequency")), value="a"
        ),
        "block": _block(_of(events, "block_insert", "block_issue", "block_complete"), disk),
        "holes": _of(events, "lost").select(start_ns="a", end_ns="at_ns", cpu="cpu", lost="b", why=pl.lit("lost")),
    }
    narrow = {name: frame.select(TABLES[name].names()).cast(TABLES[name]) for name, frame in found.items()}
    return {**empty_tables(), **narrow, "new_names": _new_names(events)}


def _events(records: bytes) -> pl.DataFrame:
    """Return all records as columns; `trace_records.h` explains a, b, c, other and value."""
    words = pl.Series(memoryview(records).cast("q"), dtype=pl.Int64)
    step = RECORD_BYTES // 8
    names = ("at_ns", "a", "b", "c", "threads", "details")
    column = {name: words.gather_every(step, at) for at, name in enumerate(names, 1)}
    threads, details = pl.col("threads"), pl.col("details")

    def part(column: pl.Expr, low: int, bits: int) -> pl.Expr:
        return (column // (1 << low)) & ((1 << bits) - 1)  # // rounds down, also for negative numbers

    def signed(number: pl.Expr) -> pl.Expr:
        return pl.when(number >= 1 << 31).then(number - (1 << 32)).otherwise(number)

    def priority(number: pl.Expr) -> pl.Expr:
        return pl.when(number == 255).then(-1).otherwise(number)

    return pl.DataFrame(column).select(
        "at_ns",
        "a",
        "b",
        "c",
        tid=signed(part(threads, 0, 32)),
        other=signed(part(threads, 32, 32)),
        cpu=part(details, 0, 16),
        value=part(details, 16, 16),
        type=part(details, 32, 8),
        flags=part(details, 40, 8),
        prio=priority(part(details, 48, 8)),
        prio2=priority(part(details, 56, 8)),
    )


def _of(events: pl.DataFrame, *types: str) -> pl.DataFrame:
    return events.filter(pl.col("type").is_in([_NUMBER[name] for name in types]))


def _named(column: pl.Expr, types: Iterable[str], names: Iterable[str] | None = None) -> pl.Expr:
    """Return a column of types as text: `names`, by default those of `types`."""
    called = dict(zip(types, names or types, strict=True))
    return column.replace_strict({_NUMBER[name]: call for name, call in called.items()}, return_dtype=pl.String)


def _mapped(frame: pl.DataFrame, column: str, call: Callable[[int], str]) -> pl.Expr:
    """Apply `call` to each value of a column that has few different ones."""
    values = frame.get_column(column).unique().to_list()
    if not values:
        return pl.lit("", pl.String)
    return pl.col(column).replace_strict(values, [call(value) for value in values], return_dtype=pl.String)


def _switches(frame: pl.DataFrame) -> pl.DataFrame:
    preempted = _FLAG["preempted"]
    frame = frame.with_columns(state=pl.col("value") + (pl.col("flags") & preempted) * 65536)
    letter = _mapped(frame, "state", lambda state: state_letter(state & 0xFFFF, state > 0xFFFF))
    return frame.with_columns(prev_state=letter).select(
        "at_ns",
        "cpu",
        "prev_state",
        prev_tid="tid",
        prev_prio="prio",
        preempted=pl.col("prev_state") == "R",
        prev_arrived_ns="a",
        next_tid="other",
        next_prio="prio2",
    )


def _wakeups(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select(
        "at_ns",
        "cpu",
        kind=_named(pl.col("type"), ("waking", "wakeup", "new")),
        waker_tid="tid",
        context=pl.col("flags").replace_strict(_CONTEXTS, default="", return_dtype=pl.String),
        tid="other",
        prio="prio2",
        target_cpu="value",
    )


def _interrupts(frame: pl.DataFrame) -> pl.DataFrame:
    kind = pl.col("type")
    soft = kind >= _NUMBER["softirq_entry"]
    entry = kind.is_in([_NUMBER["irq_entry"], _NUMBER["softirq_entry"]])
    softirq = pl.col("value").replace_strict(dict(enumerate(SOFTIRQS)), default="", return_dtype=pl.String)
    irqs = _texts(frame.filter(kind == _NUMBER["irq_entry"]), ("a", "b", "c"))
    return frame.join(irqs, on=["a", "b", "c"], how="left", maintain_order="left").select(
        "at_ns",
        "cpu",
        "tid",
        soft=soft,
        entry=entry,
        vector="value",
        name=pl.when(soft).then(softirq).when(entry).then("text").otherwise(pl.lit("")).fill_null(""),
    )


def _syscalls(frame: pl.DataFrame) -> pl.DataFrame:
    entry = pl.col("type") == _NUMBER["sys_enter"]
    return frame.select(
        "at_ns",
        "cpu",
        "tid",
        entry=entry,
        nr="other",
        name=_mapped(frame, "other", syscalls.name),
        arg0=pl.when(entry).then("a").otherwise(0),
        arg1="b",
        arg2="c",
        result=pl.when(entry).then(0).otherwise("a"),
    )


def _tasks(frame: pl.DataFrame, cpus: Collection[int] | None) -> pl.DataFrame:
    if cpus is not None:
        frame = frame.filter(pl.col("cpu").is_in(list(cpus)))
    kinds = ("fork", "exec", "exit", "rename")
    kind = pl.col("type")
    renamed = kind == _NUMBER["rename"]
    return frame.join(_texts(frame, ("b", "c")), on=["b", "c"], how="left", maintain_order="left").select(
        "at_ns",
        "cpu",
        kind=_named(kind, kinds),
        tid=pl.when(renamed).then("other").otherwise("tid"),
        other_tid=pl.when(kind.is_in([_NUMBER["fork"], _NUMBER["exec"]])).then("other").otherwise(-1),
        text=pl.when(renamed).then("text").otherwise(pl.lit("")),
    )


def _block(frame: pl.DataFrame, disk: Callable[[int], str]) -> pl.DataFrame:
    return frame.select(
        "at_ns",
        "cpu",
        "tid",
        phase=_named(
            pl.col("type"), ("block_insert", "block_issue", "block_complete"), ("insert", "issue", "complete")
        ),
        device=_mapped(frame, "c", disk),
        operation=pl.col("value").replace_strict(dict(enumerate(BLOCK_OPS)), return_dtype=pl.String),
        sector="a",
        bytes="b",
    )


def _texts(frame: pl.DataFrame, words: tuple[str, ...]) -> pl.DataFrame:
    """Return the distinct texts in the columns `words`, 8 bytes each, with their inert text as column ``text``."""
    different = frame.select(words).unique()
    packer = struct.Struct(f"<{len(words)}q")
    return different.with_columns(
        text=pl.Series([clean(packer.pack(*row)) for row in different.iter_rows()], dtype=pl.String)
    )


def _named_threads(known: Collection[Named]) -> pl.DataFrame:
    return pl.DataFrame(list(known), schema=_NAMES, orient="row")


def _new_names(events: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each event that names a thread differently than the previous event with this thread."""
    sources = [
        # a switch names only the next thread, all others its process too
        _of(events, "switch").select("at_ns", "b", "c", tid="other", pid=pl.lit(-1, pl.Int64)),
        _of(events, "waking", "wakeup", "new", "fork", "rename").select("at_ns", "b", "c", tid="other", pid="a"),
        _of(events, "exec", "exit").select("at_ns", "b", "c", tid="tid", pid="a"),
    ]
    found = pl.concat(sources).filter(pl.col("tid") != 0).sort("tid", "at_ns", maintain_order=True)
    found = found.filter(_differs("tid", "b", "c", "pid"))
    found = found.join(_texts(found, ("b", "c")), on=["b", "c"], how="left", maintain_order="left")
    return found.select("at_ns", "tid", "pid", comm="text").cast(_NAMES)


def _names(found: pl.DataFrame) -> pl.DataFrame:
    """Return the name and process of every thread, with a row per change."""
    process = pl.col("pid").replace(-1, None)
    return (
        found.sort("tid", "at_ns", maintain_order=True)
        .with_columns(pid=process.forward_fill().over("tid"))
        .with_columns(pid=pl.col("pid").backward_fill().over("tid").fill_null(-1))
        .filter(_differs("tid", "comm", "pid"))
    )


def _differs(*columns: str) -> pl.Expr:
    """Return whether a row differs from the previous one in any of `columns`."""
    return pl.any_horizontal(pl.col(name).ne_missing(pl.col(name).shift(1)) for name in columns)
