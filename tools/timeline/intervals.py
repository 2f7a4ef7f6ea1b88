"""Time covered by intervals: unions, and how much of them lies within spans, in columns."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl


@dataclass(frozen=True)
class Cover:
    """The union of intervals: `pieces` are disjoint, sorted, not empty: start_ns, end_ns, and before_ns, the time
    covered by all earlier pieces."""

    pieces: pl.DataFrame

    @classmethod
    def of(cls, *frames: pl.DataFrame) -> Cover:
        """Return the union of all intervals (start_ns, end_ns) in `frames`; empty ones do not count."""
        all_of = pl.concat([frame.select("start_ns", "end_ns") for frame in frames])
        found = all_of.filter(pl.col("end_ns") > pl.col("start_ns")).sort("start_ns")
        reached = pl.col("end_ns").cum_max().shift(1)
        piece = (pl.col("start_ns") > reached).fill_null(True).cum_sum()
        united = found.group_by(piece.alias("piece"), maintain_order=True).agg(
            pl.col("start_ns").first(), pl.col("end_ns").max()
        )
        length = pl.col("end_ns") - pl.col("start_ns")
        return cls(united.select("start_ns", "end_ns", before_ns=length.cum_sum() - length))

    def __or__(self, other: Cover) -> Cover:
        return Cover.of(self.pieces, other.pieces)

    def within(self, begin: pl.Series, end: pl.Series) -> pl.Series:
        """Return the covered time between each pair of instants, 0 where the end is not after the begin."""
        return pl.select((pl.lit(self._up_to(end)) - self._up_to(begin)).clip(0).alias("covered")).to_series()

    def _up_to(self, instants: pl.Series) -> pl.Series:
        """Return the time covered before each instant."""
        if self.pieces.is_empty():
            return pl.zeros(len(instants), dtype=pl.Int64, eager=True)
        starts = self.pieces["start_ns"]
        place = starts.search_sorted(instants, side="right").cast(pl.Int64) - 1
        at: pl.DataFrame = self.pieces[place.clip(0)].with_columns(at=instants, inside=place >= 0)
        covered = pl.col("before_ns") + pl.min_horizontal("at", "end_ns") - pl.col("start_ns")
        return at.select(pl.when("inside").then(covered).otherwise(0).alias("covered")).to_series()
