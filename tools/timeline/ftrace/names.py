"""Names of threads and their processes, from all blocks of a trace."""

from __future__ import annotations

import polars as pl

from whystall.tools.timeline.ftrace.block import Block
from whystall.tools.timeline.ftrace.events import NAMES, renamed
from whystall.tools.timeline.ftrace.payloads import inert
from whystall.tools.timeline.sched import TABLES

IDLE = "swapper"
"""The idle threads, all of number 0; each CPU's has its own name."""

_UNNAMED = "<...>"  # the tracer no longer had it


def names_table(blocks: list[Block]) -> pl.DataFrame:
    """Return the table ``names``: from events at their time; threads without one have the name in the heads."""
    in_events = renamed(pl.concat([NAMES.to_frame(), *(block.names for block in blocks)]))
    heads = pl.concat([block.threads for block in blocks]).unique("tid", keep="first", maintain_order=True)
    in_heads = heads.join(in_events, on="tid", how="anti").filter(pl.col("comm") != _UNNAMED)
    in_heads = in_heads.with_columns(
        comm=pl.when(pl.col("tid") == 0).then(pl.lit(IDLE)).otherwise(inert(in_heads["comm"]))
    )
    every = pl.concat([frame.select("at_ns", "tid", "comm") for frame in (in_events, in_heads)])
    pid = every.get_column("tid").replace_strict(_processes(blocks, heads), default=-1, return_dtype=pl.Int32)
    names = every.with_columns(pid=pid).select(TABLES["names"].names()).cast(TABLES["names"])
    return names.sort("at_ns", maintain_order=True)


def _processes(blocks: list[Block], heads: pl.DataFrame) -> dict[int, int]:
    """Return the thread group of each thread, where the trace has it: in a column, or in the thread's birth."""
    columns = dict(heads.filter(pl.col("pid") >= 0).select("tid", "pid").iter_rows())
    found = {0: 0, **columns}
    for block in blocks:
        for tid, pid, like in block.groups.iter_rows():
            if tid not in columns:
                found[tid] = pid if pid >= 0 else found.get(like, -1)
    return found
