"""Intersect data frames of intervals, and bring them into one schema."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl


def conform(frame: pl.DataFrame, schema: pl.Schema, defaults: Mapping[str, object]) -> pl.DataFrame:
    """Return `frame` with the columns of `schema`; `defaults` replace missing columns and nulls."""
    frame = frame.with_columns(pl.lit(v).alias(name) for name, v in defaults.items() if name not in frame.columns)
    return frame.select(
        pl.col(name).fill_null(defaults[name]).cast(kind) if name in defaults else pl.col(name).cast(kind)
        for name, kind in schema.items()
    )


def overlay(base: pl.DataFrame, marks: pl.DataFrame, key: str) -> pl.DataFrame:
    """Return `base` cut where `marks` with the same `key` begin and end, with the marks' other columns (else null).

    Both have ``start_ns`` and ``end_ns``; intervals of one key overlap neither within `base` nor within `marks`. Empty
    intervals are left out. Sorted by start.
    """
    base = _whole(base).with_row_index("_row")
    marks = _whole(marks).with_columns(pl.col(key).cast(base.schema[key])).rename({"end_ns": "_end"})
    edges = pl.concat([marks.select(key, at="start_ns"), marks.select(key, at="_end")]).unique().sort("at")
    inside = _latest(edges, base.with_columns(_from=pl.col("start_ns")).rename({"start_ns": "at"}), key, "at")
    inside = inside.filter((pl.col("at") > pl.col("_from")) & (pl.col("at") < pl.col("end_ns")))
    cuts = pl.concat([base.select("_row", at="start_ns"), inside.select("_row", "at")]).sort("_row", "at")
    pieces = cuts.join(base, on="_row", how="left", maintain_order="left").with_columns(
        start_ns=pl.col("at"), end_ns=pl.col("at").shift(-1).over("_row").fill_null(pl.col("end_ns"))
    )
    found = _latest(pieces.sort("start_ns"), marks, key, "start_ns")
    covered = (pl.col("_end") > pl.col("start_ns")).fill_null(False)
    added = [name for name in marks.columns if name not in (key, "start_ns", "_end")]
    return found.with_columns(pl.when(covered).then(pl.col(name)).alias(name) for name in added).drop(
        "_row", "at", "_end"
    )


def _whole(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.filter(pl.col("end_ns") > pl.col("start_ns")).sort("start_ns")


def _latest(left: pl.DataFrame, right: pl.DataFrame, key: str, at: str) -> pl.DataFrame:
    """Join to each row of `left` the last row of `right` with its `key` that does not begin after it."""
    # Both are sorted as a whole, which polars cannot check within groups.
    return left.join_asof(right, on=at, by=key, strategy="backward", check_sortedness=False)
