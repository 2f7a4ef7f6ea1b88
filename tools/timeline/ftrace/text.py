"""Read ftrace's text into a `SchedTrace`: the kernel's files `trace` and `trace_pipe`, output of trace-cmd and
systrace, and our own captures, plain or gzipped."""

from __future__ import annotations

import os
import threading
from collections import Counter, deque
from collections.abc import Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import polars as pl

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean
from whystall.tools.files.formats import Format, Match
from whystall.tools.timeline.ftrace import block as ftrace_block
from whystall.tools.timeline.ftrace import marks as ftrace_marks
from whystall.tools.timeline.ftrace.block import Block, Loss
from whystall.tools.timeline.ftrace.events import Decoder
from whystall.tools.timeline.ftrace.holes import unseen_holes
from whystall.tools.timeline.ftrace.names import names_table
from whystall.tools.timeline.ftrace.outliers import usual_span
from whystall.tools.timeline.ftrace.source import Source
from whystall.tools.timeline.sched import TABLES, Odd, SchedTrace

COUNTER = "counter"
"""`SchedTrace.clock` when the tracer's clock does not count time (counter, uptime, x86-tsc): instants are its units."""

_WORKERS = 4
_EXAMPLES = 5
_OTHERS = 1000  # distinct names


def read(
    path: Path,
    *,
    cpus: Collection[int] | None = None,
    span_ns: tuple[int, int] | None = None,
    memory: int | None = None,
) -> SchedTrace:
    """Return the trace in the text file `path`.

    If given, only the events on `cpus`, and from `span_ns[0]` up to and without `span_ns[1]` (of the trace's clock).
    `memory`: bytes its tables may take (default: half of what is available). A file that grows is read up to the size
    it had. Unreadable lines are counted in `SchedTrace.odd`, among them an incomplete last line.

    Raises `ToolError`: BAD_TRACE when the file cannot be read, holds no event, or would not fit into memory;
    NO_PRIVILEGE when reading is not permitted.
    """
    return read_source(Source(path), cpus=cpus, span_ns=span_ns, memory=memory)


def read_source(
    source: Source,
    *,
    cpus: Collection[int] | None = None,
    span_ns: tuple[int, int] | None = None,
    memory: int | None = None,
) -> SchedTrace:
    """Read as `read` does, from a `Source`."""
    chosen = None if cpus is None else frozenset(cpus)
    budget = _available() // 2 if memory is None else memory
    blocks: list[Block] = []
    kept = 0
    for block, share in _in_order(source, partial(_read, cpus=chosen, span_ns=span_ns)):
        blocks.append(block)
        kept += block.bytes
        expected = kept if span_ns else kept / share
        if max(kept, expected) > budget:
            need = f"about {max(kept, expected) / 1e9:.1f} GB of memory, {budget / 1e9:.1f} GB may be used"
            raise ToolError(
                ErrorCode.BAD_TRACE,
                f"{source.path.name} would take {need}",
                "choose fewer CPUs (--cpu), cut the file, or use a machine with more memory",
            )
    return _trace(source, blocks, chosen)


FORMAT = Format("ftrace", lambda head: Match.POSSIBLE, read)  # lines of any tracer: there is no magic number


_local = threading.local()


def _read(lines: pl.DataFrame, cpus: frozenset[int] | None, span_ns: tuple[int, int] | None) -> Block:
    decoder: Decoder | None = getattr(_local, "decoder", None)
    if decoder is None:
        decoder = _local.decoder = Decoder()
    return ftrace_block.read(lines, decoder, cpus, span_ns)


def _in_order(source: Source, work: partial[Block]) -> Iterator[tuple[Block, float]]:
    """Yield blocks, read in parallel, in the order of the file; and the share of it up to their end."""
    workers = min(_WORKERS, os.cpu_count() or 1)
    waiting: deque[tuple[Future[Block], float]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="ftrace") as pool:
        try:
            for lines in source.lines():
                waiting.append((pool.submit(work, lines), source.share))
                if len(waiting) > workers:
                    future, share = waiting.popleft()
                    yield future.result(), share
            for future, share in waiting:
                yield future.result(), share
        finally:
            for future, _ in waiting:
                future.cancel()


def _trace(source: Source, blocks: list[Block], chosen: frozenset[int] | None) -> SchedTrace:
    units = next((block.seconds for block in blocks if block.seconds is not None), True)
    odd = sum(block.odd for block in blocks) + len(source.dropped)
    examples = [line for block in blocks for line in block.examples]
    examples += [line.decode("utf-8", "backslashreplace") for line in source.dropped]
    head, tail = _comments(blocks)
    comments = ftrace_marks.header([*head, *tail])
    odd += sum(block.events for block in blocks if block.seconds not in (None, units))
    blocks = [block for block in blocks if block.seconds == units]
    if not any(block.read_events for block in blocks):
        raise ToolError(ErrorCode.BAD_TRACE, f"{source.path.name} holds no event of a kernel trace", source.remedy)
    count = sum(block.events for block in blocks)
    start, end, far = usual_span([block.edges for block in blocks], count if units else 0)
    others = sum((block.others for block in blocks), Counter[str]())
    holes = _holes(blocks, start, end)
    tables = {name: _table(name, blocks) for name in TABLES if name not in ("holes", "names", "clocks")}
    if far:
        usual = pl.col("at_ns").is_between(start, end)
        tables = {name: table.filter(usual) for name, table in tables.items()}
        holes = holes.with_columns(pl.col("start_ns", "end_ns").clip(start, end))
    tables["tasks"] = _births_once(tables["tasks"])
    tables["syscalls"] = _calls_once(tables["syscalls"])
    if not comments.filtered:  # else the other processes' switches are missing on purpose
        holes = pl.concat([holes, unseen_holes(tables["switches"], _contexts(tables))])
    tables["holes"] = holes.sort("start_ns", maintain_order=True)
    tables["names"] = names_table(blocks).with_columns(pl.col("at_ns").clip(start, end))
    tables["clocks"] = pl.DataFrame([vars(point) for point in comments.points], schema=TABLES["clocks"])
    seen = {cpu for block in blocks for cpu in block.first} | {loss.cpu for block in blocks for loss in block.losses}
    traced = {*comments.cpus, *seen}
    return SchedTrace(
        tables=tables,
        start_ns=start,
        end_ns=end,
        cpus=tuple(sorted(traced & chosen if chosen is not None else traced)),
        clock=comments.clock or ("" if units else COUNTER),
        others={clean(name): count for name, count in others.most_common(_OTHERS)},
        odd=Odd(odd, tuple(clean(line, 200) for line in examples[:_EXAMPLES])),
        notes=(*_notes(comments, blocks, source), *_far_off(far, start, end, count)),
    )


def _comments(blocks: list[Block]) -> tuple[list[str], list[str]]:
    """Return the comments before the first event, and after the last: a message between them could imitate ours."""
    head: list[str] = []
    tail: list[str] = []
    begun = False
    for block in blocks:
        if not begun:
            head += block.head
        elif not block.read_events:
            tail += block.head
        if block.read_events:
            tail = list(block.tail)
        begun = begun or block.read_events > 0
    return head, tail


def _table(name: str, blocks: list[Block]) -> pl.DataFrame:
    """Return one table of all blocks, which are emptied: never are all rows in memory twice."""
    parts = [block.tables.pop(name) for block in blocks if name in block.tables]
    table = pl.concat([TABLES[name].to_frame(), *parts])
    parts.clear()
    return table if table.get_column("at_ns").is_sorted() else table.sort("at_ns", maintain_order=True)


def _births_once(tasks: pl.DataFrame) -> pl.DataFrame:
    """Keep one of two events of a birth; ``task_newtask`` only counts where the other is not recorded."""
    kind = pl.col("kind")
    if (tasks.get_column("kind") == "fork").any():
        return tasks.filter(kind != "newtask")
    return tasks.with_columns(kind=pl.when(kind == "newtask").then(pl.lit("fork")).otherwise(kind))


def _calls_once(calls: pl.DataFrame) -> pl.DataFrame:
    """Merge two events of one call: its own, which has the name, and the next, which has the number."""
    named = calls.get_column("nr") < 0
    if not named.any() or named.all():
        return calls
    order = calls.with_row_index("row").sort("tid", "row")
    same = (pl.col("tid") == pl.col("tid").shift(1)) & (pl.col("entry") == pl.col("entry").shift(1))
    twice = same & (pl.col("nr") >= 0) & (pl.col("nr").shift(1) < 0)
    name = pl.when(twice).then(pl.col("name").shift(1)).otherwise("name")
    order = order.with_columns(name=name, duplicate=twice.shift(-1)).filter(~pl.col("duplicate").fill_null(False))
    return order.sort("row").select(calls.columns)


def _contexts(tables: dict[str, pl.DataFrame]) -> list[pl.DataFrame]:
    """Return the CPU's thread at events other than switches (`at_ns`, `cpu`, `tid`)."""
    wakers = tables["wakeups"].select("at_ns", "cpu", tid="waker_tid")
    return [wakers, *(tables[name].select("at_ns", "cpu", "tid") for name in ("interrupts", "syscalls", "block"))]


def _holes(blocks: list[Block], start: int, end: int) -> pl.DataFrame:
    """Return the reported losses: from the CPU's event before to the one after."""
    rows: list[list[int | str]] = []
    waiting: dict[int, list[int]] = {}
    last: dict[int, int] = {}
    for block in blocks:
        for cpu, first in block.first.items():
            for row in waiting.pop(cpu, []):
                rows[row][1] = first
        for loss in block.losses:
            rows.append(_hole(loss, last, start, end))
            if loss.end is None:
                waiting.setdefault(loss.cpu, []).append(len(rows) - 1)
        last |= block.last
    return pl.DataFrame(rows, schema=TABLES["holes"], orient="row").sort("start_ns", maintain_order=True)


def _hole(loss: Loss, last: dict[int, int], start: int, end: int) -> list[int | str]:
    begin = loss.start if loss.start is not None else last.get(loss.cpu, start)
    return [start if loss.began else begin, end if loss.end is None else loss.end, loss.cpu, loss.lost, "lost"]


def _notes(comments: ftrace_marks.Header, blocks: list[Block], source: Source) -> tuple[tuple[str, str], ...]:
    notes = [("cut_short", "the file ends in the middle")] if source.cut else []
    if comments.broken_off and not source.cut:
        notes.append(("cut_short", "its recorder was stopped before it could end the file"))
    if comments.filtered:
        notes.append(("target_only", ""))
    placed = Counter[int]()
    for block in blocks:
        placed.update({loss.cpu: 0 for loss in block.losses})
        for loss in block.losses:
            placed[loss.cpu] += max(0, loss.lost)
    if comments.part == 1:  # a later file also counts the losses of those before it
        for cpu, lost in sorted(comments.lost.items()):
            if lost > placed[cpu]:
                notes.append(("events_lost", f"{lost - placed[cpu]} of CPU {cpu}, at unknown times"))
    return tuple(notes)


def _far_off(far: list[int], start: int, end: int, count: int) -> list[tuple[str, str]]:
    if not far:
        return []
    at = ", ".join(f"{one / 1e9:.6f} s" for one in far)
    hours = min(max(start - one, one - end) for one in far) / 3.6e12
    return [("far_off", f"{len(far)} of {count} events, at {at}: {hours:.3g} h away from all others")]


def _available() -> int:
    """Return the bytes of memory that could be used now, by the kernel's account and the container's limit."""
    found = [8 << 30]
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found = [1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            found.append(int(Path("/sys/fs/cgroup", name).read_text()))
    return min(found)
