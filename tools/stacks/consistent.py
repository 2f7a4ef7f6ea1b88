"""Check that the tables of stack samples fit together: a recording may be damaged or forged."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from whystall.tools.stacks.model import KINDS, NO_STACK, NO_THREAD, NO_TIME


def fault(tables: Mapping[str, pl.DataFrame]) -> str:
    """Return what is wrong with `tables` (of a stack profile), in a few words; empty if nothing is.

    Rows are numbered, references exist, a parent comes before its children, weights are finite and not negative, and
    instants are `NO_TIME` or not negative: what every reader of a profile relies on.
    """
    rows = {name: frame.height for name, frame in tables.items()}
    for table, number in (("threads", "thread"), ("stacks", "stack"), ("frames", "frame"), ("events", "event")):
        if not _holds(tables[table], pl.col(number) == pl.int_range(pl.len())):
            return f"{table} are not numbered"
    weight = pl.col("weight")
    checks = (
        ("samples", _within("stack", NO_STACK, rows["stacks"]), "point at stacks that are not there"),
        ("samples", _within("thread", NO_THREAD, rows["threads"]), "point at threads that are not there"),
        ("samples", _within("event", 0, rows["events"]), "point at events that are not there"),
        ("samples", weight.is_finite() & (weight >= 0), "have weights that are negative or not finite"),
        ("samples", (pl.col("at_ns") >= NO_TIME) & (pl.col("span_ns") >= 0), "have negative times"),
        ("stacks", (pl.col("parent") >= NO_STACK) & (pl.col("parent") < pl.col("stack")), "come before their parents"),
        ("stacks", _within("frame", 0, rows["frames"]), "point at frames that are not there"),
        ("frames", pl.col("kind").is_in(KINDS) & (pl.col("line") >= 0), "are of no known kind, or have no line"),
        ("events", pl.col("period").is_finite() & (pl.col("period") >= 0), "have periods that are no numbers"),
    )
    return next((f"{table} {what}" for table, check, what in checks if not _holds(tables[table], check)), "")


def _within(column: str, lowest: int, rows: int) -> pl.Expr:
    return (pl.col(column) >= lowest) & (pl.col(column) < rows)


def _holds(frame: pl.DataFrame, check: pl.Expr) -> bool:
    return bool(frame.select(check.all()).item())
