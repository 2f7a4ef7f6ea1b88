"""Operations of one group with the same number that do not match: another operation, size or type on some rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from whystall.tools.ranks.hangs.progress import Progress

# Operations with the same number of bytes on every rank's larger side. In the others roots or splits differ.
_EQUAL_BYTES = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"]
_SAME = {"all_to_all_v": "all_to_all"}  # one call, with equal or other splits


@dataclass(frozen=True)
class Mismatch:
    """Rank `rank` entered number `seq` of `group` with another `what` (operation, bytes, dtype) than most ranks, or,
    when there is no majority (`even`), than some. `still_open`: it has not finished it."""

    group: str
    rank: int
    seq: int
    op: str
    what: str
    expected: str
    found: str
    at_ns: int
    even: bool
    still_open: bool


def mismatches(progress: Progress) -> list[Mismatch]:
    """Return the first of each group: the following ones are consequences."""
    frame = progress.collectives.with_columns(pl.col("op").replace(_SAME).alias("operation"))
    sized = pl.col("operation").is_in(_EQUAL_BYTES) & (pl.col("bytes") >= 0)
    frame = frame.with_columns(
        pl.when(sized).then(pl.col("bytes").cast(pl.String)).otherwise(pl.lit("")).alias("size"),
        pl.when(sized).then("dtype").otherwise(pl.lit("")).alias("type"),
    )

    def differs(column: str) -> pl.Expr:
        return pl.col(column).filter(pl.col(column) != "").n_unique() > 1

    odd = (
        frame.group_by("group", "seq")
        .agg(pl.any_horizontal(*(differs(column) for column in ("operation", "size", "type"))).alias("odd"))
        .filter("odd")
        .group_by("group")
        .agg(pl.col("seq").min())
    )
    return [
        found
        for group, seq in sorted(odd.rows())
        for found in _of(group, seq, frame.filter((pl.col("group") == group) & (pl.col("seq") == seq)))
    ]


def _of(group: str, seq: int, rows: pl.DataFrame) -> Iterator[Mismatch]:
    # A different operation explains different sizes.
    for column, what in (("operation", "operation"), ("size", "bytes"), ("type", "dtype")):
        values = rows.filter(pl.col(column) != "")
        counts = Counter(values[column].to_list()).most_common()
        if len(counts) < 2:
            continue
        even = counts[0][1] == counts[1][1]
        for row in values.sort("rank").iter_rows(named=True):
            usual = next(value for value, _ in counts if value != row[column]) if even else counts[0][0]
            if row[column] != usual:
                yield Mismatch(
                    group=group,
                    rank=row["rank"],
                    seq=seq,
                    op=row["op"],
                    what=what,
                    expected=usual,
                    found=row[column],
                    at_ns=max(row["launch_ns"], row["start_ns"]),
                    even=even,
                    still_open=row["state"] != "completed",
                )
        return
